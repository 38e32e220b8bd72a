//! Normalization of rows, of batches and of groups, and softmax.
//!
//! | file | contents |
//! |---|---|
//! | `row_norm` | normalization of rows, also of a sum with a residual |
//! | `batch_norm` | batch normalization, forward and backward |
//! | `group_norm` | groups of channels |
//! | `softmax` | softmax of rows, and its logarithm |

pub(crate) mod batch_norm;
pub(crate) mod group_norm;
pub(crate) mod row_norm;
pub(crate) mod softmax;
