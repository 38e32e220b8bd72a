//! The steps of a program: [`Steps`]. A step is the unit that repeats: a training step with its optimizer, a batch of
//! an evaluation, a token of a generation.
//!
//! Three kinds of evidence show where a step ends, the most reliable first: scopes of the profiler, the optimizer or
//! the program; optimizer and backward passes; and requests of one line (or, without stacks, of one size) at regular
//! intervals (`periodic.rs`). Batches with accumulated gradients form one step if the optimizer is visible in the
//! recording. An evaluation between two steps belongs to the second.
mod periodic;

use std::collections::BTreeMap;

use super::compiler;
use super::modules::in_modules;
use super::origin::Origins;
use super::passes::{Pass, PassKind, Passes};
use crate::snapshot::{Action, Annotation, Event, EventIndex, HOST_DEVICE, Snapshot, StackId, Stage, TextId};

/// The ends of the steps in one device's trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Steps {
    /// The last event of each step, in ascending order. The first step begins with the recording and includes
    /// everything before it. Events after the last step belong to no step.
    pub boundaries: Vec<EventIndex>,
    /// How the steps were found.
    pub source: Source,
    /// The confidence, in the words of [`Why::confidence`](super::Why::confidence).
    pub confidence: &'static str,
}

/// How steps were found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// No steps were found.
    Nothing,
    /// The scopes `ProfilerStep#N`.
    ProfilerSteps,
    /// The scopes `ProfilerStep#N` in a recording of our own runtime, which writes its step marks in this form.
    OwnSteps,
    /// The scopes of this name, which PyTorch sets around optimizer steps.
    OptimizerSteps(TextId),
    /// The program's own scopes of this name.
    Scopes(TextId),
    /// The optimizer's requests.
    OptimizerPasses,
    /// The backward pass's requests.
    BackwardPasses,
    /// Requests at this place, outside any module, at regular intervals.
    Requests(StackId),
    /// Requests of this many bytes at regular intervals; the recording has no stacks.
    Sizes(u64),
}

impl Steps {
    /// Finds the steps of a device ([`HOST_DEVICE`] is pinned host memory).
    pub fn of(snapshot: &Snapshot, device: i32, origins: &Origins, passes: &Passes) -> Self {
        let trace = if device == HOST_DEVICE { &snapshot.host_trace } else { snapshot.trace(device) };
        let is_inside = in_modules(snapshot);
        // Steps that end long before the end of the recording do not describe the program.
        let is_good = |steps: &Self| {
            let last = steps.boundaries.last().filter(|_| steps.len() > 1);
            last.is_some_and(|end| end.index() * 2 >= trace.len())
        };
        let found = marked(snapshot, trace).filter(is_good);
        let found = found.or_else(|| by_passes(passes, trace, &is_inside).filter(is_good));
        let found = found.or_else(|| {
            periodic::find(trace, origins, &is_inside, &compiler::in_compiler(snapshot)).filter(is_good)
        });
        let found = found.or_else(|| only(snapshot, trace, passes, &is_inside));
        found.unwrap_or(Self { boundaries: Vec::new(), source: Source::Nothing, confidence: "unknown" })
    }

    /// The number of steps that ended within the recording.
    pub fn len(&self) -> usize {
        self.boundaries.len()
    }

    /// Whether no step was found.
    pub fn is_empty(&self) -> bool {
        self.boundaries.is_empty()
    }

    /// The index of the step that contains an event; [`len`](Self::len) after the last.
    pub fn step_of(&self, event: EventIndex) -> usize {
        self.boundaries.partition_point(|&end| end < event)
    }

    /// The way in which steps were found, as the end of the sentence "a step ends where …".
    pub fn evidence(&self) -> &'static str {
        match self.source {
            Source::Nothing => "nothing shows it",
            Source::ProfilerSteps => "the profiler's step ends",
            Source::OwnSteps => "Device::mark_step was called",
            Source::OptimizerSteps(_) => "the scope of the optimizer's step ends",
            Source::Scopes(_) => "a repeating scope of the program ends",
            Source::OptimizerPasses => "the optimizer's requests end",
            Source::BackwardPasses => "the backward pass's requests end",
            Source::Requests(_) => "a line outside the model allocates again, at regular intervals",
            Source::Sizes(_) => "a request of one size repeats, at regular intervals",
        }
    }
}

