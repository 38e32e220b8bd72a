//! Normalization of rows, of batches and of groups, and softmax.
//!
//! | file | contents |
//! |---|---|
//! | `row_norm/` | over the last dimension, optionally after adding a residual |
//! | `batch_norm/` | over a batch, optionally with the operations that follow |
//! | `group_norm` | over groups of channels |
//! | `softmax` | softmax and its logarithm |

pub(super) mod batch_norm;
pub(super) mod group_norm;
pub(super) mod row_norm;
pub(super) mod softmax;

/// The conformance suite's cases for these operators, by file.
pub(super) static CASES: &[(&str, crate::suite::Cases)] = &[
    ("batch_norm", batch_norm::cases),
    ("group_norm", group_norm::cases),
    ("layer_norm", row_norm::layer_norm_cases),
    ("row_norm", row_norm::cases),
    ("softmax", softmax::cases),
];
