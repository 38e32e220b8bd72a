//! The blocks and where they are kept: a [`Slab`], addressed by [`BlockId`].
//!
//! A segment is a chain of blocks, linked by `prev` and `next` in address order. Ids are stable, and slots
//! are used again, so that a steady state needs no heap. What the links mean is kept true by
//! `pieces.rs`, and for `lower` and `upper` by `free_set/tree.rs`.

use std::num::NonZeroU32;
use std::ops::{Index, IndexMut};

use crate::category::Category;
use crate::expandable::RangeId;
use crate::pool::{PoolKind, PoolRef};
use crate::request::{Addr, LabelId, StackId, StreamId, Tag};
use crate::streams::UseId;

/// A slot in the slab, counted from 1 so that `Option<BlockId>` takes four bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct BlockId(NonZeroU32);

impl BlockId {
    /// The number of the slot.
    pub(crate) fn number(self) -> u32 {
        self.0.get()
    }

    fn index(self) -> usize {
        self.number() as usize - 1
    }
}

/// A slot's use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// Held by a caller.
    Active,
    /// Given back, but another stream may still use it: `streams.rs`.
    Pending,
    /// In its pool's free set.
    Cached,
    /// Address space of an expandable segment without memory behind it.
    Unmapped,
    /// No block: the slot waits to be used again.
    Vacant,
}

/// One piece of a segment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Block {
    pub(crate) addr: Addr,
    pub(crate) bytes: u64,
    /// What the last caller asked for. Kept when the block is freed, as PyTorch does.
    pub(crate) requested_bytes: u64,
    /// Which segment this was cut from, counted in the order of creation (PyTorch's `registration_counter`).
    pub(crate) segment_number: u64,
    /// The pool's count of searches when this was cached last: its age for `collect.rs`.
    pub(crate) cached_at: u64,
    pub(crate) stream: StreamId,
    pub(crate) prev: Option<BlockId>,
    pub(crate) next: Option<BlockId>,
    /// In a free set, what comes before this in its tree; otherwise without meaning.
    pub(crate) lower: Option<BlockId>,
    /// In a free set, what comes behind this in its tree; otherwise without meaning.
    pub(crate) upper: Option<BlockId>,
    /// The expandable segment that this is a part of.
    pub(crate) range: Option<RangeId>,
    /// Recorded events that are still to come before a pending block is free.
    pub(crate) events: u32,
    /// Uses on other streams for which no event is recorded yet: `streams.rs`.
    pub(crate) uses: Option<UseId>,
    pub(crate) pool: PoolRef,
    pub(crate) state: State,
    pub(crate) tag: Tag,
    pub(crate) stack: Option<StackId>,
    /// How many pools had been brought back to a checkpoint when the segment was made, or brought back itself.
    /// Pieces have their segment's. Only allocations of the same number stand for the block: `checkpoint.rs`.
    pub(crate) generation: u32,
}

impl Block {
    /// What an empty slot holds.
    pub(crate) const VACANT: Self = Self {
        addr: Addr(0),
        bytes: 0,
        requested_bytes: 0,
        segment_number: 0,
        cached_at: 0,
        stream: StreamId(0),
        prev: None,
        next: None,
        lower: None,
        upper: None,
        range: None,
        events: 0,
        uses: None,
        pool: PoolRef::default_half(PoolKind::Small),
        state: State::Vacant,
        tag: Tag { category: Category::Temporary, label: LabelId(0) },
        stack: None,
        generation: 0,
    };

    /// Whether the block is a part of its segment rather than the whole of it.
    pub(crate) fn is_piece(&self) -> bool {
        self.prev.is_some() || self.next.is_some()
    }

    /// Whether memory lies behind the block.
    pub(crate) fn is_mapped(&self) -> bool {
        self.state != State::Unmapped
    }
}

/// All blocks of one allocator.
#[derive(Debug, Default)]
pub(crate) struct Slab {
    slots: Vec<Block>,
    /// The slot that was vacated last. The others follow by `next`.
    vacant: Option<BlockId>,
}

impl Slab {
    /// Stores `block` and returns its id.
    ///
    /// # Panics
    /// At the 2^32nd block that lives at one time: 2 TiB in blocks of 512 bytes.
    #[inline]
    pub(crate) fn insert(&mut self, block: Block) -> BlockId {
        let id = match self.vacant {
            Some(id) => {
                self.vacant = self[id].next;
                id
            }
            None => self.grow(),
        };
        self[id] = block;
        id
    }

    /// Adds a slot. It is filled only then, so that a block need not be laid out anywhere else first.
    #[cold]
    fn grow(&mut self) -> BlockId {
        self.slots.push(Block::VACANT);
        let number = u32::try_from(self.slots.len()).ok().and_then(NonZeroU32::new);
        BlockId(number.expect("fewer than 2^32 blocks live at one time"))
    }

    /// Vacates a slot; its id may come back for another block. Returns what is left in it.
    #[inline]
    pub(crate) fn remove(&mut self, id: BlockId) -> &Block {
        let before = self.vacant.replace(id);
        let slot = &mut self[id];
        slot.state = State::Vacant;
        slot.next = before;
        slot
    }

    /// The block in a slot, if the slot was ever used: for ids that a caller brings.
    pub(crate) fn get(&self, id: BlockId) -> Option<&Block> {
        self.slots.get(id.index())
    }

    /// Every block, in the order of slots: fit for sums, not for output.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Block> {
        self.slots.iter().filter(|block| block.state != State::Vacant)
    }

    /// The ids of every block, in the order of slots.
    pub(crate) fn ids(&self) -> impl Iterator<Item = BlockId> + '_ {
        let ids = (1..=self.slots.len() as u32).filter_map(NonZeroU32::new).map(BlockId);
        ids.filter(|&id| self[id].state != State::Vacant)
    }

    /// `first` and the blocks behind it in its segment.
    pub(crate) fn chain<'a>(&'a self, first: &'a Block) -> impl Iterator<Item = &'a Block> {
        std::iter::successors(Some(first), |block| block.next.map(|id| &self[id]))
    }
}

impl Index<BlockId> for Slab {
    type Output = Block;

    fn index(&self, id: BlockId) -> &Block {
        &self.slots[id.index()]
    }
}

impl IndexMut<BlockId> for Slab {
    fn index_mut(&mut self, id: BlockId) -> &mut Block {
        &mut self.slots[id.index()]
    }
}
