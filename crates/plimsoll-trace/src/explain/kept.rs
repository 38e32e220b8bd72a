//! Finds out what the program keeps besides its model: [`settle`]. These are inputs, results that a variable keeps,
//! copies of the parameters, and the weights of a program that only runs inference.
//!
//! This runs after all other inference (`purposes.rs`), for blocks that are still unknown. It also checks two guesses
//! that a block's size can refute. An input is created or copied by the program itself: a line outside all modules
//! calls an operator that only creates a tensor. Any other block of the forward pass that is still live when the
//! backward pass has ended is a result: the graph no longer keeps it, so a variable does.

use std::collections::{BTreeMap, BTreeSet};

use plimsoll_alloc::Category;

use super::modules::in_modules;
use super::origin::{Activity, Origins};
use super::passes::{PassKind, Passes};
use super::purpose::{Purpose, Why};
use super::sizes::size;
use super::surplus;
use crate::snapshot::{EventIndex, Snapshot};
use crate::timeline::{Life, Timeline};

/// Operators that create a tensor without computing it from others.
const MAKES: [&str; 25] = [
    "_to_copy",
    "arange",
    "bernoulli",
    "copy_",
    "empty",
    "empty_like",
    "empty_strided",
    "eye",
    "full",
    "full_like",
    "linspace",
    "new_empty",
    "new_full",
    "new_ones",
    "new_zeros",
    "normal",
    "ones",
    "ones_like",
    "rand",
    "rand_like",
    "randint",
    "randn",
    "randn_like",
    "to",
    "zeros",
];
/// Operators that copy a tensor to another device.
const MOVES: [&str; 2] = ["to_device", "to_dtype_layout"];
/// Operators that copy a tensor.
const COPIES: [&str; 5] = ["_to_copy", "clone", "empty_like", "empty_strided", "to"];
/// Parameters smaller than this do not have a distinctive size.
const TELLING_BYTES: u64 = 1 << 16;

/// A snapshot, and what is known about its stacks and passes.
pub(super) struct Program<'a> {
    snapshot: &'a Snapshot,
    origins: &'a Origins,
    pub(super) passes: &'a Passes,
    in_modules: Vec<bool>,
    /// The first request inside a module in each pass.
    module_calls: Vec<Option<EventIndex>>,
}

impl<'a> Program<'a> {
    pub(super) fn of(
        snapshot: &'a Snapshot,
        timeline: &Timeline,
        origins: &'a Origins,
        passes: &'a Passes,
    ) -> Self {
        let in_modules = in_modules(snapshot);
        let mut module_calls = vec![None; passes.iter().count()];
        for life in &timeline.lives {
            let is_inside = life.stack.is_some_and(|stack| in_modules[stack.index()]);
            let place = life.born.filter(|_| is_inside).and_then(|born| passes.at(born));
            if let Some(place) = place {
                module_calls[place] = module_calls[place].or(life.born);
            }
        }
        Self { snapshot, origins, passes, in_modules, module_calls }
    }

    fn is_in_module(&self, life: &Life) -> bool {
        life.stack.is_some_and(|stack| self.in_modules[stack.index()])
    }

    /// Whether the outermost operator in the stack of a block is one of these operators.
    fn is_by(&self, life: &Life, operators: &[&str]) -> bool {
        let operator = self.origins.get(life.stack).operator.map(|name| name.of(self.snapshot));
        // `at::_ops` may append the overload: `to_dtype_layout`, `full_names`.
        let is_one = |name: &str, one: &str| {
            let rest = name.strip_prefix(one);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('_') && one != "copy_")
        };
        operator.is_some_and(|name| operators.iter().any(|one| is_one(name, one)))
    }

    /// Whether the program itself created or copied a block, outside its model.
    pub(super) fn is_input(&self, life: &Life) -> bool {
        let origin = self.origins.get(life.stack);
        if origin.line.is_none() || origin.activity != Activity::Forward || self.is_in_module(life) {
            return false;
        }
        if self.origins.has_native() {
            return self.is_by(life, &MAKES);
        }
        // Python frames alone do not name the operator. But inputs are created before the model is called.
        let place = life.born.and_then(|born| self.passes.at(born));
        let call = place.and_then(|place| self.module_calls[place]);
        call.is_some_and(|call| life.born < Some(call))
    }
}

