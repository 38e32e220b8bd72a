//! Derivatives that free as they go.
//!
//! `saved.rs` is what an operation keeps for the way back, `engine.rs` the way back itself, `grad_mode.rs`
//! the switch. The recorded operations themselves are in `tensor.rs`; their derivatives stand beside the
//! operators in `ops/`.

mod engine;
mod grad_mode;
mod saved;

pub use engine::BackwardOptions;
pub use grad_mode::{NoGrad, is_grad_enabled, no_grad};
pub(crate) use saved::Saved;
