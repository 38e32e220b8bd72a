//! The cached block that contains a range of addresses.
//!
//! A replay allocates at recorded addresses. A recorded request is often served from a new segment, whose block is the largest, or
//! from the best fit, so the search first looks at a few blocks from both ends of the order. If it finds nothing there,
//! it builds an index by address, which is kept from then on. If there is no such search, the index costs only one
//! comparison for each cached block.

use std::collections::BTreeMap;

use super::Pools;
use crate::block::{BlockId, PoolRef};
use crate::request::{Addr, StreamId};

/// How many blocks a search looks at from each end of the order before it builds an index.
const LOOKS: usize = 16;

impl Pools {
    /// The cached block of `stream` that contains this range of addresses.
    pub(crate) fn cached_around(
        &mut self,
        pool: PoolRef,
        stream: StreamId,
        addr: Addr,
        bytes: u64,
    ) -> Option<BlockId> {
        let end = addr.0.checked_add(bytes)?;
        let holds = |id: &BlockId| {
            let block = &self.blocks[*id];
            block.stream == stream && block.addr <= addr && end <= block.addr.0 + block.bytes
        };
        if self.by_address.is_none() {
            let up = std::iter::successors(self.best_fit(pool, stream, bytes), |&id| self.next_fit(id));
            let largest = self.largest_below(pool, stream, u64::MAX);
            let down = std::iter::successors(largest, |&id| self.next_smaller(id));
            if let Some(found) = up.take(LOOKS).chain(down.take(LOOKS)).find(holds) {
                return Some(found);
            }
            let cached: Vec<BlockId> = self.halves().flat_map(|half| self.cached(half)).collect();
            self.by_address = Some(BTreeMap::new());
            cached.into_iter().for_each(|id| self.index(id));
        }
        let before = self.by_address.as_ref()?.range(..=(pool.index(), addr)).next_back();
        let holds = |id: &BlockId| {
            let block = &self.blocks[*id];
            block.pool == pool && block.stream == stream && end <= block.addr.0 + block.bytes
        };
        before.map(|(_, id)| *id).filter(holds)
    }
}
