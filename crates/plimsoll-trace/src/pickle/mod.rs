//! Reads Python's pickles without running anything, and writes them.
//!
//! Protocols 2 to 5, limited to the operations that build dicts, lists, tuples, texts and numbers
//! (`machine.rs`). An operation that names a Python object is refused with that name. Bytes come from a window on the
//! file (`source.rs`); values go to `torch/`, which turns them into records at once, so memory use
//! depends on the snapshot's content, not on its encoding. `writer.rs` writes pickles.

mod machine;
pub mod opcode;
mod source;
mod writer;

pub(crate) use machine::read;
pub(crate) use writer::{Kept, Pickler};
