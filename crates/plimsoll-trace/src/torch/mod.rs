//! PyTorch's snapshots: what its dictionaries mean.
//!
//! `pickle/` and `json.rs` tell values as they come; [`Objects`](objects::Objects) makes records of them,
//! by the keys of `fields.rs`; `assemble.rs` puts the [`Snapshot`](crate::snapshot::Snapshot) together. `write.rs` is the way back.

mod assemble;
mod fields;
pub(crate) mod objects;
pub(crate) mod value;
mod write;

pub use write::Sharing;
pub(crate) use write::write;
