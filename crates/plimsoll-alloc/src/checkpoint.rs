//! Saving and restoring a private pool's layout: [`Checkpoint`].
//!
//! A graph replay leaves the pool as its capture left it, whatever was allocated since. So before
//! another capture into the same pool, the pool is restored to the layout of the checkpoint: all allocations
//! are freed, every block of the checkpoint is allocated again at its address, and those that were not
//! allocated then are freed. Segments added since the checkpoint stay, cached.
//!
//! As PyTorch: `getCheckpointState`, `setCheckpointPoolState`. Segments are visited in the order of their
//! addresses (PyTorch's order is a hash map's).

use std::fmt;

use crate::allocator::Allocator;
use crate::block::{Block, BlockId, SlotState};
use crate::driver::Driver;
use crate::error::Error;
use crate::event::Observer;
use crate::pieces::Cut;
use crate::pool::PoolRef;
use crate::private::PoolError;
use crate::request::{Addr, Allocation, PoolId, Request, StreamId};

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

/// The result of restoring a pool: [`Allocator::restore`]; see [`Checkpoint`] for an example.
#[derive(Debug, Default)]
#[must_use = "an allocation that is dropped instead of freed is leaked"]
pub struct Restored {
    /// Blocks that were allocated before and are not any more, by address. Drop their [`Allocation`]s
    /// without `free`, which would panic. They are invalid even if the block is allocated again.
    pub freed: Vec<Addr>,
    /// Blocks that are allocated again, by segment.
    pub held: Vec<Allocation>,
}

/// Why a pool cannot be restored.
///
/// ```
/// # use plimsoll_alloc::{Addr, CheckpointError};
/// let why = CheckpointError::SegmentGone(Addr(0x5000_0000_0000));
/// assert_eq!(why.to_string(), "the segment at 0x500000000000 of the checkpoint is no longer in the pool");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckpointError {
    /// A block is used on other streams, or waits for them.
    InUse(Addr),
    /// A segment of the checkpoint was released, or its pages are mapped differently now.
    SegmentGone(Addr),
}

impl fmt::Display for CheckpointError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InUse(addr) => write!(f, "the block at {addr} is still used on another stream"),
            Self::SegmentGone(addr) => {
                write!(f, "the segment at {addr} of the checkpoint is no longer in the pool")
            }
        }
    }
}

impl std::error::Error for CheckpointError {}

impl<D: Driver, O: Observer> Allocator<D, O> {
    /// Saves a private pool's layout.
    ///
    /// # Errors
    /// [`PoolError::Unknown`] if there is no such pool.
    pub fn checkpoint(&self, id: PoolId) -> Result<Checkpoint, Error> {
        let halves = self.privates.get(id).ok_or(PoolError::Unknown(id))?.halves;
        let segments = self.chains_of(halves).into_iter().map(|chain| {
            let piece = |id| {
                let Block { addr, bytes, stream, state, .. } = self.pools.blocks[id];
                Piece { addr, bytes, stream, state }
            };
            chain.into_iter().map(piece).collect()
        });
        Ok(Checkpoint { pool: id, segments: segments.collect() })
    }

    /// Restores a private pool to a saved layout. Everything is checked first:
    /// on an error, the pool does not change.
    ///
    /// # Errors
    /// [`PoolError::Unknown`] or [`PoolError::Unused`] if the pool has no users, [`CheckpointError`] if a
    /// block is used on other streams or a segment is gone.
    pub fn restore(&mut self, checkpoint: &Checkpoint) -> Result<Restored, Error> {
        let id = checkpoint.pool;
        let pool = *self.privates.get(id).ok_or(PoolError::Unknown(id))?;
        if pool.use_count == 0 {
            return Err(PoolError::Unused(id).into());
        }
        let chains = self.chains_of(pool.halves);
        self.check_restorable(&chains, checkpoint)?;
        let mut restored = Restored::default();
        self.pools.generation = self.pools.generation.wrapping_add(1);
        for id in chains.into_iter().flatten() {
            if self.pools.blocks.get(id).is_some_and(|block| block.state == SlotState::Active) {
                restored.freed.push(self.pools.blocks[id].addr);
                self.free_block(id);
            }
        }
        for id in self.chains_of(pool.halves).into_iter().flatten() {
            self.pools.blocks[id].generation = self.pools.generation;
        }
        for pieces in &checkpoint.segments {
            let blocks = self.give_out_again(pool.halves, pieces);
            for (piece, allocation) in blocks {
                if piece.state == SlotState::Active {
                    restored.held.push(allocation);
                } else {
                    self.free(allocation);
                }
            }
        }
        Ok(restored)
    }

    /// The blocks of each segment of a pool, by address.
    fn chains_of(&self, halves: [PoolRef; 2]) -> Vec<Vec<BlockId>> {
        let blocks = &self.pools.blocks;
        let firsts =
            blocks.ids().filter(|&id| halves.contains(&blocks[id].pool) && blocks[id].prev.is_none());
        let mut firsts: Vec<BlockId> = firsts.collect();
        firsts.sort_by_key(|&id| blocks[id].addr);
        let chain = |first| std::iter::successors(Some(first), |&id: &BlockId| blocks[id].next).collect();
        firsts.into_iter().map(chain).collect()
    }

    /// Checks that nothing waits for other streams, and that the mapped ranges are those of the checkpoint.
    fn check_restorable(
        &self,
        chains: &[Vec<BlockId>],
        checkpoint: &Checkpoint,
    ) -> Result<(), CheckpointError> {
        for block in chains.iter().flatten().map(|&id| &self.pools.blocks[id]) {
            if block.state == SlotState::Pending || block.uses.is_some() {
                return Err(CheckpointError::InUse(block.addr));
            }
        }
        let piece = |block: &Block| (block.addr, block.bytes, block.is_mapped());
        let now: Vec<Vec<(Addr, u64)>> = chains
            .iter()
            .map(|chain| mapped_runs(chain.iter().map(|&id| piece(&self.pools.blocks[id]))))
            .collect();
        for pieces in &checkpoint.segments {
            let then = mapped_runs(
                pieces.iter().map(|piece| (piece.addr, piece.bytes, piece.state != SlotState::Unmapped)),
            );
            if !now.contains(&then) {
                return Err(CheckpointError::SegmentGone(pieces[0].addr));
            }
        }
        Ok(())
    }

    /// Allocates every mapped piece of one segment, from a pool without allocations.
    fn give_out_again(&mut self, halves: [PoolRef; 2], pieces: &[Piece]) -> Vec<(Piece, Allocation)> {
        let cached = halves.iter().flat_map(|&half| self.pools.pool(half).cached.iter(&self.pools.blocks));
        let firsts: std::collections::BTreeMap<Addr, BlockId> =
            cached.map(|id| (self.pools.blocks[id].addr, id)).collect();
        let (mut given, mut rest) = (Vec::new(), None);
        for &piece in pieces.iter().filter(|piece| piece.state != SlotState::Unmapped) {
            let found = rest.or_else(|| firsts.get(&piece.addr).copied()).expect("the layout was compared");
            let whole = self.pools.blocks[found].bytes == piece.bytes;
            let request = Request { stream: piece.stream, ..Request::of(piece.bytes) };
            let cut = if whole { Cut::Whole } else { Cut::Front };
            let allocation = self.allocate_cut(found, piece.bytes, &request, cut);
            rest = if whole { None } else { Some(found) };
            given.push((piece, allocation));
        }
        given
    }
}

/// The contiguous mapped ranges, by address.
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