impl Program<'_> {
    /// Whether the program itself copied a block to the GPU before it called its model.
    fn is_moved_batch(&self, life: &Life) -> bool {
        let place = life.born.and_then(|born| self.passes.at(born));
        let call = place.and_then(|place| self.module_calls[place]);
        self.origins.has_native()
            && call.is_some_and(|call| life.born < Some(call))
            && self.is_input(life)
            && self.is_by(life, &MOVES)
    }
}

/// Finds the purpose of blocks that are still unknown, and refutes guesses by size or origin.
pub(super) fn settle(program: &Program<'_>, timeline: &Timeline, purposes: &mut [Purpose]) {
    let lives = &timeline.lives;
    not_gradients(program.passes, lives, purposes);
    surplus::settle(program.passes, lives, purposes);
    let parameters: BTreeSet<u64> = of_category(lives, purposes, Category::Parameter)
        .map(size)
        .filter(|&bytes| bytes >= TELLING_BYTES)
        .collect();
    let infers = program.passes.iter().all(|pass| pass.kind == PassKind::Forward);
    let last_request = program.passes.iter().last().map(|pass| pass.last_request);
    let mut missing = surplus::missing(program.passes, lives, purposes);
    for (life, purpose) in lives.iter().zip(purposes) {
        // A block that the program itself created is an input, even if a graph that waits for its backward pass also
        // keeps it.
        let is_held = matches!(purpose.why, Why::HeldAtEnd | Why::HeldAtFailure);
        if is_held && program.is_input(life) {
            *purpose = Purpose { category: Some(Category::Input), why: Why::MadeOutsideModules };
        }
        // A batch that is moved to the GPU in several steps: a copy that only the next step reads is an input as well.
        if purpose.why == Why::FreedInForward && program.is_moved_batch(life) {
            *purpose = Purpose { category: Some(Category::Input), why: Why::MadeOutsideModules };
        }
        if purpose.category.is_some() {
            continue;
        }
        let Some(born) = life.born else {
            let is_held = life.freed.is_none_or(|freed| Some(freed) > last_request);
            if infers && is_held && last_request.is_some() {
                *purpose = Purpose { category: Some(Category::Parameter), why: Why::HeldThroughout };
            }
            continue;
        };
        let activity = program.origins.get(life.stack).activity;
        if activity > Activity::Forward || program.passes.is_backward(born) {
            continue;
        }
        let is_copy = parameters.contains(&size(life)) && !program.is_in_module(life);
        let (category, why) = if is_copy && program.is_by(life, &["zeros_like"]) {
            (Category::OptimizerState, Why::SizeOfParameter)
        } else if is_copy && program.is_by(life, &COPIES) {
            (Category::Parameter, Why::SizeOfParameter)
        } else if program.is_input(life) {
            let is_kept =
                size(life) >= TELLING_BYTES && life.freed.is_none_or(|freed| Some(freed) > last_request);
            let may_be = is_kept && !program.snapshot.recorder().is_input(life.addr);
            match missing.get_mut(&size(life)).filter(|count| may_be && **count > 0) {
                Some(count) => {
                    *count -= 1;
                    (Category::Parameter, Why::HasGradient)
                }
                None => (Category::Input, Why::MadeOutsideModules),
            }
        } else if activity == Activity::Forward && program.passes.is_freed_in_later_backward(life, born) {
            (Category::Activation, Why::FreedInBackward)
        } else if activity == Activity::Forward {
            (Category::Output, Why::OutlivesBackward)
        } else {
            continue;
        };
        *purpose = Purpose { category: Some(category), why };
    }
}

fn of_category<'a>(
    lives: &'a [Life],
    purposes: &'a [Purpose],
    category: Category,
) -> impl Iterator<Item = &'a Life> {
    let all = lives.iter().zip(purposes);
    all.filter(move |(_, purpose)| purpose.category == Some(category)).map(|(life, _)| life)
}

/// A gradient has the size of a tensor that exists both before and after the pass. A block that is freed as the pass
/// ends, and has no such size, was a temporary of the pass's last operators.
fn not_gradients(passes: &Passes, lives: &[Life], purposes: &mut [Purpose]) {
    let spans = Spans::of(lives, purposes);
    for (life, purpose) in lives.iter().zip(purposes) {
        if purpose.category != Some(Category::Gradient) || purpose.why != Why::OutlivesPass {
            continue;
        }
        let Some(pass) = life.born.and_then(|born| passes.pass_at(born)) else { continue };
        if life.freed.is_none_or(|freed| freed > pass.last) {
            continue;
        }
        // After the last pass, a program frees everything, so frees after the pass prove nothing.
        let end = if passes.is_last(&pass) { pass.last_request } else { pass.last };
        if !spans.has(size(life), pass.first, end) {
            *purpose = Purpose { category: Some(Category::Temporary), why: Why::FreedAsPassEnds };
        }
    }
}