/// The writer of the scopes `ProfilerStep#N`.
fn marks(snapshot: &Snapshot) -> Source {
    if snapshot.is_own() { Source::OwnSteps } else { Source::ProfilerSteps }
}

/// The step of a recording with a single step. Nothing repeats, but a scope or a pass shows the step.
fn only(snapshot: &Snapshot, trace: &[Event], passes: &Passes, is_inside: &[bool]) -> Option<Steps> {
    let name = |id: TextId| snapshot.texts.get(id);
    let scopes = [("ProfilerStep#", marks(snapshot))];
    let optimizer =
        snapshot.annotations.iter().map(|it| it.name).find(|&id| name(id).starts_with("Optimizer.step#"));
    let optimizer = optimizer.map(|id| ("Optimizer.step#", Source::OptimizerSteps(id)));
    let mut marked = scopes.into_iter().chain(optimizer).map(|(start, source)| {
        let ends = ends_of(&snapshot.annotations, |id| name(id).starts_with(start));
        Steps { boundaries: last_events(trace, ends), source, confidence: "certain" }
    });
    let is_one = |steps: &Steps| steps.len() == 1;
    marked.find(is_one).or_else(|| by_passes(passes, trace, is_inside).filter(is_one))
}

/// Steps from scopes: the profiler's, the optimizer's, or those scopes of the program that cover most of the time.
fn marked(snapshot: &Snapshot, trace: &[Event]) -> Option<Steps> {
    let name = |id: TextId| snapshot.texts.get(id);
    let is_profiler = |id: TextId| name(id).starts_with("ProfilerStep#");
    let all = &snapshot.annotations;
    let profiler = ends_of(all, is_profiler);
    if profiler.len() > 1 {
        return Some(Steps {
            boundaries: last_events(trace, profiler),
            source: marks(snapshot),
            confidence: "certain",
        });
    }
    let scopes = Scope::all(all);
    let optimizer = scopes.iter().filter(|(id, _)| name(**id).starts_with("Optimizer.step#"));
    // If there are several optimizers, the optimizer with the most steps ends the step; of equals, the last to run.
    let optimizer = optimizer.max_by_key(|(_, scope)| (scope.count, scope.last_us));
    if let Some((&id, _)) = optimizer.filter(|(_, scope)| scope.count > 1) {
        let boundaries = last_events(trace, ends_of(all, |it| it == id));
        return Some(Steps { boundaries, source: Source::OptimizerSteps(id), confidence: "certain" });
    }
    let own = || {
        let is_own = |id: TextId| {
            let name = name(id);
            !name.starts_with("Optimizer.") && !is_profiler(id) && !compiler::is_scope(name)
        };
        scopes.iter().filter(move |(id, scope)| is_own(**id) && scope.count > 2)
    };
    // Scopes of epochs cover as much time as the scopes of their steps, but there are fewer of them.
    let most_us = own().map(|(_, scope)| scope.inside_us).max()?;
    let wide = own().filter(|(_, scope)| scope.inside_us >= most_us / 5 * 4);
    let (&id, _) = wide.max_by_key(|(_, scope)| (scope.count, scope.inside_us))?;
    Some(Steps {
        boundaries: last_events(trace, ends_of(all, |it| it == id)),
        source: Source::Scopes(id),
        confidence: "likely",
    })
}

/// All scopes of one name.
#[derive(Default)]
struct Scope {
    /// The number of such scopes that ended.
    count: usize,
    /// Microseconds spent in these scopes.
    inside_us: u64,
    /// The time when the last of these scopes ended.
    last_us: u64,
}

