//! Who holds the memory at one moment: [`Owners`], by category, by line, by operator. Each sums to the same.

use std::collections::BTreeMap;

use super::backward::{ForwardLine, ForwardLines};
use super::origin::{Name, Origins};
use super::purpose::{Purposes, ShownCategory, Why};
use crate::snapshot::{EventIndex, FrameId, LifeIndex};
use crate::timeline::{Life, Timeline};

/// What some blocks have in common, and how much they hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share<K> {
    /// What they have in common.
    pub key: K,
    /// Bytes in them.
    pub bytes: u64,
    /// How many.
    pub blocks: u64,
    /// The largest of them, bytes.
    pub largest_bytes: u64,
}

/// What a row by category is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Purposed {
    /// What the blocks are for, or the user's own category.
    pub category: ShownCategory,
    /// How that is known.
    pub why: Why,
}

/// What a row by line is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Line {
    /// The line; `None` for blocks without a stack, or whose stack has no line of Python.
    pub frame: Option<FrameId>,
    /// The line of a library that it called, where that says more ([`Origin`](super::Origin)).
    pub package_line: Option<FrameId>,
    /// What is known instead of a line; nothing where there is one.
    pub backward: BackwardBlock,
    /// What the blocks are for, or the user's own category.
    pub category: ShownCategory,
}

/// What is known of a block that no line of Python asked for: derivatives are computed without.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct BackwardBlock {
    /// The derivative or operator.
    pub operator: Option<Name>,
    /// The line of the forward pass that it belongs to, where that is found.
    pub forward: Option<ForwardLine>,
}

/// What is held after one event, put together in three ways. The largest rows come first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owners {
    /// After which event; `None` is the moment before the first.
    pub after: Option<EventIndex>,
    /// Bytes in blocks that are held.
    pub bytes: u64,
    /// What for, and how that is known.
    pub by_category: Vec<Share<Purposed>>,
    /// Who asked: a line of Python, and what for.
    pub by_line: Vec<Share<Line>>,
    /// Which operator, or node of the backward pass, asked; `None` where the stack shows none.
    pub by_operator: Vec<Share<Option<Name>>>,
    /// The largest blocks, at most [`Owners::LARGEST`].
    pub largest: Vec<LifeIndex>,
}

impl Owners {
    /// How many of the largest blocks are named.
    pub const LARGEST: usize = 20;

    /// What is held after an event. Costs a walk over the lives born until then.
    pub fn after(
        timeline: &Timeline,
        origins: &Origins,
        purposes: &Purposes,
        after: Option<EventIndex>,
    ) -> Self {
        Self::with_forward_lines(timeline, origins, purposes, &ForwardLines::default(), after)
    }

    /// The same, where the lines of the forward pass are known that blocks without a line belong to.
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
