//! The passes of a training program, found from its requests: forward, backward and the optimizer step. [`Passes`] has
//! the pass of each event.
//!
//! A request belongs to the pass that its stack shows. PyTorch runs the backward pass on a thread without Python. So in
//! a recording with only Python frames, requests without frames belong to the backward pass.

use super::compiler;
use super::origin::{Activity, Origins};
use crate::snapshot::{Action, Event, EventIndex, Snapshot, Stage};
use crate::timeline::Life;

/// One pass: consecutive requests of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pass {
    /// The kind of pass.
    pub kind: PassKind,
    /// The first request of the pass.
    pub first: EventIndex,
    /// The last request of the pass.
    pub last_request: EventIndex,
    /// The last event before the next pass. That pass begins with its first request or, for an optimizer step whose
    /// start is recorded, with that start.
    pub last: EventIndex,
}

/// The kind of pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PassKind {
    /// The forward pass, and everything that is not in one of the other passes.
    Forward,
    /// The backward pass, which computes derivatives.
    Backward,
    /// The optimizer step.
    Optimizer,
}

/// The passes of one trace, in order.
#[derive(Debug, Clone, Default)]
pub struct Passes {
    passes: Vec<Pass>,
    /// The indices of the backward passes.
    backward: Vec<usize>,
    /// The last request of each recomputation of activations by a checkpoint.
    recomputed: Vec<EventIndex>,
    /// The requests that failed.
    failures: Vec<EventIndex>,
    /// Whether requests without frames belong to the backward pass.
    python_only: bool,
}

impl Passes {
    /// Reads the trace's requests in order, and the annotations that mark the start of optimizer steps.
    pub fn of(snapshot: &Snapshot, trace: &[Event], origins: &Origins) -> Self {
        let activity = |event: &Event| origins.get(event.stack).activity;
        let in_compiler = compiler::in_compiler(snapshot);
        let compiles = |event: &Event| event.stack.is_some_and(|stack| in_compiler[stack.index()]);
        let found = Self { python_only: is_python_only(trace, origins), ..Self::default() };
        let mut optimizer_begins = optimizer_begins(snapshot).into_iter().peekable();
        let mut passes: Vec<Pass> = Vec::new();
        let (mut failures, mut recomputed) = (Vec::new(), Vec::new());
        let mut recomputing = None;
        for (index, event) in (0..).map_while(EventIndex::new).zip(trace) {
            let now = event.time_us.get();
            let begins = optimizer_begins.next_if(|&begin| now.is_some_and(|now| now >= begin)).is_some();
            let activity = activity(event);
            if event.action == Action::Alloc && activity != Activity::Workspace {
                let before =
                    std::mem::replace(&mut recomputing, (activity == Activity::Recomputing).then_some(index));
                recomputed.extend(before.filter(|_| recomputing.is_none()));
            }
            let kind = match (event.action, activity) {
                (Action::Oom, _) => {
                    failures.push(index);
                    None
                }
                // A compiler that runs during a pass counts as part of the pass.
                (Action::Alloc, _) if compiles(event) => passes.last().map(|pass| pass.kind),
                (Action::Alloc, activity) => found.kind_of(activity, passes.last().map(|pass| pass.kind)),
                _ => None,
            };
            let kind = kind.or(begins.then_some(PassKind::Optimizer));
            if let Some(kind) = kind
                && passes.last().is_none_or(|pass| pass.kind != kind)
            {
                passes.push(Pass { kind, first: index, last_request: index, last: index });
            }
            if let Some(pass) = passes.last_mut() {
                pass.last = index;
                if kind.is_some() {
                    pass.last_request = index;
                }
            }
            while optimizer_begins.next_if(|&begin| now.is_some_and(|now| now >= begin)).is_some() {}
        }
        let is_backward = |&place: &usize| passes[place].kind == PassKind::Backward;
        let backward = (0..passes.len()).filter(is_backward).collect();
        recomputed.extend(recomputing);
        Self { passes, backward, recomputed, failures, ..found }
    }

    /// The pass that a request's stack shows; `before` is the pass before it.
    pub(super) fn kind_of(&self, activity: Activity, before: Option<PassKind>) -> Option<PassKind> {
        match activity {
            Activity::Backward | Activity::Recomputing | Activity::Accumulating => Some(PassKind::Backward),
            Activity::Unknown if self.python_only => Some(PassKind::Backward),
            Activity::OptimizerStep | Activity::OptimizerState => Some(PassKind::Optimizer),
            Activity::Workspace | Activity::Gathering => before,
            Activity::Unknown | Activity::Forward | Activity::Building | Activity::Bucketing => {
                Some(PassKind::Forward)
            }
        }
    }

    /// All passes, in order.
    pub fn iter(&self) -> impl Iterator<Item = &Pass> {
        self.passes.iter()
    }

