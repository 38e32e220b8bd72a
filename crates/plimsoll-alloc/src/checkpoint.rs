//! Saving and restoring a private pool's layout: [`Checkpoint`].
//!
//! After a graph replay, the pool is as it was at the end of the capture, regardless of later allocations. So before
//! another capture into the same pool, the pool is restored to the checkpoint's layout: all allocations are freed,
//! every block of the checkpoint is allocated again at its address, and the blocks that were free at the checkpoint are
//! freed. Segments added since the checkpoint stay, cached.
//!
//! In PyTorch: `getCheckpointState`, `setCheckpointPoolState`. Segments are visited in address order (PyTorch visits
//! them in the order of a hash map).

use std::collections::BTreeMap;

use crate::allocation::Allocation;
use crate::block::{Block, BlockId, PoolRef, SlotState};
use crate::config::Config;
use crate::error::CheckpointError;
use crate::event::Observer;
use crate::heap::Heap;
use crate::pools::{Cut, Pools};
use crate::request::{Addr, PoolId, Request, StreamId};

/// The layout of a private pool: its segments, their blocks, and which were allocated.
///
/// ```
/// use plimsoll_alloc::{Allocator, Config, PoolId, Request, SimDriver};
///
/// let mut allocator = Allocator::new(Config::default(), SimDriver::with_capacity(64 << 20), ());
/// let pool = PoolId(0, 1);
/// allocator.create_pool(pool)?;
/// let x = allocator.malloc(Request { pool, ..Request::of(3 << 20) })?;
/// let checkpoint = allocator.checkpoint(pool)?;
/// let addr = x.addr();
/// allocator.free(x);
/// let restored = allocator.restore(&checkpoint)?;
/// assert_eq!(restored.held[0].addr(), addr); // it is held again
/// # Ok::<(), plimsoll_alloc::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    pool: PoolId,
    segments: Vec<Vec<Piece>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Piece {
    addr: Addr,
    bytes: u64,
    stream: StreamId,
    state: SlotState,
}

/// The result of restoring a pool: [`Allocator::restore`](crate::Allocator::restore); see [`Checkpoint`] for an example.
#[derive(Debug, Default)]
#[must_use = "an allocation that is dropped instead of freed is leaked"]
pub struct Restored {
    /// The addresses of blocks that were allocated before the restore and no longer are, in ascending order. Drop their
    /// [`Allocation`]s without `free`, which would panic. They are invalid even if the block is allocated again.
    pub freed: Vec<Addr>,
    /// The blocks of the checkpoint, allocated again, segment by segment.
    pub held: Vec<Allocation>,
}

impl Checkpoint {
    /// The pool.
    pub(crate) fn pool(&self) -> PoolId {
        self.pool
    }

    /// Saves the layout of a pool.
    pub(crate) fn of(pool: PoolId, halves: [PoolRef; 2], pools: &Pools) -> Self {
        let piece = |id| {
            let Block { addr, bytes, stream, state, .. } = *pools.block(id);
            Piece { addr, bytes, stream, state }
        };
        let chains = pools.chains_of(halves).into_iter();
        Self { pool, segments: chains.map(|chain| chain.into_iter().map(piece).collect()).collect() }
    }

    /// Checks that no block waits for other streams, and that the same ranges are mapped as at the checkpoint.
    fn check(&self, chains: &[Vec<BlockId>], pools: &Pools) -> Result<(), CheckpointError> {
        for block in chains.iter().flatten().map(|&id| pools.block(id)) {
            if block.state == SlotState::Pending || block.waits.has_uses() {
                return Err(CheckpointError::InUse(block.addr));
            }
        }
        let piece = |block: &Block| (block.addr, block.bytes, block.is_mapped());
        let now: Vec<Vec<(Addr, u64)>> =
            chains.iter().map(|chain| mapped_runs(chain.iter().map(|&id| piece(pools.block(id))))).collect();
        for pieces in &self.segments {
            let then = mapped_runs(
                pieces.iter().map(|piece| (piece.addr, piece.bytes, piece.state != SlotState::Unmapped)),
            );
            if !now.contains(&then) {
                return Err(CheckpointError::SegmentGone(pieces[0].addr));
            }
        }
        Ok(())
    }

    /// Restores the layout to the pool with these halves. Everything is checked first:
    /// on an error, the pool does not change.
    pub(crate) fn restore<O: Observer>(
        &self,
        halves: [PoolRef; 2],
        heap: &mut Heap<O>,
        config: &Config,
    ) -> Result<Restored, CheckpointError> {
        let chains = heap.pools().chains_of(halves);
        self.check(&chains, heap.pools())?;
        let mut restored = Restored::default();
        heap.begin_generation();
        for id in chains.into_iter().flatten() {
            if let Some(&Block { state: SlotState::Active, addr, .. }) = heap.pools().get(id) {
                restored.freed.push(addr);
                free(heap, id, config);
            }
        }
        for id in heap.pools().chains_of(halves).into_iter().flatten() {
            heap.renew(id);
        }
        for pieces in &self.segments {
            for (piece, allocation) in allocate_again(heap, halves, pieces, config) {
                if piece.state == SlotState::Active {
                    restored.held.push(allocation);
                } else if let Some(id) = heap.held(&allocation) {
                    free(heap, id, config);
                }
            }
        }
        Ok(restored)
    }
}

/// Frees a block that no other stream uses.
fn free<O: Observer>(heap: &mut Heap<O>, id: BlockId, config: &Config) {
    let block = heap.request_free(id, config);
    heap.complete_free_at_once(id, block);
}

/// Allocates every mapped piece of one segment, from a pool without allocations.
fn allocate_again<O: Observer>(
    heap: &mut Heap<O>,
    halves: [PoolRef; 2],
    pieces: &[Piece],
    config: &Config,
) -> Vec<(Piece, Allocation)> {
    let pools = heap.pools();
    let cached = halves.iter().flat_map(|&half| pools.cached(half));
    let firsts: BTreeMap<Addr, BlockId> = cached.map(|id| (pools.block(id).addr, id)).collect();
    let (mut given, mut rest) = (Vec::new(), None);
    for &piece in pieces.iter().filter(|piece| piece.state != SlotState::Unmapped) {
        let found = rest.or_else(|| firsts.get(&piece.addr).copied()).expect("the layout was compared");
        let whole = heap.pools().block(found).bytes == piece.bytes;
        let request = Request { stream: piece.stream, ..Request::of(piece.bytes) };
        let cut = if whole { Cut::Whole } else { Cut::Front };
        let allocation = heap.allocate(found, piece.bytes, &request, cut, config);
        rest = if whole { None } else { Some(found) };
        given.push((piece, allocation));
    }
    given
}

/// The contiguous mapped ranges, in address order.
fn mapped_runs(blocks: impl Iterator<Item = (Addr, u64, bool)>) -> Vec<(Addr, u64)> {
    let mut runs: Vec<(Addr, u64)> = Vec::new();
    for (addr, bytes, _) in blocks.filter(|&(_, _, is_mapped)| is_mapped) {
        match runs.last_mut() {
            Some((start, length)) if start.plus(*length) == addr => *length += bytes,
            _ => runs.push((addr, bytes)),
        }
    }
    runs
}
