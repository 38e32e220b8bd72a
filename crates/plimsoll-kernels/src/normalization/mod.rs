//! Elements brought to mean 0 and deviation 1, and softmax.
//!
//! | file | what it has |
//! |---|---|
//! | `channel_norm` | channels of a batch |
//! | `group_norm` | groups of channels, row-major |
//! | `group_norm_last` | groups of channels, channels-last |
//! | `row_norm` | rows, by mean and deviation or by the root mean square, also of sums |
//! | `softmax` | softmax of rows |

pub mod channel_norm;
pub mod group_norm;
pub mod group_norm_last;
pub mod row_norm;
pub mod softmax;
