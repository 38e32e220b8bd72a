//! The forward line to which a request in the backward pass belongs: [`ForwardLines`].
//!
//! PyTorch runs the backward pass on a thread without Python. But the engine runs derivatives (backward functions) in
//! the reverse order of their operators, and each derivative frees the tensors that its operator saved. So the saved
//! blocks show how far the pass has come: in forward order, the current operator is no later than the operator of the
//! oldest freed block, and no earlier than the operator of the newest block that is still saved. Between these bounds,
//! there are two clues. A C++ frame names the derivative (`MmBackward0`): the nearest operator with that name is
//! chosen. Without C++ frames, sizes are the clue: a gradient has the size of its tensor, and belongs to the operator
//! that runs after the operator that made the tensor.
//!
//! In anomaly mode, PyTorch records the forward stack itself (`forward_frames`).
//!
//! `docs/measurements/explain.md` has the measured accuracy.

use std::collections::{BTreeMap, BTreeSet};

use plimsoll_alloc::Category;

use super::forward_line::{ForwardLine, FoundBy};
use super::fragmentation::DeviceAnalysis;
use super::origin::{Activity, Name};
use super::passes::{Pass, PassKind, Passes};
use crate::snapshot::{Action, EventIndex, LifeIndex, Snapshot, StackId};
use crate::timeline::Life;

/// The forward lines of requests in backward passes, by event.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ForwardLines(BTreeMap<EventIndex, ForwardLine>);

/// The number of passes before a backward pass that may have saved tensors for it. If two models are trained in
/// alternation, a forward pass is two passes before its backward pass.
const PASSES_BEFORE: usize = 6;
/// The number of operators that are searched beyond the bounds and between them. In real recordings, no derivative is
/// farther away; without this limit, a forged file could require searching millions.
const BEYOND: usize = 4;
const MOST_BETWEEN: usize = 1 << 10;
/// The most requests that the derivative of one operator makes. If the order alone would assign more to one operator,
/// the pass does not free memory operator by operator. Compiled code, for example, is a single derivative.
const MOST_OF_ONE: usize = 12;

impl ForwardLines {
    /// Finds the forward lines of those requests in a backward pass that have no Python line. Other requests are left
    /// out. This visits each backward pass that contains such a request, and the passes before it.
    pub(super) fn of(
        analysis: DeviceAnalysis<'_>,
        passes: &Passes,
        wanted: impl Iterator<Item = EventIndex>,
    ) -> Self {
        let trace = analysis.snapshot.trace(analysis.timeline.device);
        let recorded = |event: EventIndex| analysis.origins.get(trace.get(event.index())?.stack).forward;
        let (known, wanted): (BTreeSet<_>, BTreeSet<_>) =
            wanted.partition(|&event| recorded(event).is_some());
        let all: Vec<Pass> = passes.iter().copied().collect();
        let mut found: BTreeMap<_, _> =
            known.into_iter().filter_map(|at| Some((at, recorded(at)?))).collect();
        for (place, pass) in all.iter().enumerate().filter(|(_, pass)| pass.kind == PassKind::Backward) {
            let here: Vec<EventIndex> = wanted.range(pass.first..=pass.last).copied().collect();
            if let Some(&last) = here.last() {
                let before = &all[place.saturating_sub(PASSES_BEFORE)..place];
                let mut lines = Vec::new();
                let mut requests: BTreeMap<usize, usize> = BTreeMap::new();
                Sweep::new(analysis, *pass, before).run(last, |event, place, line| {
                    *requests.entry(place).or_default() += 1;
                    lines.push((event, place, line));
                });
                let is_sure = |place: usize, by| by == FoundBy::Operator || requests[&place] <= MOST_OF_ONE;
                let lines = lines.into_iter().filter(|(event, place, line)| {
                    here.binary_search(event).is_ok() && is_sure(*place, line.by)
                });
                found.extend(lines.map(|(event, _, line)| (event, line)));
            }
        }
        Self(found)
    }

    /// The forward line of the request at an event.
    pub fn get(&self, event: Option<EventIndex>) -> Option<ForwardLine> {
        self.0.get(&event?).copied()
    }
}

/// A request of the forward pass.
struct Op {
    line: ForwardLine,
    bytes: u64,
    stack: Option<StackId>,
    /// The next operator that reads this tensor, if such an operator has run. Its derivative allocates a gradient of
    /// this tensor's size.
    consumer: usize,
}

/// One backward pass, which visits the operators in reverse order.
struct Sweep<'a> {
    analysis: DeviceAnalysis<'a>,
    pass: Pass,
    ops: Vec<Op>,
    /// The events at which the pass frees saved blocks, with the indices of their operators.
    frees: BTreeSet<(EventIndex, usize)>,
    /// The indices of operators whose saved blocks are not freed yet.
    saved: BTreeSet<usize>,
    /// The derivatives of all operators after this index have run.
    highest: usize,
    /// The operator of the last request.
    at: usize,
    by: FoundBy,
    /// The tensors from this index onward have gradients.
    derived: usize,
    /// The names of operators, by stack.
    names: BTreeMap<StackId, Vec<Name>>,
}

