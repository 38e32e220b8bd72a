//! Activation checkpointing: the tensors that a piece of the network saves are dropped, and computed again in the backward
//! pass.
//!
//! Like `torch.utils.checkpoint` with `use_reentrant=False`: the piece is recorded like any other, so gradients, hooks,
//! [`autograd::grad`](crate::autograd::grad) and checkpoints inside it work, but each tensor that its operations would save
//! is replaced by a number. The first derivative that needs one runs the piece again, up to the last tensor that was saved.
//! Each value is dropped as soon as its derivative has read it. The second run uses the random numbers and autocast of the
//! first.
//!
//! The files:
//!
//! | file | contents |
//! |---|---|
//! | `first_run.rs` | the conditions of a function's first run |
//! | `piece.rs` | [`checkpoint`], [`is_recomputing`] |
//! | `output.rs` | [`recompute_output`]: the output of a piece is dropped and computed again, while the tensors that it saves are kept |
//! | `schedule.rs`, `chain.rs` | what is kept of a sequence and what is computed again; the bytes and seconds of its parts |
//! | `cheapest.rs`, `nested.rs`, `search.rs` | the search for a schedule: [`Schedule::of`] |
//! | `step.rs`, `profile.rs`, `sequence.rs` | sequences that are checkpointed within a budget: their functions, what each saves, [`Checkpointer`] |

mod chain;
mod cheapest;
mod first_run;
mod nested;
mod output;
mod piece;
mod profile;
mod schedule;
mod search;
mod sequence;
mod step;

pub use output::recompute_output;
pub use piece::{checkpoint, is_recomputing};
pub use schedule::{BlockCost, Budget, Schedule};
pub use sequence::{Checkpointer, checkpoint_sequential};
pub use step::{Sequence, Step};
