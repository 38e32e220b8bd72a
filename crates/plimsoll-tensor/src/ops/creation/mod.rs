//! How tensors come to be, are copied, and how values leave them. Their kernels are in the families `elementwise` and `random`.
//!
//! | file | what it has |
//! |---|---|
//! | `create` | from values, filled, counted, drawn |
//! | `created` | sequences, the identity, random integers and permutations |
//! | `copy` | copies: into new memory, and between types |
//! | `leaf` | a leaf in another place, of another type or in another order |
//! | `read` | to the program, and to another device |
//! | `transfer` | copies between the host and a device that the host does not wait for |
//! | `bytes` | the bytes of a tensor, for files |

pub(super) mod bytes;
pub(super) mod copy;
pub(super) mod create;
pub(super) mod created;
pub(super) mod leaf;
pub(super) mod read;
pub(super) mod transfer;

/// What the suite runs of the operators here, by their files.
pub(super) static CASES: &[(&str, crate::suite::Cases)] =
    &[("copy", copy::cases), ("create", create::cases), ("created", created::cases)];
