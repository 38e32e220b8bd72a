//! Normalization of rows, of batches and of groups, and softmax.
//!
//! | file | what it has |
//! |---|---|
//! | `row_norm/` | over the last dimension, perhaps of a sum |
//! | `batch_norm/` | over a batch, alone or with what follows it |
//! | `group_norm` | over groups of channels |
//! | `softmax` | softmax and its logarithm |

pub(super) mod batch_norm;
pub(super) mod group_norm;
pub(super) mod row_norm;
pub(super) mod softmax;

/// What the suite runs of the operators here, by their files.
pub(super) static CASES: &[(&str, crate::suite::Cases)] = &[
    ("batch_norm", batch_norm::cases),
    ("group_norm", group_norm::cases),
    ("layer_norm", row_norm::layer_norm_cases),
    ("row_norm", row_norm::cases),
    ("softmax", softmax::cases),
];
