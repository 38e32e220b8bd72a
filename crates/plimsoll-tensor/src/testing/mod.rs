//! Devices that make mistakes visible: for the tests of programs and of this library.
//!
//! They compute what the host computes, bit for bit, in less convenient ways: [`LateConfig`] is a device that computes
//! later, [`evict_at_random`] lets tensors leave any device between operators.

mod captured;
mod evicting;
mod late;
mod streams;
mod work_queue;

pub use evicting::{Evictions, evict_at_random};
pub use late::LateConfig;
pub use streams::Pauses;
