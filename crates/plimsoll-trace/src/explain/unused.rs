//! Memory that forward passes keep for a backward pass, in a recording that has no backward pass:
//! [`UnusedGraph`].

use std::collections::BTreeMap;

use super::modules::{in_modules, is_call};
use super::origin::{is_library, is_python};
use super::passes::{PassKind, Passes};
use crate::snapshot::{EventIndex, FrameId, Snapshot, StackId};
use crate::timeline::{Life, Timeline};

/// The minimum number of blocks, because any layer keeps a few blocks while it runs.
const LEAST_BLOCKS: usize = 6;

/// The minimum number of calls of modules that keep memory, if this memory is not freed.
const LEAST_CALLS: usize = 3;

/// The blocks must contain at least 1/`KEPT_PART` of the bytes that the modules have allocated since the first block.
const KEPT_PART: u64 = 3;

/// The blocks must contain at least 1/`LEAST_PART` of the live bytes.
const LEAST_PART: u64 = 5;

/// Memory that forward passes keep although no backward pass follows: with `torch.no_grad()`, most of it would be
/// freed at once. This is never certain. It is reported under the following conditions. The recording has no backward
/// pass and no optimizer step, and at its peak, much of the memory that the modules have allocated is still live: either
/// memory of the current forward pass, which is freed later, before any request fails; or memory of several forward
/// passes, not counting the last result of each, which the program may keep. Without a graph, a layer's results are freed
/// after the next layer has read them, and a cache of keys and values is small in comparison.
///
/// ```
/// use plimsoll_trace::explain::UnusedGraph;
///
/// let graph = UnusedGraph { bytes: 3 << 30, blocks: 72, line: None, confidence: "likely" };
/// assert_eq!(graph.bytes / graph.blocks as u64, 44_739_242);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnusedGraph {
    /// The bytes of the blocks that the graph keeps.
    pub bytes: u64,
    /// The number of these blocks.
    pub blocks: usize,
    /// The line of the program that calls the model; `None` if no stack contains this line.
    pub line: Option<FrameId>,
    /// `likely`; or `a guess`, if a request failed, so that the backward pass might have come later.
    pub confidence: &'static str,
}

impl UnusedGraph {
    /// The unused graph at this moment; `None` if there is none.
    pub(super) fn of(
        snapshot: &Snapshot,
        timeline: &Timeline,
        passes: &Passes,
        moment: Option<EventIndex>,
    ) -> Option<Self> {
        if snapshot.is_own() || passes.iter().any(|pass| pass.kind != PassKind::Forward) {
            return None;
        }
        let inside = in_modules(snapshot);
        let is_made =
            |life: &&Life| life.born.is_some() && life.stack.is_some_and(|stack| inside[stack.index()]);
        let failure = passes.first_failure();
        let live = total(timeline.held_after(moment));
        let is_much = |kept: &[&Life], since: u64| {
            let bytes = total(kept.iter().copied());
            kept.len() >= LEAST_BLOCKS && bytes >= live / LEAST_PART && bytes >= since / KEPT_PART
        };
        let found = |kept: &[&Life], confidence| Self {
            bytes: total(kept.iter().copied()),
            blocks: kept.len(),
            line: caller(snapshot, kept),
            confidence,
        };
        let is_dropped = |life: &&Life| life.freed.is_some_and(|freed| failure.is_none_or(|at| freed < at));
        let dropped: Vec<&Life> = timeline.held_after(moment).filter(is_made).filter(is_dropped).collect();
        let since = dropped.first().map_or(0, |first| {
            let is_since = |life: &&Life| (first.born..=moment).contains(&life.born);
            total(timeline.lives.iter().filter(is_since).filter(is_made))
        });
        if is_much(&dropped, since) {
            return Some(found(&dropped, "likely"));
        }
        let calls = Calls::of(timeline, moment, |life| is_made(&life));
        let says = calls.count >= LEAST_CALLS && is_much(&calls.inner, calls.all_bytes);
        says.then(|| found(&calls.kept, if failure.is_some() { "a guess" } else { "likely" }))
    }
}

/// The memory that calls of modules keep, without the last result of each call, which the program may keep.
///
/// A call ends where memory is allocated outside of modules. It is not known whether two calls follow each other
/// directly, so wherever the first stack of a call occurs again, the result before it may also be one that the program
/// keeps.
#[derive(Default)]
struct Calls<'a> {
    /// The calls that keep memory.
    count: usize,
    kept: Vec<&'a Life>,
    /// The part of `kept` that is certainly not the result of a call.
    inner: Vec<&'a Life>,
    /// The bytes that were allocated for `inner`, whether they are kept or not.
    all_bytes: u64,
}

impl<'a> Calls<'a> {
    /// The calls before this moment.
    fn of(timeline: &'a Timeline, moment: Option<EventIndex>, is_inside: impl Fn(&'a Life) -> bool) -> Self {
        let mut found = Self::default();
        let mut call: Vec<&Life> = Vec::new();
        for life in timeline.lives.iter().take_while(|life| life.born <= moment) {
            if is_inside(life) {
                call.push(life);
            } else {
                found.add(&call, moment);
                call.clear();
            }
        }
        found.add(&call, moment);
        found
    }

    fn add(&mut self, call: &[&'a Life], moment: Option<EventIndex>) {
        let without_result = |part: &[&'a Life]| {
            let mut kept: Vec<&Life> =
                part.iter().copied().filter(|life| life.is_held_after(moment)).collect();
            let result = kept.pop();
            (kept, result.map_or(0, |it| it.bytes))
        };
        let Some(first) = call.first() else { return };
        let before = self.inner.len();
        for part in call.chunk_by(|_, next| next.stack != first.stack) {
            let (inner, result_bytes) = without_result(part);
            if !inner.is_empty() {
                let all_bytes = total(part.iter().copied()).saturating_sub(result_bytes);
                self.all_bytes = self.all_bytes.saturating_add(all_bytes);
                self.inner.extend(inner);
            }
        }
        if self.inner.len() > before {
            self.count += 1;
            self.kept.extend(without_result(call).0);
        }
    }
}

/// The bytes of all these blocks. The sum saturates, because a forged file may claim any size.
fn total<'a>(lives: impl Iterator<Item = &'a Life>) -> u64 {
    lives.map(|life| life.bytes).fold(0, u64::saturating_add)
}

/// The program's line, outside all modules, that calls the modules with the most bytes.
fn caller(snapshot: &Snapshot, lives: &[&Life]) -> Option<FrameId> {
    let mut bytes: BTreeMap<FrameId, u64> = BTreeMap::new();
    for life in lives {
        if let Some(frame) = life.stack.and_then(|stack| outside(snapshot, stack)) {
            let sum = bytes.entry(frame).or_default();
            *sum = u64::saturating_add(*sum, life.bytes);
        }
    }
    bytes.into_iter().max_by_key(|&(_, bytes)| bytes).map(|(frame, _)| frame)
}

/// The program's frame that calls the outermost module of a stack.
fn outside(snapshot: &Snapshot, stack: StackId) -> Option<FrameId> {
    let stacks = &snapshot.stacks;
    let is_own = |&frame: &FrameId| {
        let file = snapshot.texts.get(stacks.get_frame(frame).filename);
        is_python(file) && !is_library(file)
    };
    // From the outermost frame to the innermost.
    let frames = stacks.frame_ids(stack).rev();
    frames.take_while(|&frame| !is_call(snapshot, stacks.get_frame(frame))).filter(is_own).last()
}
