//! The kind of program that leaks in this way: [`Pattern`], inferred from the blocks that one step left allocated.

use std::collections::BTreeSet;

use super::rows::Rows;
use super::{Course, Line, Place, Verdict};
use crate::explain::modules::{in_modules, is_call};
use crate::explain::origin::{Activity, Name, Origin, Origins, is_library, is_python};
use crate::explain::purpose::Why;
use crate::explain::purposes::Purposes;
use crate::explain::steps::Steps;
use crate::snapshot::{Action, EventIndex, LifeIndex, Snapshot, StackId};
use crate::timeline::{Life, Timeline};

/// The pattern of a leak, or of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pattern {
    /// Each step keeps what its operators saved for a backward pass that never runs.
    GraphKept {
        /// The number of blocks that one step keeps.
        blocks: usize,
        /// The number of stacks that allocated them.
        stacks: usize,
    },
    /// Each step keeps outputs of many operators, although its backward pass ran.
    ActivationsKept {
        /// The number of blocks that one step keeps.
        blocks: usize,
        /// The number of stacks that allocated them.
        stacks: usize,
    },
    /// Like `ActivationsKept`, but memory ran out in several steps and the program continued. A caught exception keeps
    /// the frames through which it passed, and the tensors of these frames.
    CaughtException {
        /// The number of requests that failed.
        failures: usize,
    },
    /// A hook keeps its arguments: a module calls a line that is not in a `forward`.
    Hook {
        /// The number of blocks that one step keeps.
        blocks: usize,
    },
    /// A module keeps its inputs or outputs: a line of its `forward` adds a tensor at each call.
    ModuleCache {
        /// The number of blocks that one step keeps.
        blocks: usize,
    },
    /// A list or dictionary outside the model grows by a few tensors in each step.
    GrowingList {
        /// The number of blocks that one step keeps.
        blocks: usize,
    },
    /// Each block is replaced by a larger block, which `cat` made.
    GrownByCat,
    /// Python's garbage collector frees the blocks of several steps at once.
    ReferenceCycles,
    /// A line of the program frees the blocks of several steps at once.
    ClearedAtOnce,
    /// A single number outlives the step, and is replaced by its sum with another number: a running sum. (A loss that
    /// is itself a sum looks the same.)
    RunningSum,
    /// A running sum, inferred from Python frames alone, which do not show the addition: besides the loss there is
    /// another number, on a line that allocates nothing else.
    CarriedNumber,
}

impl Pattern {
    /// A sentence about what the pattern means and where to look in the program.
    pub fn advice(self) -> &'static str {
        match self {
            Self::GraphKept { .. } => {
                "each step keeps its graph: look for a loss or an output kept without .item() or .detach(), or \
                 an evaluation without torch.no_grad()"
            }
            Self::ActivationsKept { .. } => {
                "each step keeps the outputs of its layers: look for hooks or lists that store outputs, and for \
                 retain_graph=True"
            }
            Self::CaughtException { .. } => {
                "memory ran out in several steps and the program continued: a caught exception keeps the tensors of \
                 the functions in its traceback. Retry outside the `except` block, and keep neither the exception \
                 (`except RuntimeError as error`) nor its traceback"
            }
            Self::Hook { .. } => {
                "a hook keeps a tensor of each step: keep .detach().cpu() or a number instead, clear the list that it fills, or \
                 remove it (handle.remove())"
            }
            Self::ModuleCache { .. } => {
                "a module stores a tensor at each forward call: look for an append to self, and for \
                 forward hooks"
            }
            Self::GrowingList { .. } => {
                "a list or dictionary grows by a few tensors each step: store numbers (.item()) or copies on \
                 the CPU, or clear it"
            }
            Self::GrownByCat => {
                "a cache grows by torch.cat, each replacing the last: not a leak, but unbounded"
            }
            Self::ReferenceCycles => {
                "the memory of many steps is freed at once, as Python's garbage collector does: look for reference cycles (an object \
                 that refers to itself through a closure, a hook or a caught exception); to confirm, call \
                 gc.collect() in each step"
            }
            Self::ClearedAtOnce => {
                "one line frees the memory of many steps at once, for example by clearing a list: until then, this memory counts in the peak"
            }
            Self::RunningSum => {
                "a running sum is kept across steps: its device memory does not grow; if losses are \
                 added to it without .item() or .detach(), its graph grows on the host"
            }
            Self::CarriedNumber => {
                "besides the loss, a scalar is kept across steps: its device memory does not grow; if \
                 losses are added to it without .item() or .detach(), its graph grows on the host"
            }
        }
    }
}

