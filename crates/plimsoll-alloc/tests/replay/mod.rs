//! Replays what PyTorch was asked, and compares everything that ours shows with what PyTorch showed.
//!
//! Values in, a [`Report`] out: nothing here reads files. Corpus files: `corpus.rs`, on the device of
//! `recorded.rs`, replayed in `stream.rs`. Programs: `program.rs`, on the device of `first_fit.rs`.

#![allow(dead_code, unused_imports, reason = "each test binary uses a part of it")]

mod corpus;
mod first_fit;
mod program;
mod recorded;
mod report;
mod stream;

pub(crate) use corpus::Corpus;
pub(crate) use program::Program;
pub(crate) use report::Report;
pub(crate) use stream::replay;
