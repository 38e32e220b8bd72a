//! What a snapshot means: who holds the memory, why it ran out, what would have helped.

mod leaks;
mod modules;
mod origin;
mod passes;
mod purpose;
mod steps;

pub use leaks::{Course, Growth, Leaks, Line, Pattern, Place, Verdict};
pub use origin::{Doing, Name, Origin, Origins};
pub use passes::{Pass, PassKind, Passes};
pub use purpose::{Purpose, Purposes, Why};
pub use steps::{Source, Steps};