/// For each size, the events that allocated its blocks, in order. Each event comes with the latest event that freed one
/// of the blocks that were allocated up to then.
struct Spans(BTreeMap<u64, Vec<Span>>);

/// The first and the last event of a block; `None` means before the first or after the last event of the recording.
type Span = (Option<EventIndex>, Option<EventIndex>);

impl Spans {
    fn of(lives: &[Life], purposes: &[Purpose]) -> Self {
        const PASS_BY: [Category; 3] = [Category::Activation, Category::Temporary, Category::Workspace];
        let mut found: BTreeMap<u64, Vec<_>> = BTreeMap::new();
        // If there are parameters, a batch of the same size is no evidence that a block is a gradient.
        let has_parameters = of_category(lives, purposes, Category::Parameter).next().is_some();
        let is_kept = |life: &Life, purpose: &Purpose| match purpose.category {
            Some(category) => !PASS_BY.contains(&category),
            None => !has_parameters || life.born.is_none(),
        };
        for (life, _) in lives.iter().zip(purposes).filter(|(life, purpose)| is_kept(life, purpose)) {
            let of_size = found.entry(size(life)).or_default();
            let latest = match of_size.last() {
                Some(&(_, latest)) => life.freed.zip(latest).map(|(a, b): (EventIndex, _)| a.max(b)),
                None => life.freed,
            };
            of_size.push((life.born, latest));
        }
        Self(found)
    }

    /// Whether a block of this size is allocated before one event, and freed after another or never.
    fn has(&self, bytes: u64, before: EventIndex, after: EventIndex) -> bool {
        let Some(of_size) = self.0.get(&bytes) else { return false };
        let born = of_size.partition_point(|&(born, _)| born < Some(before));
        born > 0 && of_size[born - 1].1.is_none_or(|freed| freed > after)
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_alloc::{Addr, StreamId};

    use super::*;
    use crate::explain::Purposes;
    use crate::snapshot::{Action, Event, LifeIndex};

    #[test]
    fn what_an_inference_holds_throughout_is_its_weights() {
        let event = |action, addr, bytes| Event::new(action, Addr(addr), bytes, StreamId(0));
        let trace = vec![
            event(Action::Alloc, 0x1000, 512),
            event(Action::FreeRequested, 0x1000, 512),
            event(Action::FreeCompleted, 0x1000, 512),
            event(Action::FreeRequested, 0x9000, 4096),
            event(Action::FreeCompleted, 0x9000, 4096),
        ];
        let snapshot = Snapshot { traces: vec![trace], ..Snapshot::default() };
        let (timeline, origins) = (Timeline::of(&snapshot, 0), Origins::of(&snapshot));
        let passes = Passes::of(&snapshot, snapshot.trace(0), &origins);
        let purposes = Purposes::of(&snapshot, &timeline, &origins, &passes, true);
        let weights = LifeIndex::new(0).expect("an index");
        assert_eq!(timeline.lives[0].born, None);
        let expected = Purpose { category: Some(Category::Parameter), why: Why::HeldThroughout };
        assert_eq!(purposes.get(weights), expected);
    }

    #[test]
    fn a_block_spans_a_pass_only_with_the_same_size_and_on_both_sides() {
        let event = |action, addr, bytes| Event::new(action, Addr(addr), bytes, StreamId(0));
        let trace = vec![
            event(Action::Alloc, 0x1000, 512),
            event(Action::Alloc, 0x2000, 1024),
            event(Action::FreeCompleted, 0x2000, 1024),
            event(Action::Alloc, 0x3000, 512),
        ];
        let timeline = Timeline::of(&Snapshot { traces: vec![trace], ..Snapshot::default() }, 0);
        let unknown = Purpose { category: None, why: Why::Unknown };
        let spans = Spans::of(&timeline.lives, &vec![unknown; timeline.lives.len()]);
        let at = |nth| EventIndex::new(nth).expect("an index");
        assert!(spans.has(512, at(1), at(3)));
        assert!(!spans.has(512, at(0), at(3))); // no block is allocated before that
        assert!(spans.has(1024, at(2), at(1)));
        assert!(!spans.has(1024, at(2), at(2)));
        assert!(!spans.has(2048, at(3), at(3)));
    }
}