impl<'a> Sweep<'a> {
    fn new(analysis: DeviceAnalysis<'a>, pass: Pass, before: &[Pass]) -> Self {
        let mut sweep = Self {
            analysis,
            pass,
            ops: Vec::new(),
            frees: BTreeSet::new(),
            saved: BTreeSet::new(),
            highest: 0,
            at: 0,
            by: FoundBy::Order,
            derived: 0,
            names: BTreeMap::new(),
        };
        let Some(first) = before.first() else { return sweep };
        let latest = before.last().filter(|pass| pass.kind == PassKind::Forward);
        for nth in sweep.born(first.first, pass.first) {
            let life = &analysis.timeline.lives[nth];
            let is_freed_here = life.freed.is_some_and(|freed| (pass.first..=pass.last).contains(&freed));
            let is_latest = latest.is_some_and(|latest| life.born >= Some(latest.first));
            if (is_freed_here || is_latest) && analysis.origins.get(life.stack).activity == Activity::Forward
            {
                sweep.push(nth);
            }
        }
        sweep.restart();
        sweep
    }

    /// The indices of the blocks that are allocated in a range of events.
    fn born(&self, from: EventIndex, to: EventIndex) -> std::ops::Range<usize> {
        let lives = &self.analysis.timeline.lives;
        let before = |event| lives.partition_point(|life| life.born < Some(event));
        before(from)..before(to)
    }

    /// Adds a request as the last operator of the forward pass, unless it is scratch memory.
    fn push(&mut self, nth: usize) {
        let analysis = self.analysis;
        let life = &analysis.timeline.lives[nth];
        let origin = analysis.origins.get(life.stack);
        let is_workspace = LifeIndex::new(nth)
            .is_some_and(|index| analysis.purposes.get(index).category == Some(Category::Workspace));
        // A block that the very next event frees is scratch memory of an operator.
        let is_scratch =
            life.freed.zip(life.born).is_some_and(|(freed, born)| freed.index() == born.index() + 1);
        let Some(frame) = origin.line.filter(|_| !is_workspace && !is_scratch) else { return };
        let place = self.ops.len();
        let bytes = asked(life);
        // Additional outputs of an operator, such as masks and statistics, have the operator's stack but different
        // sizes.
        let consumes = |op: &Op| op.stack != life.stack || op.bytes == bytes;
        for op in self.ops.iter_mut().rev().take(BEYOND).filter(|op| op.consumer == usize::MAX) {
            if consumes(op) {
                op.consumer = place;
            }
        }
        let line = ForwardLine { frame, package_line: origin.package_line, by: FoundBy::Order };
        self.ops.push(Op { line, bytes, stack: life.stack, consumer: usize::MAX });
        // A tensor that is freed after the last derivative was not saved for any derivative, for example a scaled loss
        // that no variable keeps.
        let derives = self.pass.first..=self.pass.last_request;
        if let Some(freed) = life.freed.filter(|freed| derives.contains(freed)) {
            self.frees.insert((freed, place));
            self.saved.insert(place);
        }
    }

    /// Starts at the last operator.
    fn restart(&mut self) {
        let last = self.ops.len().saturating_sub(1);
        (self.highest, self.at, self.derived) = (last, last, self.ops.len());
    }

    /// Follows the pass up to an event, and reports the forward line of each request that has no line of its own.
    fn run(&mut self, until: EventIndex, mut tell: impl FnMut(EventIndex, usize, ForwardLine)) {
        let analysis = self.analysis;
        let trace = analysis.snapshot.trace(analysis.timeline.device);
        for index in self.pass.first.index()..=until.index().min(self.pass.last.index()) {
            let (Some(now), Some(event)) = (EventIndex::new(index), trace.get(index)) else { break };
            while let Some(&(freed, place)) = self.frees.first().filter(|(freed, _)| *freed <= now) {
                self.frees.remove(&(freed, place));
                self.saved.remove(&place);
                self.highest = self.highest.min(place);
            }
            if !matches!(event.action, Action::Alloc | Action::Oom) {
                continue;
            }
            let origin = analysis.origins.get(event.stack);
            if origin.activity == Activity::Recomputing {
                if let Some(life) = analysis.timeline.life_of(now) {
                    self.push(life.index());
                    self.restart();
                }
                continue;
            }
            if origin.line.is_some() || self.ops.is_empty() {
                continue;
            }
            let Some(place) = self.place_of(event.size, event.stack, origin.operator) else { continue };
            self.at = place;
            tell(now, place, ForwardLine { by: self.by, ..self.ops[place].line });
        }
    }

