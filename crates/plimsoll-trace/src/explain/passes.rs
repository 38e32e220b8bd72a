//! The passes of a training program as its requests show them: forward, backward, the optimizer's step.
//! [`Passes`] tells in which an event lies.
//!
//! A request belongs to the pass that its stack shows. PyTorch's backward pass runs on a thread of its own, which
//! has no Python: in a recording of Python frames alone, requests without a frame are the backward pass's.

use super::origin::{Doing, Origins};
use crate::snapshot::{Action, Event, EventIndex};

/// One pass: requests of one kind with none of another kind between them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pass {
    /// Which.
    pub kind: PassKind,
    /// Its first request.
    pub first: EventIndex,
    /// The last event before another pass's first request.
    pub last: EventIndex,
}

/// Which pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PassKind {
    /// All that is not one of the others.
    Forward,
    /// Derivatives are computed.
    Backward,
    /// The optimizer makes its step.
    Optimizer,
}

/// The passes of one trace, in order.
#[derive(Debug, Clone, Default)]
pub struct Passes(Vec<Pass>);

impl Passes {
    /// Reads the trace's requests in order.
    pub fn of(trace: &[Event], origins: &Origins) -> Self {
        let asks = |event: &&Event| event.action == Action::Alloc;
        let bare = trace
            .iter()
            .filter(asks)
            .filter(|event| origins.get(event.stack).doing == Doing::Unknown)
            .count();
        let python_only = bare * 20 < trace.iter().filter(asks).count() * 19
            && !trace.iter().filter(asks).any(|event| origins.get(event.stack).doing == Doing::Backward);
        let mut passes: Vec<Pass> = Vec::new();
        for (index, event) in (0..).map_while(EventIndex::new).zip(trace) {
            if event.action == Action::Alloc {
                let kind = match origins.get(event.stack).doing {
                    Doing::Backward | Doing::Accumulating => PassKind::Backward,
                    Doing::Unknown if python_only => PassKind::Backward,
                    Doing::OptimizerStep | Doing::OptimizerState => PassKind::Optimizer,
                    Doing::Workspace => passes.last().map_or(PassKind::Forward, |pass| pass.kind),
                    Doing::Unknown | Doing::Forward | Doing::Building => PassKind::Forward,
                };
                if passes.last().is_none_or(|pass| pass.kind != kind) {
                    passes.push(Pass { kind, first: index, last: index });
                }
            }
            if let Some(pass) = passes.last_mut() {
                pass.last = index;
            }
        }
        Self(passes)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Pass> {
        self.0.iter()
    }

    /// The last events of the backward passes, in order.
    pub fn backward_ends(&self) -> impl Iterator<Item = EventIndex> + '_ {
        self.0.iter().filter(|pass| pass.kind == PassKind::Backward).map(|pass| pass.last)
    }

    /// The pass that an event lies in; `None` before the first request.
    fn at(&self, event: EventIndex) -> Option<usize> {
        self.0.partition_point(|pass| pass.first <= event).checked_sub(1)
    }

    /// Whether an event lies in a backward pass.
    pub fn is_backward(&self, event: EventIndex) -> bool {
        self.at(event).is_some_and(|place| self.0[place].kind == PassKind::Backward)
    }

    /// The last event of the pass that an event lies in.
    pub fn end_of(&self, event: EventIndex) -> EventIndex {
        self.at(event).map_or(event, |place| self.0[place].last)
    }

    /// The first request of the first backward pass behind an event.
    pub fn next_backward(&self, event: EventIndex) -> Option<EventIndex> {
        let behind = self.0.partition_point(|pass| pass.first <= event);
        let mut later = self.0[behind..].iter().filter(|pass| pass.kind == PassKind::Backward);
        later.next().map(|pass| pass.first)
    }
}
