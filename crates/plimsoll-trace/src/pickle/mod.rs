//! Reads Python's pickles without running anything, and writes them.
//!
//! Protocols 2 to 5, limited to the operations that build dicts, lists, tuples, texts and numbers, and to the objects that
//! a [`Builder`] knows by name; any other is refused with that name. One machine ([`read`]) serves PyTorch's snapshots
//! (`torch/`) and, in the crate `plimsoll`, its `.pt` files: what differs is the builder. Bytes come from a window on the file
//! (`source.rs`); values go to the builder at once, so memory use depends on the pickle's content, not on its
//! encoding. `writer.rs` writes pickles.

mod builder;
mod machine;
mod opcode;
mod source;
mod writer;

pub use builder::{Builder, Malformed, Scalar, Slot};
pub use machine::read;
pub use opcode::name as opcode_name;
pub(crate) use writer::{Kept, Pickler};
