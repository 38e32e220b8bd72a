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

/// The blocks must contain at least 1/`KEPT_PART` of the bytes that the modules have allocated since the first block.
const KEPT_PART: u64 = 3;

/// The blocks must contain at least 1/`LEAST_PART` of the live bytes.
const LEAST_PART: u64 = 5;

/// Memory that forward passes keep although no backward pass follows: with `torch.no_grad()`, most of it would be
/// freed at once. This is likely, but not certain. It is reported under the following conditions. The recording has
/// no backward pass and no optimizer step. At its peak, much of the memory that the modules have allocated in the
/// current forward pass is still live, and it is freed later, before any request fails. Without a graph, a layer's
/// results are freed after the next layer has read them, and a cache of keys and values is small in comparison.
///
/// ```
/// use plimsoll_trace::explain::UnusedGraph;
///
/// let graph = UnusedGraph { bytes: 3 << 30, blocks: 72, line: None };
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
        let is_dropped = |life: &&Life| life.freed.is_some_and(|freed| failure.is_none_or(|at| freed < at));
        let kept: Vec<&Life> = timeline.held_after(moment).filter(is_made).filter(is_dropped).collect();
        let bytes = total(kept.iter().copied());
        let live = total(timeline.held_after(moment));
        let began = kept.first()?.born;
        let is_since = |life: &&Life| (began..=moment).contains(&life.born);
        let since = total(timeline.lives.iter().filter(is_since).filter(is_made));
        let says = kept.len() >= LEAST_BLOCKS && bytes >= live / LEAST_PART && bytes >= since / KEPT_PART;
        says.then(|| Self { bytes, blocks: kept.len(), line: caller(snapshot, &kept) })
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
