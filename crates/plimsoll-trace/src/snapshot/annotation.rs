//! Profiler scopes, matched to events by time: [`Annotation`].

use super::{MaybeU64, TextId};

/// Whether a scope begins or ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// It begins.
    Start,
    /// It ends.
    End,
}

/// One end of a scope of `torch.profiler.record_function`, `Optimizer.step#AdamW.step` for one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Annotation {
    /// The scope's name.
    pub name: TextId,
    /// Which end.
    pub stage: Stage,
    /// The current device; a scope applies to the whole program all the same.
    pub device: Option<i32>,
    /// Microseconds since 1970, on the clock of the events.
    pub time_us: MaybeU64,
}
