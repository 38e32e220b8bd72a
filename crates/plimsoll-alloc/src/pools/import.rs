//! Importing segments of another allocator, block by block as described.

use super::Pools;
use super::pieces::NewSegment;
use crate::adopt::{Piece, PieceState};
use crate::block::{Block, BlockId, PoolRef, SlotState};
use crate::request::{Addr, StreamId};

impl Pools {
    /// Adds a segment with its blocks. Returns the allocated ones in address order.
    pub(crate) fn import(&mut self, segment: NewSegment, pieces: &[Piece]) -> Vec<BlockId> {
        let first = self.add_segment(segment);
        let template = self.blocks[first];
        let (mut held, mut at, mut last) = (Vec::new(), segment.addr, None);
        for piece in pieces {
            let (state, requested_bytes) = match piece.state {
                PieceState::Held { requested_bytes } => (SlotState::Active, requested_bytes),
                PieceState::Cached => (SlotState::Cached, 0),
                PieceState::Unmapped => (SlotState::Unmapped, 0),
            };
            let block = Block { addr: at, bytes: piece.bytes, state, requested_bytes, ..template };
            let id = match last {
                None => {
                    self.blocks[first] = block;
                    first
                }
                Some(last) => self.insert_between(Some(last), None, block),
            };
            if state == SlotState::Active {
                held.push(id);
            } else {
                self.file(id);
            }
            (at, last) = (at.plus(piece.bytes), Some(id));
        }
        held
    }

    /// The last unmapped block of a half and stream that starts at or before `addr`.
    pub(crate) fn unmapped_before(&self, pool: PoolRef, stream: StreamId, addr: Addr) -> Option<BlockId> {
        let unmapped = &self.pool(pool).unmapped;
        unmapped.range((stream, Addr(0))..=(stream, addr)).next_back().map(|(_, &id)| id)
    }
}
