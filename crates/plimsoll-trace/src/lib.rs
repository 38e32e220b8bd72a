//! Recordings of PyTorch's allocator: read, replayed through ours, compared.
//!
//! [`input::open`] reads a memory snapshot of PyTorch's, whatever its wrapping, into a
//! [`snapshot::Snapshot`]; [`output::save`] writes one that PyTorch's viewer opens. [`timeline::Timeline`]
//! tells who held which block when, [`explain`] what that means, and [`render`] puts it before people.
//! [`conformance`] replays streams of requests and programs with all that PyTorch answered. This crate knows nothing of tensors, and prints nothing: what it finds is a value.

#![forbid(unsafe_code)]

pub mod conformance;
mod error;
pub mod explain;
mod grant;
pub mod input;
mod json;
pub mod output;
mod pickle;
pub mod render;
pub mod snapshot;
pub mod timeline;
mod torch;

pub use error::{SnapshotError, Why};
pub use torch::Sharing;