impl Pattern {
    /// [`advice`](Self::advice), worded for a program that uses our own runtime if `is_own` is set.
    pub fn advice_for(self, is_own: bool) -> &'static str {
        if !is_own {
            return self.advice();
        }
        match self {
            Self::GraphKept { .. } => {
                "each step keeps its graph: look for a loss or an output kept without item() or detach(), or an evaluation \
                 outside plimsoll::no_grad"
            }
            Self::ActivationsKept { .. } | Self::CaughtException { .. } | Self::Hook { .. } => {
                "each step keeps the outputs of its layers: look for a Vec or a field that stores outputs"
            }
            Self::ModuleCache { .. } => {
                "a layer stores a tensor at each forward call: look for a push in its forward"
            }
            Self::GrowingList { .. } => {
                "a Vec or a map grows by a few tensors each step: store numbers (item()) or copies on the CPU, or clear it"
            }
            Self::GrownByCat => {
                "a cache grows by Tensor::cat, each replacing the last: not a leak, but unbounded"
            }
            Self::ReferenceCycles | Self::ClearedAtOnce => {
                "the memory of many steps is freed at once, for example by Vec::clear: until then, it counts in the peak"
            }
            Self::RunningSum | Self::CarriedNumber => {
                "a running sum is kept across steps: its device memory does not grow; if losses are added to it without \
                 item() or detach(), its graph grows on the host"
            }
        }
    }
}

/// The pattern of a single line. Leaking lines are judged together instead.
pub(super) fn of_line(
    snapshot: &Snapshot,
    course: &Course,
    rows: &Rows,
    operator: Option<Name>,
) -> Option<Pattern> {
    let operator = operator.map_or("", |name| name.of(snapshot));
    let steps = course.held.len();
    match course.verdict {
        Verdict::GrowingCache if operator.starts_with("cat") => Some(Pattern::GrownByCat),
        Verdict::HeldUntilGc => Some(Pattern::ReferenceCycles),
        Verdict::HeldUntilCleared => Some(Pattern::ClearedAtOnce),
        Verdict::Steady | Verdict::WarmingUp if steps > 3 => {
            // The line may allocate other things too.
            let is_sum = rows.sums_replaced + 2 >= steps && rows.sums <= steps + 1;
            is_sum.then_some(Pattern::RunningSum)
        }
        _ => None,
    }
}

/// Whether a block holds a single number that is the result of an addition.
pub(super) fn is_sum(snapshot: &Snapshot, life: &Life, origin: Origin) -> bool {
    let is_addition = |name: Name| name.of(snapshot).starts_with("add_");
    life.bytes <= 512 && origin.activity <= Activity::Forward && origin.operator.is_some_and(is_addition)
}

/// Returns two flags for a block. The first says whether it has the size of a single number and was requested directly
/// by a user's line, not through a library. The second says only whether it has the size of a single number.
pub(super) fn number(snapshot: &Snapshot, life: &Life, origin: Origin) -> (bool, bool) {
    let is_number = life.bytes <= 512 && origin.activity == Activity::Forward;
    let innermost = life.stack.and_then(|stack| snapshot.stacks.frame_ids(stack).next());
    (is_number && innermost == origin.line, is_number)
}

