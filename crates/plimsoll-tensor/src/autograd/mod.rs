//! Derivatives that free as they go, open to whoever wants to look or to change something.
//!
//! `saved.rs` is what an operation keeps for the way back, `engine.rs` the way back itself, `plan.rs` what it must
//! know of the graph before, `callbacks.rs` what runs at its end, `grad.rs` how it is asked for, `kept.rs` what a graph keeps alive, `grad_mode.rs` and `anomaly.rs` the switches. The
//! recorded operations and the hooks are in `tensor/`; derivatives stand beside their operators in `ops/`.

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
pub use kept::{Kept, kept_by};
pub use saved::saved_tensors_hooks;
pub(crate) use saved::{Saved, Unpacked, hooks_are_open};
