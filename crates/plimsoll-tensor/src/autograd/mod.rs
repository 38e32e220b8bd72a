//! Backward passes that free memory as they go, with hooks for inspecting and changing gradients.
//!
//! `saved.rs` has the tensors that an operation keeps for the backward pass, `engine.rs` the pass itself, `plan.rs` the walk
//! over the graph before it, `callbacks.rs` the functions that run at its end, `grad.rs` the functions that start it, `kept.rs` the list of memory that a graph keeps alive,
//! `grad_mode.rs` and `anomaly.rs` the modes. Recorded operations and hooks are in `tensor/`; derivatives are next to their
//! operators in `ops/`.

mod anomaly;
mod callbacks;
mod engine;
mod grad;
mod grad_mode;
mod kept;
mod plan;
mod saved;

pub use anomaly::detect_anomaly;
pub(crate) use anomaly::place;
pub use callbacks::queue_callback;
pub use grad::{BackwardOptions, GradOptions, backward, grad};
pub use grad_mode::{
    InferenceMode, NoGrad, enable_grad, inference_mode, is_grad_enabled, is_inference_mode_enabled, no_grad,
};
pub(crate) use grad_mode::{Recomputing, is_recomputing};
pub use kept::{Kept, SavedMemory, kept_by};
pub use saved::saved_tensors_hooks;
pub(crate) use saved::{
    Hooks, Saved, Unpacked, hooks_are_open, observe_seconds, observing, tensors_left, with_hooks,
};
