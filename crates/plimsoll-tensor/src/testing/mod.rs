//! Devices that make mistakes visible: for the tests of programs and of this library.
//!
//! They compute what the host computes, bit for bit, in less convenient ways: [`LateConfig`] is a device that computes
//! later.

mod late;
mod line;

pub use late::{LateConfig, Pauses};
