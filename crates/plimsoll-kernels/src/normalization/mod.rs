//! Normalization to mean 0 and standard deviation 1, and softmax.
//!
//! | file | contents |
//! |---|---|
//! | `channel_norm` | channels of a batch |
//! | `group_norm` | groups of channels, row-major |
//! | `group_norm_last` | groups of channels, channels-last |
//! | `row_norm` | rows, by mean and deviation or by root mean square, also with a residual |
//! | `softmax` | softmax of rows |

pub mod channel_norm;
pub mod group_norm;
pub mod group_norm_last;
pub mod row_norm;
pub mod softmax;
