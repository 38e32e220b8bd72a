//! Python's pickles, read without running anything, and written.
//!
//! Protocols 2 to 5, and of these only what builds dicts, lists, tuples, texts and numbers
//! (`machine.rs`). Whatever names a Python object is refused with its name. Bytes come from a window on the
//! file (`source.rs`); values go to [`crate::torch`], which makes records of them at once, so that memory
//! follows what a snapshot says, not how it is written. The way back is `writer.rs`.

mod machine;
mod opcode;
mod source;
mod writer;

pub(crate) use machine::read;
pub(crate) use writer::{Kept, Pickler};
