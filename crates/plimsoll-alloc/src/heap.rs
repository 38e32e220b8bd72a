//! The memory that the allocator manages: [`Heap`]. It changes the pools, counts the reserved bytes, and sends an event
//! for every change to the observer.
//!
//! It calls no driver: `source.rs` gets and returns device memory, `pending.rs` waits for streams, and both call this.
//!
//! In PyTorch: `alloc_found_block`, `free`, `free_block`.

use crate::adopt::Piece;
use crate::allocation::Allocation;
use crate::block::{Block, BlockId, PoolRef, SlotState};
use crate::config::{Config, TieOrder};
use crate::event::{DeviceRange, Event, LiveBlock, Observer};
use crate::pools::{Cut, NewSegment, Pools, SizedRequest};
use crate::request::{Addr, PoolId, Request, StackId, StreamId, Tag};
use crate::rounding::is_oversize;
use crate::size::MIN_BLOCK_BYTES;
use crate::stream_uses::Waits;

const NOT_OURS: &str =
    "the allocation belongs to another allocator, or its pool was restored to a checkpoint since";

/// The pools, and the observer of their changes.
#[derive(Debug)]
pub(crate) struct Heap<O> {
    pools: Pools,
    observer: O,
    /// Total bytes of all segments.
    reserved_bytes: u64,
}

/// Queries.
impl<O> Heap<O> {
    /// The default pool, empty.
    pub(crate) fn new(order: TieOrder, observer: O) -> Self {
        Self { pools: Pools::new(order), observer, reserved_bytes: 0 }
    }

    #[inline]
    pub(crate) fn pools(&self) -> &Pools {
        &self.pools
    }

    /// The cached block of a stream that contains this range of addresses.
    pub(crate) fn cached_around(
        &mut self,
        pool: PoolRef,
        stream: StreamId,
        addr: Addr,
        bytes: u64,
    ) -> Option<BlockId> {
        self.pools.cached_around(pool, stream, addr, bytes)
    }

    pub(crate) fn reserved_bytes(&self) -> u64 {
        self.reserved_bytes
    }

    pub(crate) fn observer(&self) -> &O {
        &self.observer
    }

    pub(crate) fn observer_mut(&mut self) -> &mut O {
        &mut self.observer
    }

    /// The block of an allocation; none for a request of 0 bytes.
    ///
    /// # Panics
    /// If the allocation belongs to another allocator, or its pool was restored to a checkpoint since.
    pub(crate) fn held(&self, allocation: &Allocation) -> Option<BlockId> {
        let id = allocation.block()?;
        let block = self.pools.get(id).map(|block| (block.addr, block.state, block.generation));
        let expected = (allocation.addr(), SlotState::Active, allocation.generation());
        assert_eq!(block, Some(expected), "{NOT_OURS}");
        Some(id)
    }

    /// An active block as it appears in events.
    #[inline]
    pub(crate) fn live(&self, id: BlockId) -> LiveBlock {
        let block = self.pools.block(id);
        let (pool, pool_id) = self.pools.kind_and_id(block.pool);
        LiveBlock {
            addr: block.addr,
            bytes: block.bytes,
            requested_bytes: block.requested_bytes,
            stream: block.stream,
            pool,
            pool_id,
            tag: block.tag,
            stack: block.stack,
        }
    }

    /// A block's memory as it appears in events.
    pub(crate) fn memory_of(&self, id: BlockId) -> DeviceRange {
        let block = self.pools.block(id);
        self.range_in(block, block.addr, block.bytes)
    }

    fn range_in(&self, block: &Block, addr: Addr, bytes: u64) -> DeviceRange {
        let (pool, pool_id) = self.pools.kind_and_id(block.pool);
        DeviceRange { addr, bytes, stream: block.stream, pool, pool_id }
    }
}

