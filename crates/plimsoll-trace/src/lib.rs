//! Reads recordings of PyTorch's allocator, replays them through our allocator, and compares them. Also writes
//! recordings of our allocator in PyTorch's format.
//!
//! [`input::open`] reads a memory snapshot of PyTorch in any encoding into a [`snapshot::Snapshot`]. [`own::snapshot`]
//! makes such a snapshot from our own allocator, and [`output::save`] writes a snapshot so that PyTorch's viewer can
//! open it. [`log`] is for runs that are too long for a snapshot. [`timeline::Timeline`] contains the lifetime of every
//! block. [`replay::Replay`] checks whether our allocator makes the same decisions, and [`whatif::WhatIf`] simulates
//! other settings. [`explain`] explains the memory use, and [`render`] formats the explanation for people. [`message`]
//! reads the texts that users have instead of a snapshot: an out-of-memory message in a log, counters, a profile.
//! [`conformance`] replays streams of requests and programs, and compares all of PyTorch's results. This crate does not
//! depend on tensors and prints nothing; its results are values.
//!
//! The files, from the bottom up; a file uses only files above it:
//!
//! | file | contents |
//! |---|---|
//! | `pickle/` | reading and writing Python's pickles, with any content |
//! | `snapshot.rs`, `snapshot/` | a recording in memory: segments, events, stacks, texts |
//! | `error.rs`, `grant.rs` | errors of reading a file; the limit on the memory for reading it |
//! | `timeline.rs`, `timeline/` | the lifetime of each block, levels and peaks |
//! | `failure.rs`, `still_needed.rs` | the request that failed; what the program needed after it |
//! | `conformance/` | streams of requests and programs, with PyTorch's results |
//! | `replay.rs`, `replay/` | the same requests through our allocator |
//! | `pressure/` | cached memory that was released because memory was short |
//! | `own.rs`, `log/` | a recording of our own allocator; the log of a long run |
//! | `torch/` | reading and writing PyTorch's records: a pickle is read directly into records |
//! | `json.rs` | the same records as JSON |
//! | `message/` | an out-of-memory message, counters, a profile |
//! | `input.rs`, `output.rs` | reading a file in any encoding; writing a file |
//! | `whatif.rs`, `whatif/` | the same requests under other settings |
//! | `explain/` | explanations: owners, causes, leaks, steps |
//! | `report.rs` | the report of a command, from which the texts, the JSON and the page are made |
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
