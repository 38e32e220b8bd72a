//! The owners of live memory at one moment: [`Owners`], grouped by category, by line and by operator. All of these
//! tables have the same total.

use std::collections::BTreeMap;

use super::backward::ForwardLines;
use super::forward_line::ForwardLine;
use super::origin::{Name, Origins};
use super::purpose::{ShownCategory, Why};
use super::purposes::Purposes;
use crate::snapshot::{EventIndex, FrameId, LifeIndex};
use crate::timeline::{Life, Timeline};

/// Blocks with something in common, and their bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share<K> {
    /// The common property of the blocks.
    pub key: K,
    /// The sum of the blocks' bytes.
    pub bytes: u64,
    /// The number of blocks.
    pub blocks: u64,
    /// The size of the largest block, bytes.
    pub largest_bytes: u64,
}

/// The key of a row in the table by category.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Purposed {
    /// The category, built-in or the user's own.
    pub category: ShownCategory,
    /// How the category is known.
    pub why: Why,
}

/// The key of a row in the table by line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Line {
    /// The line of Python; `None` for blocks without a stack, or with a stack that has no such line.
    pub frame: Option<FrameId>,
    /// The library line that the line of Python called, if the library line is more specific
    /// ([`Origin`](super::Origin)).
    pub package_line: Option<FrameId>,
    /// What is known about the blocks if they have no line; empty if there is a line.
    pub backward: BackwardBlock,
    /// The category, built-in or the user's own.
    pub category: ShownCategory,
}

/// The information about a block without a line of Python. The engine computes derivatives without Python.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct BackwardBlock {
    /// The derivative or operator.
    pub operator: Option<Name>,
    /// The line of the forward pass to which the derivative or operator belongs, if it was found.
    pub forward: Option<ForwardLine>,
}

/// The live blocks after an event, grouped in three ways. The largest rows come first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owners {
    /// The event; `None` is the moment before the first event.
    pub after: Option<EventIndex>,
    /// Bytes in live blocks.
    pub bytes: u64,
    /// The bytes by category, and by how the category is known.
    pub by_category: Vec<Share<Purposed>>,
    /// The bytes by the line of Python that requested the blocks, and by category.
    pub by_line: Vec<Share<Line>>,
    /// The bytes by operator, or by node of the backward pass; `None` if the stack has neither.
    pub by_operator: Vec<Share<Option<Name>>>,
    /// The largest blocks, at most [`Owners::LARGEST`].
    pub largest: Vec<LifeIndex>,
}

impl Owners {
    /// The number of largest blocks that are listed.
    pub const LARGEST: usize = 20;

    /// The owners after an event. Costs a walk over the blocks that were allocated up to this event.
    pub fn after(
        timeline: &Timeline,
        origins: &Origins,
        purposes: &Purposes,
        after: Option<EventIndex>,
    ) -> Self {
        Self::with_forward_lines(timeline, origins, purposes, &ForwardLines::default(), after)
    }

    /// Like [`after`](Self::after), with the forward lines of blocks that have no line of their own.
    pub fn with_forward_lines(
        timeline: &Timeline,
        origins: &Origins,
        purposes: &Purposes,
        forward: &ForwardLines,
        after: Option<EventIndex>,
    ) -> Self {
        let (mut by_category, mut by_line, mut by_operator) =
            (Rows::default(), Rows::default(), Rows::default());
        let mut largest: Vec<(u64, LifeIndex)> = Vec::new();
        let mut bytes: u64 = 0;
        for (index, life) in held(timeline, after) {
            let ((category, why), origin) = (purposes.shown(index, life, origins), origins.get(life.stack));
            let (frame, package_line) = (origin.line, origin.package_line);
            let backward = match frame {
                Some(_) => BackwardBlock::default(),
                None => {
                    let forward = origin.forward.or(forward.get(life.born));
                    BackwardBlock { operator: origin.operator, forward }
                }
            };
            bytes = bytes.saturating_add(life.bytes);
            by_category.add(Purposed { category, why }, life);
            by_line.add(Line { frame, package_line, backward, category }, life);
            by_operator.add(origin.operator, life);
            largest.push((life.bytes, index));
        }
        largest.sort_unstable_by_key(|&(bytes, index)| (std::cmp::Reverse(bytes), index));
        largest.truncate(Self::LARGEST);
        let largest = largest.into_iter().map(|(_, index)| index).collect();
        let (by_category, by_line) = (by_category.sorted(), by_line.sorted());
        Self { after, bytes, by_category, by_line, by_operator: by_operator.sorted(), largest }
    }
}

pub(super) fn held(
    timeline: &Timeline,
    after: Option<EventIndex>,
) -> impl Iterator<Item = (LifeIndex, &Life)> {
    let born = timeline.lives.partition_point(|life| life.born <= after);
    let lives = (0..).map_while(LifeIndex::new).zip(&timeline.lives[..born]);
    lives.filter(move |(_, life)| life.is_held_after(after))
}

struct Rows<K>(BTreeMap<K, Share<K>>);

impl<K> Default for Rows<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord + Copy> Rows<K> {
    fn add(&mut self, key: K, life: &Life) {
        let share = self.0.entry(key).or_insert(Share { key, bytes: 0, blocks: 0, largest_bytes: 0 });
        share.bytes = share.bytes.saturating_add(life.bytes);
        share.blocks += 1;
        share.largest_bytes = share.largest_bytes.max(life.bytes);
    }

    fn sorted(self) -> Vec<Share<K>> {
        let mut shares: Vec<Share<K>> = self.0.into_values().collect();
        shares.sort_by_key(|share| std::cmp::Reverse(share.bytes));
        shares
    }
}
