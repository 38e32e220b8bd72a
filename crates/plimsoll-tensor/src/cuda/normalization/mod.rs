//! Normalization of rows, of batches and of groups, and softmax.
//!
//! | file | what it has |
//! |---|---|
//! | `row_norm` | rows, and their sum with others |
//! | `batch_norm` | batches, forward and backward |
//! | `group_norm` | groups of channels |
//! | `softmax` | softmax of rows, and its logarithm |

pub(crate) mod batch_norm;
pub(crate) mod group_norm;
pub(crate) mod row_norm;
pub(crate) mod softmax;
