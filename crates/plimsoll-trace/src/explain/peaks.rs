//! The peaks of a program's phases and steps: [`Peaks`].
//!
//! The phase of a request comes from a scope that the program or PyTorch marked, or from a function in its stack with a
//! recognisable name (an evaluation, loading a checkpoint), or else from its pass. The peak of a phase is the highest
//! level after one of its requests. The peak of a scope is the highest level after any event inside it. Memory of other
//! phases that is live at the time counts too.

use std::cmp::Reverse;

use super::compare::{Change, ChangedLine, Comparison};
use super::fragmentation::DeviceAnalysis;
use super::origin::{Activity, Origins, is_library, is_package, is_python};
use super::passes::{PassKind, Passes};
use super::scopes::{Scopes, raise};
use super::steps::Steps;
use crate::snapshot::{Action, Frame, FrameId, Snapshot, StackId, TextId};
use crate::timeline::{Moment, Timeline};

/// The peaks of allocated bytes in each phase and step of one device's recording.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Peaks {
    /// Each phase that occurs, the highest first.
    pub phases: Vec<(Phase, Moment)>,
    /// Each step, in order. If there are requests after the last step, they form one more entry.
    pub steps: Vec<Moment>,
    /// The phase of the last request that failed.
    pub failed_in: Option<Phase>,
    /// For each entry of [`steps`](Self::steps), the highest moment of each [`PassKind`].
    by_pass: Vec<[Moment; PASSES.len()]>,
}

/// A phase of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// Building a model, or moving it to the device.
    Building,
    /// Loading or saving a checkpoint.
    Checkpoint,
    /// Evaluating or validating, recognised by the name of a function.
    Evaluation,
    /// A pass.
    Pass(PassKind),
    /// A scope of `torch.profiler.record_function`, by name: PyTorch's own or the program's.
    Scope(TextId),
}

impl Phase {
    /// All phases except scopes.
    const OWN: [Self; 6] = [
        Self::Building,
        Self::Checkpoint,
        Self::Evaluation,
        Self::Pass(PassKind::Forward),
        Self::Pass(PassKind::Backward),
        Self::Pass(PassKind::Optimizer),
    ];

    /// The index in [`OWN`](Self::OWN); `None` for a scope.
    fn place(self) -> Option<usize> {
        Self::OWN.into_iter().position(|own| own == self)
    }

    /// The name, in words.
    pub fn name(self, snapshot: &Snapshot) -> &str {
        match self {
            Self::Building => "building the model",
            Self::Checkpoint => "loading or saving a checkpoint",
            Self::Evaluation => "evaluation",
            Self::Pass(PassKind::Forward) => "forward",
            Self::Pass(PassKind::Backward) => "backward",
            Self::Pass(PassKind::Optimizer) => "optimizer step",
            Self::Scope(name) => snapshot.texts.get(name),
        }
    }
}

/// Why one step has a higher peak than another.
#[derive(Debug, Clone, PartialEq)]
pub struct Rise {
    /// The indices of the two steps in [`Peaks::steps`]; the second has the higher peak.
    pub steps: [usize; 2],
    /// The moments compared: the peak of the second step, and the peak of the first step within the same pass.
    pub moments: [Moment; 2],
    /// The pass that contains both moments.
    pub pass: PassKind,
    /// The changes by line, the largest first.
    pub lines: Vec<Change<ChangedLine>>,
}

impl Peaks {
    /// Finds the peaks in one walk over the events.
    pub fn of(
        snapshot: &Snapshot,
        timeline: &Timeline,
        origins: &Origins,
        passes: &Passes,
        steps: &Steps,
    ) -> Self {
        let trace = snapshot.trace(timeline.device);
        let named = named(snapshot, origins);
        let mut phases = [Moment::default(); Phase::OWN.len()];
        let mut scopes = Scopes::of(snapshot);
        let mut behind = passes.iter().peekable();
        let mut kind = None;
        let mut found = Self { by_pass: vec![Default::default(); steps.len() + 1], ..Self::default() };
        let mut step = 0;
        for (moment, event) in timeline.curve(trace).zip(trace) {
            while let Some(pass) = behind.next_if(|pass| Some(pass.first) <= moment.after) {
                kind = Some(pass.kind);
            }
            scopes.follow(event.time_us.get(), moment);
            if !matches!(event.action, Action::Alloc | Action::Oom) {
                continue;
            }
            let of_stack = event.stack.and_then(|stack| named.get(stack.index()).copied().flatten());
            if event.action == Action::Oom {
                let kind = passes.kind_of(origins.get(event.stack).activity, kind);
                found.failed_in = of_stack.or(kind.map(Phase::Pass));
            } else if let Some(kind) = kind {
                if let Some(place) = of_stack.unwrap_or(Phase::Pass(kind)).place() {
                    raise(&mut phases[place], moment);
                }
                while steps.boundaries.get(step).is_some_and(|&end| Some(end) < moment.after) {
                    step += 1;
                }
                raise(&mut found.by_pass[step][kind as usize], moment);
            }
        }
        let highest = scopes.close().into_iter().map(|(name, moment)| (Phase::Scope(name), moment));
        found.phases =
            Phase::OWN.into_iter().zip(phases).filter(|(_, moment)| moment.after.is_some()).collect();
        // The scopes of optimizers that PyTorch marks are already reported as passes if they contain requests.
        let is_told = |phase: Phase| phase.name(snapshot).starts_with("Optimizer.");
        found.phases.extend(highest.filter(|&(phase, _)| !is_told(phase)));
        found.phases.sort_by_key(|(phase, moment)| (Reverse(moment.level.allocated_bytes), *phase));
        if steps.is_empty() || found.by_pass.last().is_some_and(|last| highest_of(last).after.is_none()) {
            found.by_pass.pop();
        }
        found.steps = found.by_pass.iter().map(highest_of).collect();
        found
    }

