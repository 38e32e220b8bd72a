//! The blocks, stored in a [`Slab`] and addressed by [`BlockId`].
//!
//! A segment is a list of blocks, linked by `prev` and `next` in address order. Ids are stable, and slots
//! are reused, so a steady state does not allocate from the heap. `pools/pieces.rs` maintains these links, and
//! `free_set/tree.rs` maintains `lower` and `upper`.

use std::num::NonZeroU32;
use std::ops::{Index, IndexMut};

use crate::category::Category;
use crate::ranges::RangeId;
use crate::request::{Addr, LabelId, StackId, StreamId, Tag};
use crate::size::PoolKind;
use crate::stream_uses::Waits;

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

/// One half of one pool, as an index into the list of halves in `pools.rs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PoolRef(u32);

impl PoolRef {
    /// The half of the default pool.
    pub(crate) const fn default_half(kind: PoolKind) -> Self {
        Self(kind as u32)
    }

    /// The half with this index.
    pub(crate) fn at(index: u32) -> Self {
        Self(index)
    }

    /// Its index.
    pub(crate) fn index(self) -> u32 {
        self.0
    }
}

/// The state of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SlotState {
    /// Allocated to a caller.
    Active,
    /// Freed, but another stream may still use it: `pending.rs`.
    Pending,
    /// In its pool's free set.
    Cached,
    /// Address space of an expandable segment that is not mapped.
    Unmapped,
    /// No block: the slot can be reused.
    Vacant,
}

/// One piece of a segment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Block {
    pub(crate) addr: Addr,
    pub(crate) bytes: u64,
    /// The size that the last caller requested. Kept when the block is freed, as in PyTorch.
    pub(crate) requested_bytes: u64,
    /// The number of the block's segment, in order of creation (PyTorch's `registration_counter`).
    pub(crate) segment_number: u64,
    /// The pool's search count when the block was last cached: its age for `source/collect.rs`.
    pub(crate) cached_at: u64,
    pub(crate) stream: StreamId,
    pub(crate) prev: Option<BlockId>,
    pub(crate) next: Option<BlockId>,
    /// In a free set, the left child in its tree; otherwise meaningless.
    pub(crate) lower: Option<BlockId>,
    /// In a free set, the right child in its tree; otherwise meaningless.
    pub(crate) upper: Option<BlockId>,
    /// The expandable segment that contains this block.
    pub(crate) range: Option<RangeId>,
    /// Its uses on other streams.
    pub(crate) waits: Waits,
    pub(crate) pool: PoolRef,
    pub(crate) state: SlotState,
    pub(crate) tag: Tag,
    pub(crate) stack: Option<StackId>,
    /// How many pools had been restored to a checkpoint when the segment was made or restored.
    /// Pieces inherit their segment's. Only allocations with the same number are valid: `checkpoint.rs`.
    pub(crate) generation: u32,
}

impl Block {
    /// The contents of an empty slot.
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
        waits: Waits::NONE,
        pool: PoolRef::default_half(PoolKind::Small),
        state: SlotState::Vacant,
        tag: Tag { category: Category::Temporary, label: LabelId(0) },
        stack: None,
        generation: 0,
    };

    /// Whether the block is a part of its segment rather than the whole of it.
    pub(crate) fn is_piece(&self) -> bool {
        self.prev.is_some() || self.next.is_some()
    }

    /// Whether the block is mapped to memory.
    pub(crate) fn is_mapped(&self) -> bool {
        self.state != SlotState::Unmapped
    }
}

/// All blocks of one allocator.
#[derive(Debug, Default)]
pub(crate) struct Slab {
    slots: Vec<Block>,
    /// The most recently vacated slot: the head of a list linked by `next`.
    vacant: Option<BlockId>,
}

impl Slab {
    /// Stores `block` and returns its id.
    ///
    /// # Panics
    /// If more than 2^32 - 1 blocks exist at once: 2 TiB in blocks of 512 bytes.
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

    /// Adds a slot. The caller fills it in place, which avoids a copy of the block.
    #[cold]
    fn grow(&mut self) -> BlockId {
        self.slots.push(Block::VACANT);
        let number = u32::try_from(self.slots.len()).ok().and_then(NonZeroU32::new);
        BlockId(number.expect("fewer than 2^32 blocks exist at once"))
    }

    /// Vacates a slot; its id may be reused for another block. Returns the old contents.
    #[inline]
    pub(crate) fn remove(&mut self, id: BlockId) -> &Block {
        let before = self.vacant.replace(id);
        let slot = &mut self[id];
        slot.state = SlotState::Vacant;
        slot.next = before;
        slot
    }

    /// The block in a slot, if the slot exists: for ids that come from a caller.
    pub(crate) fn get(&self, id: BlockId) -> Option<&Block> {
        self.slots.get(id.index())
    }

    /// All blocks, in slot order: for sums, not for output.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Block> {
        self.slots.iter().filter(|block| block.state != SlotState::Vacant)
    }

    /// The ids of all blocks, in slot order.
    pub(crate) fn ids(&self) -> impl Iterator<Item = BlockId> + '_ {
        let ids = (1..=self.slots.len() as u32).filter_map(NonZeroU32::new).map(BlockId);
        ids.filter(|&id| self[id].state != SlotState::Vacant)
    }

    /// `first` and the blocks after it in its segment.
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
