//! Reads Python's pickles without running any code, and writes pickles.
//!
//! The reader supports protocols 2 to 5, limited to the operations that build dicts, lists, tuples, texts and numbers,
//! and to the objects that a [`Builder`] knows by name. Any other object is rejected with an error that contains the
//! object's name. One machine ([`read`]) serves PyTorch's snapshots (`torch/`) and, in the crate `plimsoll`, its `.pt`
//! files; each has its own builder. The file is read through a buffer, called the window (`source.rs`). Values go to
//! the builder immediately, so memory use depends on the pickle's content, not on its encoding. `writer.rs` writes
//! pickles.

mod builder;
mod machine;
mod opcode;
mod source;
mod writer;

pub use builder::{Builder, Malformed, Scalar, Slot};
pub use machine::read;
pub use opcode::name as opcode_name;
pub use writer::add_entry;
pub(crate) use writer::{Kept, Pickler};