impl Scope {
    fn all(annotations: &[Annotation]) -> BTreeMap<TextId, Self> {
        let mut scopes: BTreeMap<TextId, Self> = BTreeMap::new();
        let mut open: BTreeMap<TextId, u64> = BTreeMap::new();
        for annotation in annotations {
            let Some(time_us) = annotation.time_us.get() else { continue };
            match annotation.stage {
                Stage::Start => {
                    open.insert(annotation.name, time_us);
                }
                Stage::End => {
                    let scope = scopes.entry(annotation.name).or_default();
                    let began_us = open.remove(&annotation.name).unwrap_or(time_us);
                    scope.count += 1;
                    scope.inside_us += time_us.saturating_sub(began_us);
                    scope.last_us = scope.last_us.max(time_us);
                }
            }
        }
        scopes
    }
}

/// The end times of scopes, in ascending order.
fn ends_of(annotations: &[Annotation], is_one: impl Fn(TextId) -> bool) -> Vec<u64> {
    let ends = annotations.iter().filter(|it| it.stage == Stage::End && is_one(it.name));
    let mut ends: Vec<u64> = ends.filter_map(|it| it.time_us.get()).collect();
    ends.sort_unstable();
    ends
}

/// The last event before each time, without duplicates. Times before the first event are left out.
fn last_events(trace: &[Event], moments_us: Vec<u64>) -> Vec<EventIndex> {
    let mut moments = moments_us.into_iter().peekable();
    let mut found: Vec<EventIndex> = Vec::new();
    let mut last = None;
    let mut end_of = |last: Option<EventIndex>| {
        let is_new = last > found.last().copied();
        found.extend(last.filter(|_| is_new));
    };
    for (index, event) in (0..).map(EventIndex::new).zip(trace) {
        let Some(time_us) = event.time_us.get() else { continue };
        while moments.next_if(|&moment_us| moment_us < time_us).is_some() {
            end_of(last);
        }
        last = index;
    }
    if moments.peek().is_some() {
        end_of(last);
    }
    found
}

/// Steps from passes: the optimizer's, if it requests memory in every step, or else the backward passes.
fn by_passes(passes: &Passes, trace: &[Event], is_inside: &[bool]) -> Option<Steps> {
    let optimizer = ends_of_passes(passes, |pass| pass.kind == PassKind::Optimizer);
    let backward = ends_of_passes(passes, |pass| pass.kind == PassKind::Backward);
    if optimizer.len() > 1 {
        let within = |from: EventIndex, to: EventIndex| {
            backward.partition_point(|&end| end < to) - backward.partition_point(|&end| end < from)
        };
        let most = optimizer.windows(2).map(|pair| within(pair[0], pair[1])).max();
        let last = *optimizer.last()?;
        let after = backward.len() - backward.partition_point(|&end| end < last);
        if Some(after) <= most {
            return Some(Steps {
                boundaries: optimizer,
                source: Source::OptimizerPasses,
                confidence: "likely",
            });
        }
    }
    // A step begins with a forward pass. Recomputation within the backward pass has only stacks inside modules.
    let is_anew = |pass: &Pass| {
        let mut asks = trace[pass.first.index()..=pass.last.index()].iter();
        asks.any(|event| {
            event.action == Action::Alloc && event.stack.is_none_or(|stack| !is_inside[stack.index()])
        })
    };
    let forward = |pass: &&Pass| pass.kind == PassKind::Forward;
    let any_anew = passes.iter().filter(forward).skip(1).any(is_anew);
    let mut boundaries: Vec<EventIndex> = Vec::new();
    let mut is_behind_backward = false;
    for pass in passes.iter() {
        match pass.kind {
            PassKind::Forward => is_behind_backward &= any_anew && !is_anew(pass),
            // The step continues: this pass belongs to it, even if it is an optimizer pass that exists only in the
            // first step.
            PassKind::Backward | PassKind::Optimizer if is_behind_backward => {
                boundaries.pop();
                boundaries.push(pass.last);
            }
            PassKind::Backward => {
                boundaries.push(pass.last);
                is_behind_backward = true;
            }
            PassKind::Optimizer => {}
        }
    }
    Some(Steps { boundaries, source: Source::BackwardPasses, confidence: "likely" })
}

fn ends_of_passes(passes: &Passes, is_one: impl Fn(&Pass) -> bool) -> Vec<EventIndex> {
    passes.iter().filter(|pass| is_one(pass)).map(|pass| pass.last).collect()
}
