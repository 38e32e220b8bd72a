//! A private pool's layout, taken down and brought back: [`Checkpoint`].
//!
//! A graph that is replayed leaves the pool as its capture left it, whatever was allocated since. So before
//! another capture into the same pool, the pool is brought to the layout of the checkpoint: everything held
//! is given back, every block of the checkpoint is given out again at its place, and those that were not
//! held then are given back. What the pool got since the checkpoint stays, cached.
//!
//! As PyTorch: `getCheckpointState`, `setCheckpointPoolState`. Segments are taken in the order of their
//! addresses (PyTorch's order is a hash map's).

use std::fmt;

use crate::allocator::Allocator;
use crate::block::{Block, BlockId, State};
use crate::driver::Driver;
use crate::error::Error;
use crate::event::Observer;
use crate::pieces::Cut;
use crate::pool::PoolRef;
use crate::private::PoolError;
use crate::request::{Addr, Allocation, PoolId, Request, StreamId};

/// How a private pool's segments were cut, and what of them was held.
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
    state: State,
}

/// What bringing a pool back did: [`Allocator::restore`]; see [`Checkpoint`] for an example.
#[derive(Debug, Default)]
#[must_use = "an allocation that is dropped instead of freed is leaked"]
pub struct Restored {
    /// Blocks that were held and are no more, by address: whoever has their [`Allocation`] must drop it
    /// without a `free`, which would panic. They stand for nothing any more, even if the block is held again.
    pub given_back: Vec<Addr>,
    /// Blocks that are held again, segment by segment.
    pub held: Vec<Allocation>,
}

/// Why a pool cannot be brought back.
///
/// ```
/// # use plimsoll_alloc::{Addr, CheckpointError};
/// let why = CheckpointError::SegmentGone(Addr(0x5000_0000_0000));
/// assert_eq!(why.to_string(), "the segment at 0x500000000000 of the checkpoint is not in the pool any more");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckpointError {
    /// A held block is used on other streams, or waits for them.
    InUse(Addr),
    /// A segment of the checkpoint was released, or is mapped otherwise now.
    SegmentGone(Addr),
}

impl fmt::Display for CheckpointError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InUse(addr) => write!(f, "the block at {addr} is still used on another stream"),
            Self::SegmentGone(addr) => {
                write!(f, "the segment at {addr} of the checkpoint is not in the pool any more")
            }
        }
    }
}

impl std::error::Error for CheckpointError {}

impl<D: Driver, O: Observer> Allocator<D, O> {
    /// Takes a private pool's layout down.
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

    /// Brings a private pool back to a layout that was taken down before. Everything is checked first:
    /// an error leaves the pool as it was.
    ///
    /// # Errors
    /// [`PoolError::Unknown`] or [`PoolError::Unused`] if the pool has no users, [`CheckpointError`] if a
    /// held block is used on other streams or a segment is gone.
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
            if self.pools.blocks.get(id).is_some_and(|block| block.state == State::Active) {
                restored.given_back.push(self.pools.blocks[id].addr);
                self.free_block(id);
            }
        }
        for id in self.chains_of(pool.halves).into_iter().flatten() {
            self.pools.blocks[id].generation = self.pools.generation;
        }
        for pieces in &checkpoint.segments {
            let blocks = self.give_out_again(pool.halves, pieces);
            for (piece, allocation) in blocks {
                if piece.state == State::Active {
                    restored.held.push(allocation);
                } else {
                    self.free(allocation);
                }
            }
        }
        Ok(restored)
    }

    /// The blocks of each segment of a pool, all by address.
    fn chains_of(&self, halves: [PoolRef; 2]) -> Vec<Vec<BlockId>> {
        let blocks = &self.pools.blocks;
        let firsts =
            blocks.ids().filter(|&id| halves.contains(&blocks[id].pool) && blocks[id].prev.is_none());
        let mut firsts: Vec<BlockId> = firsts.collect();
        firsts.sort_by_key(|&id| blocks[id].addr);
        let chain = |first| std::iter::successors(Some(first), |&id: &BlockId| blocks[id].next).collect();
        firsts.into_iter().map(chain).collect()
    }

    /// Nothing may wait for other streams, and what has memory behind it must be where it was.
    fn check_restorable(
        &self,
        chains: &[Vec<BlockId>],
        checkpoint: &Checkpoint,
    ) -> Result<(), CheckpointError> {
        for block in chains.iter().flatten().map(|&id| &self.pools.blocks[id]) {
            if block.state == State::Pending || block.uses.is_some() {
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
                pieces.iter().map(|piece| (piece.addr, piece.bytes, piece.state != State::Unmapped)),
            );
            if !now.contains(&then) {
                return Err(CheckpointError::SegmentGone(pieces[0].addr));
            }
        }
        Ok(())
    }

    /// Gives every mapped piece of one segment out, from a pool in which nothing is held.
    fn give_out_again(&mut self, halves: [PoolRef; 2], pieces: &[Piece]) -> Vec<(Piece, Allocation)> {
        let cached = halves.iter().flat_map(|&half| self.pools.pool(half).cached.iter(&self.pools.blocks));
        let firsts: std::collections::BTreeMap<Addr, BlockId> =
            cached.map(|id| (self.pools.blocks[id].addr, id)).collect();
        let (mut given, mut rest) = (Vec::new(), None);
        for &piece in pieces.iter().filter(|piece| piece.state != State::Unmapped) {
            let found = rest.or_else(|| firsts.get(&piece.addr).copied()).expect("the layout was compared");
            let whole = self.pools.blocks[found].bytes == piece.bytes;
            let request = Request { stream: piece.stream, ..Request::of(piece.bytes) };
            let cut = if whole { Cut::Whole } else { Cut::Front };
            let allocation = self.give_cut(found, piece.bytes, &request, cut);
            rest = if whole { None } else { Some(found) };
            given.push((piece, allocation));
        }
        given
    }
}

/// Where memory lies without a gap, by address.
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