    /// The end of each backward pass, in order: the start of the optimizer step that follows, or else the pass's last
    /// request. By then, the pass's gradients exist.
    pub fn backward_ends(&self) -> impl Iterator<Item = EventIndex> + '_ {
        let behind = self.passes.iter().skip(1).map(Some).chain([None]);
        let passes = self.passes.iter().zip(behind).filter(|(pass, _)| pass.kind == PassKind::Backward);
        passes.map(|(pass, behind)| match behind {
            Some(next) if next.kind == PassKind::Optimizer => next.first,
            _ => pass.last_request,
        })
    }

    /// The index of the pass that contains an event; `None` before the first request.
    pub(super) fn at(&self, event: EventIndex) -> Option<usize> {
        self.passes.partition_point(|pass| pass.first <= event).checked_sub(1)
    }

    /// The pass that contains an event; `None` before the first request.
    pub(super) fn pass_at(&self, event: EventIndex) -> Option<Pass> {
        self.at(event).map(|place| self.passes[place])
    }

    /// Whether this is the last pass of the trace.
    pub(super) fn is_last(&self, pass: &Pass) -> bool {
        self.passes.last() == Some(pass)
    }

    /// The kind of the pass that contains an event; `None` before the first request.
    pub fn kind_at(&self, event: EventIndex) -> Option<PassKind> {
        self.at(event).map(|place| self.passes[place].kind)
    }

    /// Whether an event is in a backward pass.
    pub fn is_backward(&self, event: EventIndex) -> bool {
        self.kind_at(event) == Some(PassKind::Backward)
    }

    /// Whether a block that was requested in a pass is freed before the pass's last request.
    pub fn is_freed_within(&self, life: &Life, born: EventIndex) -> bool {
        let pass = self.at(born).map(|place| self.passes[place]);
        life.freed.zip(pass).is_some_and(|(freed, pass)| freed <= pass.last_request)
    }

    /// Whether a block that was requested in a pass is freed before the next pass. After the last pass, a program frees
    /// everything, so in the last pass, the block must be freed before the pass's last request.
    pub fn is_freed_before_next(&self, life: &Life, born: EventIndex) -> bool {
        let Some((freed, place)) = life.freed.zip(self.at(born)) else { return false };
        let pass = self.passes[place];
        freed <= if place + 1 < self.passes.len() { pass.last } else { pass.last_request }
    }

    /// Whether a block is freed in a later backward pass than the next one, and before an optimizer step. The next one computes
    /// gradients inside the forward pass, as a chunked loss or a gradient penalty does.
    pub(super) fn is_freed_in_later_backward(&self, life: &Life, born: EventIndex) -> bool {
        let Some((freed, first)) = life.freed.zip(self.at(born)) else { return false };
        let Some(last) = self.at(freed) else { return false };
        let between = self.passes.get(first..=last).unwrap_or_default();
        let is_optimizer = |pass: &Pass| pass.kind == PassKind::Optimizer;
        let pass = self.passes[last];
        pass.kind == PassKind::Backward && freed <= pass.last_request && !between.iter().any(is_optimizer)
    }

    /// The first backward pass after an event.
    pub fn next_backward(&self, event: EventIndex) -> Option<Pass> {
        let behind = self.backward.partition_point(|&place| self.passes[place].first <= event);
        self.backward.get(behind).map(|&place| self.passes[place])
    }

    /// If an event is in a recomputation by a checkpoint, the last request of this recomputation.
    pub(super) fn recomputed_until(&self, event: EventIndex) -> Option<EventIndex> {
        self.recomputed.get(self.recomputed.partition_point(|&end| end < event)).copied()
    }

    /// The first failed request.
    pub(super) fn first_failure(&self) -> Option<EventIndex> {
        self.failures.first().copied()
    }

    /// The first failed request after an event.
    pub fn failure_behind(&self, event: EventIndex) -> Option<EventIndex> {
        self.failures.get(self.failures.partition_point(|&failure| failure <= event)).copied()
    }
}

/// Whether requests without frames belong to the backward pass: most requests have frames, and none has C++ frames.
fn is_python_only(trace: &[Event], origins: &Origins) -> bool {
    let asks = || trace.iter().filter(|event| event.action == Action::Alloc);
    let bare = asks().filter(|event| origins.get(event.stack).activity == Activity::Unknown).count();
    !origins.has_native() && bare * 20 < asks().count() * 19
}

/// The start times of optimizer steps in microseconds, ascending.
fn optimizer_begins(snapshot: &Snapshot) -> Vec<u64> {
    let begins = snapshot.annotations.iter().filter(|annotation| annotation.stage == Stage::Start);
    let of_optimizer = begins.filter(|begin| snapshot.texts.get(begin.name).starts_with("Optimizer.step#"));
    let mut times: Vec<u64> = of_optimizer.filter_map(|begin| begin.time_us.get()).collect();
    times.sort_unstable();
    times
}
