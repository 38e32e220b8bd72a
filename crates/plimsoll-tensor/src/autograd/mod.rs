//! Derivatives that free as they go.
//!
//! `node.rs` holds one recorded operation and the trait of its derivative, `saved.rs` what it keeps for
//! the way back, `engine.rs` the way back itself, `grad_mode.rs` the switch. The derivatives stand beside
//! their operations in `ops/`.

mod engine;
mod grad_mode;
mod node;
mod saved;

pub use engine::BackwardOptions;
pub(crate) use engine::backward;
pub use grad_mode::{NoGrad, is_grad_enabled, no_grad};
pub(crate) use node::{Backward, Edge, Grads, Node, link, link_view};
pub(crate) use saved::Saved;
