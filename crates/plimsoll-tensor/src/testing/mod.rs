//! Devices that expose mistakes, for the tests of programs and of this library.
//!
//! They compute what the host computes, bit for bit, in less convenient ways: [`LateConfig`] describes an asynchronous
//! device, and [`evict_at_random`] moves tensors off any device between operators.

mod captured;
mod evicting;
mod late;
mod streams;
mod work_queue;

pub use evicting::{Evictions, evict_at_random};
pub use late::LateConfig;
pub use streams::Pauses;