    /// The operator to which a request in the backward pass belongs; `None` if the request certainly belongs to none of
    /// the operators that were found.
    fn place_of(&mut self, bytes: u64, stack: Option<StackId>, operator: Option<Name>) -> Option<usize> {
        let lowest = self.saved.last().copied().unwrap_or(0);
        let highest = self.at.min(self.highest).max(lowest);
        let snapshot = self.analysis.snapshot;
        let node = operator.and_then(|name| derivative(name.of(snapshot)));
        let is_named = node.is_some();
        if let Some(node) = node {
            let between = (lowest..=highest).rev().take(MOST_BETWEEN);
            let behind = highest + 1..(highest + BEYOND).min(self.ops.len());
            let before = (lowest.saturating_sub(BEYOND)..lowest).rev();
            for place in between.chain(behind).chain(before) {
                if self.calls(place, node) {
                    self.by = FoundBy::Operator;
                    return Some(place);
                }
            }
            self.by = FoundBy::Order;
        } else if self.analysis.origins.has_native() && stack.is_some_and(|stack| stack != StackId::EMPTY) {
            // The request is for a sum over the broadcast dimensions of a gradient, or for a gradient that is kept. The
            // block belongs to the derivative that ran before it.
            return Some(highest);
        }
        let mut tensors = (0..self.derived.min(highest)).rev().take(MOST_BETWEEN);
        let of = tensors.find(|&place| {
            let Op { bytes: of, consumer, .. } = self.ops[place];
            of == bytes && (lowest..=highest).contains(&consumer)
        });
        match of {
            Some(tensor) => {
                self.derived = tensor;
                Some(self.ops[tensor].consumer)
            }
            // The derivative has a name, but no nearby operator has that name. So this is the derivative of a view, and
            // a view requests no memory. The operator that uses the view comes next, if there is a tensor that the view
            // may refer to.
            None if is_named => {
                let near = self.ops[..=highest].iter().rev();
                let is_viewed = near.clone().take(BEYOND + 1).any(|op| op.bytes >= bytes / 2)
                    || near.take(MOST_BETWEEN).any(|op| op.bytes == bytes);
                is_viewed.then_some(highest)
            }
            None => Some(highest),
        }
    }

    /// Whether the operator's stack contains the forward operator of this autograd node, such as `native_layer_norm`
    /// for `NativeLayerNorm`.
    fn calls(&mut self, place: usize, node: &str) -> bool {
        let snapshot = self.analysis.snapshot;
        let Some(stack) = self.ops[place].stack else { return false };
        let names = self.names.entry(stack).or_insert_with(|| operators(snapshot, stack));
        names.iter().any(|name| is_derivative_of(node, name.of(snapshot)))
    }
}

/// All operators of a stack.
fn operators(snapshot: &Snapshot, stack: StackId) -> Vec<Name> {
    let frames = snapshot.stacks.frames(stack);
    frames.filter_map(|frame| Name::of_operator(frame.name, snapshot.texts.get(frame.name))).collect()
}

/// Returns `Addmm` for `AddmmBackward0`.
fn derivative(name: &str) -> Option<&str> {
    let (node, number) = name.rsplit_once("Backward")?;
    (!node.is_empty() && number.chars().all(|char| char.is_ascii_digit())).then_some(node)
}

/// Whether a node such as `NativeLayerNorm` is the derivative of an operator such as `native_layer_norm`. `at::_ops`
/// may append the overload: `add_Tensor`.
fn is_derivative_of(node: &str, operator: &str) -> bool {
    let mut rest = operator.chars();
    for wanted in node.chars() {
        let Some(char) = rest.find(|&char| char != '_') else { return false };
        if !char.eq_ignore_ascii_case(&wanted) {
            return false;
        }
    }
    matches!(rest.next(), None | Some('_'))
}

fn asked(life: &Life) -> u64 {
    life.requested_bytes.get().unwrap_or(life.bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_derivative_is_named_after_its_operator_whatever_the_overload() {
        for (node, operator) in [
            ("Mm", "mm"),
            ("Add", "add_Tensor"),
            ("NativeLayerNorm", "native_layer_norm"),
            ("LogSoftmax", "_log_softmax"),
            ("ScaledDotProductEfficientAttention", "_scaled_dot_product_efficient_attention"),
            ("Relu", "relu_"),
        ] {
            assert!(is_derivative_of(node, operator), "{node} of {operator}");
        }
        for (node, operator) in [("Add", "addmm"), ("Mm", "m"), ("Softmax", "log_softmax"), ("Mul", "")] {
            assert!(!is_derivative_of(node, operator), "{node} is not of {operator}");
        }
    }

    #[test]
    fn only_nodes_of_autograd_are_derivatives() {
        assert_eq!(derivative("AddmmBackward0"), Some("Addmm"));
        assert_eq!(derivative("native_layer_norm_backward"), None);
        assert_eq!(derivative("Backward0"), None);
        assert_eq!(derivative("sum_dim_IntList"), None);
    }
}