    /// Why the second step is higher than the first, and the highest step higher than the second. A comparison is left
    /// out if the difference is at most 1 %.
    pub fn rises(&self, analysis: DeviceAnalysis<'_>) -> Vec<Rise> {
        let bytes = |moment: Moment| moment.level.allocated_bytes;
        // If several steps are equally high, the first of them counts.
        let highest = (0..self.steps.len()).max_by_key(|&step| (bytes(self.steps[step]), Reverse(step)));
        let pairs = [Some([0, 1]), highest.map(|highest| [1, highest])];
        let pairs = pairs.into_iter().flatten().filter(|&[from, to]| from < to && to < self.steps.len());
        let rises = pairs.filter_map(|steps @ [from, to]| {
            let peak = self.steps[to];
            let pass = PASSES.into_iter().find(|&pass| self.by_pass[to][pass as usize] == peak)?;
            let moments = [self.by_pass[from][pass as usize], peak];
            let [less, more] = moments.map(bytes);
            let is_more = more > bytes(self.steps[from]) && more - less.min(more) > less / 100;
            (is_more && moments[0].after.is_some()).then(|| {
                let lines = Comparison::after(analysis, analysis, moments.map(|moment| moment.after)).lines;
                Rise { steps, moments, pass, lines }
            })
        });
        rises.collect()
    }
}

/// The kinds of passes in order: the index of a kind is its value.
const PASSES: [PassKind; 3] = [PassKind::Forward, PassKind::Backward, PassKind::Optimizer];

/// The highest moment of a step.
fn highest_of(by_pass: &[Moment; PASSES.len()]) -> Moment {
    let mut highest = Moment::default();
    by_pass.iter().filter(|moment| moment.after.is_some()).for_each(|moment| raise(&mut highest, *moment));
    highest
}

/// For each stack, by its id, the phase that its functions' names show.
fn named(snapshot: &Snapshot, origins: &Origins) -> Vec<Option<Phase>> {
    let stacks = &snapshot.stacks;
    let frames = (0..stacks.frame_count()).filter_map(FrameId::new);
    let of_frames: Vec<Option<Phase>> = frames.map(|id| of_frame(snapshot, stacks.get_frame(id))).collect();
    let is_any = of_frames.iter().any(Option::is_some);
    let of_stack = |id: StackId| {
        let mut phases = stacks.frame_ids(id).filter(|_| is_any).filter_map(|frame| of_frames[frame.index()]);
        let is_built = origins.get(Some(id)).activity == Activity::Building;
        phases.next().or(is_built.then_some(Phase::Building))
    };
    (0..stacks.len()).filter_map(StackId::new).map(of_stack).collect()
}

fn of_frame(snapshot: &Snapshot, frame: &Frame) -> Option<Phase> {
    let (file, name) = (snapshot.texts.get(frame.filename), snapshot.texts.get(frame.name));
    let is_checkpoint = name == "load_state_dict"
        || file.ends_with("/torch/serialization.py")
        || file.contains("/torch/distributed/checkpoint/");
    let is_own = is_python(file) && (!is_library(file) || is_package(file));
    let evaluates = is_own && ["eval", "validat"].iter().any(|begin| name.starts_with(begin));
    match (is_checkpoint, evaluates) {
        (true, _) => Some(Phase::Checkpoint),
        (_, true) => Some(Phase::Evaluation),
        _ if is_own && name == "from_pretrained" => Some(Phase::Building),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_stand_at_their_numbers() {
        assert_eq!(PASSES.map(|pass| pass as usize), [0, 1, 2]);
    }

    #[test]
    fn a_scope_has_no_place_among_our_phases() {
        let mut snapshot = Snapshot::default();
        let name = snapshot.texts.intern("forward").unwrap();
        assert_eq!(Phase::Scope(name).place(), None);
        assert_eq!(Phase::Pass(PassKind::Optimizer).place(), Some(5));
    }
}