/// For recordings without C++ frames: which lines carry a number from step to step. The first such line in a step
/// does not count, because it computes the loss, and neither does a line that also allocates other memory.
pub(super) fn carried(rows: &[&Rows], steps: usize) -> Vec<bool> {
    let is_replaced =
        |rows: &Rows| steps > 3 && rows.numbers_replaced + 2 >= steps && rows.numbers <= steps + 1;
    let loss = rows.iter().filter(|rows| is_replaced(rows)).map(|rows| rows.first_number).min();
    let is_carried = |rows: &&Rows| {
        let asked = rows.asked.iter().fold(0_u64, |sum, &(_, bytes)| sum.saturating_add(bytes));
        let is_alone = asked <= 512 * (steps as u64 + 1) && rows.direct_numbers == rows.numbers;
        is_replaced(rows) && is_alone && Some(rows.first_number) > loss
    };
    rows.iter().map(is_carried).collect()
}

/// The blocks that leaking lines left in the last judged step in which the first leaking line grew.
pub(super) fn sample(
    timeline: &Timeline,
    origins: &Origins,
    steps: &Steps,
    leaking: &[&Line],
) -> Vec<LifeIndex> {
    let ends = &steps.boundaries;
    let (Some(line), Some(&last)) = (leaking.first(), ends.last()) else { return Vec::new() };
    let judged = 1..ends.len() - 1;
    let Some(step) = judged.rev().find(|&step| line.course.kept[step] > 0) else { return Vec::new() };
    let begin = timeline.lives.partition_point(|life| life.born <= Some(ends[step - 1]));
    let end = timeline.lives.partition_point(|life| life.born <= Some(ends[step]));
    let places: BTreeSet<Place> = leaking.iter().map(|line| line.place).collect();
    let is_one = |life: &Life| {
        life.is_held_after(Some::<EventIndex>(last)) && places.contains(&Place::of(life.stack, origins))
    };
    (begin..end).filter(|&at| is_one(&timeline.lives[at])).filter_map(LifeIndex::new).collect()
}

/// The pattern of a leak, inferred from the blocks of one step.
pub(super) fn of_leak(
    snapshot: &Snapshot,
    timeline: &Timeline,
    origins: &Origins,
    purposes: &Purposes,
    steps: &Steps,
    sample: &[LifeIndex],
) -> Option<Pattern> {
    let last = *sample.last()?;
    let stacks: BTreeSet<StackId> =
        sample.iter().filter_map(|life| timeline.lives[life.index()].stack).collect();
    let is_inside = in_modules(snapshot);
    let inside = stacks.iter().filter(|stack| is_inside[stack.index()]).count();
    let is_forward = stacks.iter().all(|&stack| origins.get(Some(stack)).activity == Activity::Forward);
    let (blocks, count) = (sample.len(), stacks.len());
    let failures = failures(snapshot, timeline, steps);
    if failures > 1 && is_forward && inside > 0 {
        return Some(Pattern::CaughtException { failures });
    }
    if !stacks.is_empty() && stacks.iter().all(|&stack| is_of_hook(snapshot, origins, stack)) {
        return Some(Pattern::Hook { blocks });
    }
    // A list of outputs adds a few blocks in each step; layers add many blocks.
    if is_forward && inside > 0 && count > 1 && blocks > 3 {
        let later = timeline.lives[last.index() + 1..].iter().zip(last.index() + 1..);
        let is_backward = |(life, index): (&Life, usize)| {
            let why = LifeIndex::new(index).map(|life| purposes.get(life).why);
            match origins.get(life.stack).activity {
                Activity::Backward | Activity::Recomputing | Activity::Accumulating => Some(true),
                Activity::Unknown if matches!(why, Some(Why::FreedSoon | Why::OutlivesPass)) => Some(true),
                _ if life.stack.is_some_and(|stack| is_inside[stack.index()]) => Some(false),
                _ => None,
            }
        };
        // If a backward pass runs for this step, it runs before a module is called again.
        let has_backward = later.filter_map(is_backward).next().unwrap_or(false);
        return Some(if has_backward {
            Pattern::ActivationsKept { blocks, stacks: count }
        } else {
            Pattern::GraphKept { blocks, stacks: count }
        });
    }
    let is_of_module = |&stack: &StackId| is_called_from_module(snapshot, origins, stack);
    let is_module = !stacks.is_empty() && stacks.iter().all(is_of_module);
    Some(if is_module { Pattern::ModuleCache { blocks } } else { Pattern::GrowingList { blocks } })
}