/// Changes that affect no statistic, so they send no event.
impl<O> Heap<O> {
    /// Makes an empty pool. Returns its small and its large half.
    pub(crate) fn add_pool(&mut self, id: PoolId) -> [PoolRef; 2] {
        self.pools.add_pool(id)
    }

    /// Removes a pool if it has no segment. Returns whether it was removed.
    pub(crate) fn remove_if_empty(&mut self, [small, large]: [PoolRef; 2]) -> bool {
        let is_empty = self.pools.segments_in(small) + self.pools.segments_in(large) == 0;
        if is_empty {
            self.pools.remove_pool(small);
        }
        is_empty
    }

    /// Counts a search for a request: the age of cached blocks is measured in searches.
    pub(crate) fn count_search(&mut self, sized: &SizedRequest) {
        self.pools.count_search(sized.pool);
    }

    /// The uses of a block on other streams.
    pub(crate) fn waits_mut(&mut self, id: BlockId) -> &mut Waits {
        self.pools.waits_mut(id)
    }

    /// Makes a freed block wait for other streams.
    pub(crate) fn set_pending(&mut self, id: BlockId) {
        self.pools.set_pending(id);
    }

    /// Begins a new generation, which [`renew`](Self::renew) assigns to blocks.
    pub(crate) fn begin_generation(&mut self) {
        self.pools.begin_generation();
    }

    /// Invalidates the earlier allocations of a block.
    pub(crate) fn renew(&mut self, id: BlockId) {
        self.pools.renew(id);
    }

    /// Adds an expandable segment. Its one block is unmapped.
    pub(crate) fn add_unmapped(&mut self, segment: NewSegment) -> BlockId {
        assert_start(segment.addr);
        let id = self.pools.add_segment(segment);
        self.pools.file(id);
        id
    }

    /// Removes an expandable segment that consists of one unmapped block.
    pub(crate) fn remove_unmapped(&mut self, id: BlockId) {
        self.pools.remove_segment(id);
    }
}

/// Import: memory is added and removed without an event.
impl<O> Heap<O> {
    /// Adds a segment with its blocks, of which `mapped_bytes` are mapped. Returns its allocations in address order.
    pub(crate) fn import(
        &mut self,
        segment: NewSegment,
        pieces: &[Piece],
        mapped_bytes: u64,
    ) -> Vec<Allocation> {
        let held = self.pools.import(segment, pieces);
        self.reserved_bytes += mapped_bytes;
        let allocation = |id| Allocation::of_block(id, self.pools.block(id).generation, &self.live(id));
        held.into_iter().map(allocation).collect()
    }

    /// Makes unmapped pages cached.
    pub(crate) fn import_pages(&mut self, id: BlockId, addr: Addr, bytes: u64) {
        self.pools.convert(id, addr, bytes, SlotState::Cached);
        self.reserved_bytes += bytes;
    }

    /// Makes cached pages unmapped.
    pub(crate) fn disown_pages(&mut self, id: BlockId, addr: Addr, bytes: u64) {
        self.pools.convert(id, addr, bytes, SlotState::Unmapped);
        self.reserved_bytes -= bytes;
    }

    /// Removes a cached segment.
    pub(crate) fn disown_segment(&mut self, id: BlockId) {
        self.reserved_bytes -= self.pools.block(id).bytes;
        self.pools.remove_segment(id);
    }
}

/// Blocks.
impl<O: Observer> Heap<O> {
    /// Sends an event that does not come from a change of a block.
    pub(crate) fn send(&mut self, event: &Event) {
        self.observer.on(event);
    }

