//! Recordings of PyTorch's allocator: read, replayed through ours, compared. And of ours, in PyTorch's format.
//!
//! [`input::open`] reads a memory snapshot of PyTorch's, whatever its wrapping, into a
//! [`snapshot::Snapshot`]; [`own::snapshot`] makes one of our own allocator; [`output::save`] writes it so that
//! PyTorch's viewer opens it; [`log`] is for runs too long for either. [`timeline::Timeline`] tells who held which
//! block when, [`replay::Replay`] whether our allocator would have done the same, [`whatif::WhatIf`] what other
//! settings would have come to, and [`explain`] what it all means, which [`render`] puts before people.
//! [`message`] reads what people have instead of a snapshot: an out-of-memory message in a log, counters, a profile.
//! [`conformance`] replays streams of requests and programs with all that PyTorch answered. This crate knows nothing
//! of tensors, and prints nothing: what it finds is a value.
//!
//! The files, from the bottom up; a file uses only files above it:
//!
//! | file | contents |
//! |---|---|
//! | `pickle/` | Python's pickles, both ways: the machine that reads them, whatever they hold |
//! | `snapshot.rs`, `snapshot/` | a recording in memory: segments, events, stacks, texts |
//! | `error.rs`, `grant.rs` | why a file cannot be read; how much memory reading it may take |
//! | `timeline.rs`, `timeline/` | the lifetime of each block, levels and peaks |
//! | `failure.rs`, `still_needed.rs` | the request that failed; what the program needed after it |
//! | `conformance/` | streams of requests and programs with all that PyTorch answered |
//! | `replay.rs`, `replay/` | the same requests through our allocator |
//! | `pressure/` | cached memory that was given back because memory was short |
//! | `own.rs`, `log/` | a recording of our own allocator; the log of a long run |
//! | `torch/` | PyTorch's records, both ways: a pickle is read straight into records |
//! | `json.rs` | the same records as JSON |
//! | `message/` | an out-of-memory message, counters, a profile |
//! | `input.rs`, `output.rs` | a file of any wrapping; writing one |
//! | `whatif.rs`, `whatif/` | the same requests under other settings |
//! | `explain/` | what it all means |
//! | `report.rs` | what a verb says: the model that texts, JSON and page are views of |
//! | `render/` | an explanation for people |

#![forbid(unsafe_code)]

pub mod conformance;
mod error;
pub mod explain;
mod failure;
mod grant;
pub mod input;
mod json;
pub mod log;
pub mod message;
pub mod output;
pub mod own;
pub mod pickle;
pub mod pressure;
pub mod render;
pub mod replay;
pub mod report;
pub mod snapshot;
mod still_needed;
pub mod timeline;
mod torch;
pub mod whatif;

pub use error::{Absent, SnapshotError, Why};
pub use torch::Sharing;