/// Whether the user's line of a stack is inside a module's call, rather than the caller.
fn is_called_from_module(snapshot: &Snapshot, origins: &Origins, stack: StackId) -> bool {
    let line = origins.get(Some(stack)).line;
    let frames = snapshot.stacks.frame_ids(stack).skip_while(|&frame| Some(frame) != line);
    frames.map(|frame| snapshot.stacks.get_frame(frame)).any(|frame| is_call(snapshot, frame))
}

/// The number of requests that failed before the last step ended: the program caught their exceptions.
fn failures(snapshot: &Snapshot, timeline: &Timeline, steps: &Steps) -> usize {
    let Some(last) = steps.boundaries.last() else { return 0 };
    let trace = snapshot.trace(timeline.device);
    trace.iter().take(last.index()).filter(|event| event.action == Action::Oom).count()
}

/// Whether the user's line of a stack is in a hook: a function that a module calls and that is not `forward`, or one
/// that PyTorch's hooks for gradients and saved tensors call.
fn is_of_hook(snapshot: &Snapshot, origins: &Origins, stack: StackId) -> bool {
    let line = origins.get(Some(stack)).line;
    let frames = snapshot.stacks.frame_ids(stack).skip_while(|&frame| Some(frame) != line);
    let texts = frames.map(|id| {
        let frame = snapshot.stacks.get_frame(id);
        (snapshot.texts.get(frame.filename), snapshot.texts.get(frame.name))
    });
    let mut called = None;
    // There are C++ frames of the interpreter between the Python frames.
    for (file, name) in texts.filter(|(file, _)| is_python(file)) {
        let path = file.replace('\\', "/");
        let is_of_hooks = path.ends_with("/torch/utils/hooks.py") || path.ends_with("/autograd/graph.py");
        // In PyTorch 2, `inner` is part of `_call_impl`.
        let is_of_module = path.ends_with("/nn/modules/module.py") && matches!(name, "_call_impl" | "inner");
        if is_of_hooks || is_of_module {
            return called.is_some_and(|(name, is_own)| is_own && (is_of_hooks || name != "forward"));
        }
        called = Some((name, !is_library(file)));
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::Frame;

    #[test]
    fn a_hook_is_what_a_module_calls_beside_its_forward() {
        let is_hook = |frames: &[(&str, &str)]| {
            let mut snapshot = Snapshot::default();
            let ids: Vec<_> = frames
                .iter()
                .map(|(file, name)| {
                    let [filename, name] = [file, name].map(|text| snapshot.texts.intern(text).unwrap());
                    snapshot.stacks.frame(Frame { filename, name, line: 1, fx: None }).unwrap()
                })
                .collect();
            let stack = snapshot.stacks.stack(&ids).unwrap();
            is_of_hook(&snapshot, &Origins::of(&snapshot), stack)
        };
        let (module, own) = ("/x/site-packages/torch/nn/modules/module.py", "/home/me/train.py");
        assert!(is_hook(&[(own, "keep"), ("Objects/call.c", "call"), (module, "inner"), (own, "<module>")]));
        assert!(is_hook(&[(own, "store"), (own, "keep"), (module, "_call_impl"), (own, "<module>")]));
        assert!(!is_hook(&[(own, "forward"), (module, "_call_impl"), (own, "<module>")]));
        let compiled = "/x/site-packages/torch/_dynamo/eval_frame.py";
        assert!(!is_hook(&[(own, "block"), (own, "forward"), (compiled, "_fn"), (module, "_call_impl")]));
        assert!(!is_hook(&[(own, "<module>")]));
    }
}