    /// Allocates a cached block, and sends the event.
    #[inline(always)] // Note [Laid out once] in `allocator.rs`
    pub(crate) fn allocate(
        &mut self,
        found: BlockId,
        bytes: u64,
        request: &Request,
        cut: Cut,
        config: &Config,
    ) -> Allocation {
        let (id, inactive_split) = self.pools.occupy(found, bytes, request, cut);
        let Block { addr, bytes, pool, generation, .. } = *self.pools.block(id);
        let (pool, pool_id) = self.pools.kind_and_id(pool);
        let Request { bytes: requested_bytes, stream, stack, .. } = *request;
        let tag = request.tag();
        let block = LiveBlock { addr, bytes, requested_bytes, stream, pool, pool_id, tag, stack };
        let oversize = is_oversize(config, block.bytes);
        self.observer.on(&Event::Alloc { block, inactive_split, oversize });
        Allocation::of_block(id, generation, &block)
    }

    /// Sends the event of a free. The caller completes the free, now or later.
    #[inline(always)] // as above
    pub(crate) fn request_free(&mut self, id: BlockId, config: &Config) -> LiveBlock {
        let block = self.live(id);
        let oversize = is_oversize(config, block.bytes);
        self.observer.on(&Event::Free { block, oversize });
        block
    }

    /// Completes a block's free immediately after its request: the block becomes cached.
    #[inline]
    pub(crate) fn complete_free_at_once(&mut self, id: BlockId, block: LiveBlock) {
        self.put_back(id, block, true);
    }

    /// Caches a freed block that no stream uses any more.
    pub(crate) fn complete_free(&mut self, id: BlockId) {
        self.put_back(id, self.live(id), false);
    }

    #[inline]
    fn put_back(&mut self, id: BlockId, block: LiveBlock, at_once: bool) {
        let inactive_split = self.pools.vacate(id);
        self.observer.on(&Event::FreeCompleted { block, inactive_split, at_once });
    }

    /// Changes the tag of an active block.
    pub(crate) fn retag(&mut self, id: BlockId, tag: Tag) {
        let from = self.pools.retag(id, tag);
        self.observer.on(&Event::Retag { block: self.live(id), from });
    }
}

/// Segments and pages.
impl<O: Observer> Heap<O> {
    /// Adds a segment that the device has allocated. Its one block is cached.
    pub(crate) fn add_segment(
        &mut self,
        segment: NewSegment,
        stack: Option<StackId>,
        config: &Config,
    ) -> BlockId {
        assert_start(segment.addr);
        self.reserved_bytes += segment.bytes;
        let id = self.pools.add_segment(segment);
        self.pools.file(id);
        let (memory, oversize) = (self.memory_of(id), is_oversize(config, segment.bytes));
        self.observer.on(&Event::SegmentAlloc { memory, oversize, stack });
        id
    }

    /// Removes a cached segment that the device has freed.
    pub(crate) fn remove_segment(&mut self, id: BlockId, config: &Config) {
        let memory = self.memory_of(id);
        self.disown_segment(id);
        let oversize = is_oversize(config, memory.bytes);
        self.observer.on(&Event::SegmentFree { memory, oversize });
    }

    /// Makes the first bytes of an unmapped block cached, after the device has mapped them.
    pub(crate) fn map_front(&mut self, id: BlockId, mapped_bytes: u64, stack: Option<StackId>) {
        let block = *self.pools.block(id);
        self.pools.map_front(id, mapped_bytes);
        self.reserved_bytes += mapped_bytes;
        let memory = self.range_in(&block, block.addr, mapped_bytes);
        self.observer.on(&Event::SegmentMap { memory, stack });
    }

    /// Makes pages of a cached block unmapped, after the device has unmapped them.
    pub(crate) fn unmap(&mut self, id: BlockId, addr: Addr, bytes: u64) {
        let block = *self.pools.block(id);
        self.disown_pages(id, addr, bytes);
        let memory = self.range_in(&block, addr, bytes);
        self.observer.on(&Event::SegmentUnmap { memory });
    }
}

/// Checks the address of new device memory.
///
/// # Panics
/// If it is 0 or not a multiple of 512: a bug in the driver.
fn assert_start(addr: Addr) {
    assert!(addr.0 != 0 && addr.0.is_multiple_of(MIN_BLOCK_BYTES), "the driver's memory starts at {addr}");
}
