//! Profiler scopes, matched to events by time: [`Annotation`].

use super::{MaybeU64, TextId};

/// Whether a scope begins or ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// The scope begins.
    Start,
    /// The scope ends.
    End,
}

/// The start or the end of a scope of `torch.profiler.record_function`, such as `Optimizer.step#AdamW.step`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Annotation {
    /// The scope's name.
    pub name: TextId,
    /// Whether this is the start or the end.
    pub stage: Stage,
    /// The device that was current when the scope began or ended. The scope nevertheless applies to the whole program.
    pub device: Option<i32>,
    /// Microseconds since 1970, on the clock of the events.
    pub time_us: MaybeU64,
}
