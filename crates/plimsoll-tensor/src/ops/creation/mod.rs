//! Creating and copying tensors, and reading their values. Their kernels are in the families `elementwise` and `random`.
//!
//! | file | contents |
//! |---|---|
//! | `create` | tensors from values, constants, sequences and random numbers |
//! | `created` | sequences, the identity, random integers and permutations |
//! | `copy` | copies into new memory, and conversion between dtypes |
//! | `leaf` | moving and converting leaves |
//! | `read` | reading values, and copying to another device |
//! | `print` | the text of a tensor, as `print` shows it |
//! | `transfer` | copies between host and device without waiting |
//! | `bytes` | the bytes of a tensor, for files |

pub(super) mod bytes;
pub(super) mod copy;
pub(super) mod create;
pub(super) mod created;
pub(super) mod leaf;
pub(super) mod print;
pub(super) mod read;
pub(super) mod transfer;

/// The conformance suite's cases for these operators, by file.
pub(super) static CASES: &[(&str, crate::suite::Cases)] =
    &[("copy", copy::cases), ("create", create::cases), ("created", created::cases)];
