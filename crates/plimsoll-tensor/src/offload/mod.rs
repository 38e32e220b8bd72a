//! [`OffloadActivations`] and [`OffloadQueue`]: tensors that a forward pass saves, and tensors that are used in turns,
//! wait in pinned host memory; their copies overlap with the computation.
//!
//! Copies to the host begin when an operation saves a tensor, on their own stream; copies back begin before a
//! derivative reads it, in the order in which the last backward pass read them. Which tensors leave, and when, depends
//! only on sizes, so a simulated device requests the memory that a GPU does.
//!
//! A file uses only files above it:
//!
//! | file | contents |
//! |---|---|
//! | `options.rs` | [`OffloadOptions`]; what a copy costs |
//! | `shared.rs` | streams of copies, and what the passes of one program have in common |
//! | `pass.rs` | one forward pass, and the backward pass that reads what it saved |
//! | `activations.rs` | [`OffloadActivations`], and the pass that runs on this thread |
//! | `queue.rs` | [`OffloadQueue`] |

mod activations;
mod options;
mod pass;
mod queue;
mod shared;

pub use activations::{OffloadActivations, stay};
pub(crate) use activations::{advance, leave, saved};
pub use options::OffloadOptions;
pub(crate) use options::{IN_FLIGHT, copy_seconds};
pub(crate) use pass::Ticket;
pub use queue::OffloadQueue;
