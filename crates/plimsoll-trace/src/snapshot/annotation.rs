//! Scopes of the program, by time: [`Annotation`].

use super::{MaybeU64, TextId};

/// Which end of a scope.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// It was entered.
    Start,
    /// It was left.
    End,
}

/// One end of a scope of `torch.profiler.record_function`, `Optimizer.step#AdamW.step` for one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Annotation {
    /// The scope's name.
    pub name: TextId,
    /// Which end.
    pub stage: Stage,
    /// The device that was current; a scope is of the whole program all the same.
    pub device: Option<i32>,
    /// Microseconds since 1970, on the clock of the events.
    pub time_us: MaybeU64,
}
