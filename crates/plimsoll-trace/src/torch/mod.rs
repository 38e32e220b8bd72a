//! The meaning of PyTorch's dictionaries.
//!
//! `pickle/` and `json.rs` pass values on as they read them; [`Objects`](objects::Objects) turns them into records
//! with the fields of `fields.rs` (`forward.rs` reads those of anomaly mode); `assemble.rs` builds the [`Snapshot`](crate::snapshot::Snapshot). `write.rs` writes one.

mod assemble;
mod fields;
mod forward;
pub(crate) mod objects;
pub(crate) mod value;
mod write;

pub use write::Sharing;
pub(crate) use write::write;
