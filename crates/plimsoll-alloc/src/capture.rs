//! Graph captures: how frees work while work is captured into a graph rather than run.
//!
//! Events are not queried then, so a block that other streams use stays pending until the captures are
//! over. With `graph_capture_record_stream_reuse` it can be reused earlier: when it is freed, the last nodes of
//! every stream that used it are recorded; once all of these precede the next work of the block's own stream
//! (the streams have joined), the next use of the memory is ordered after them, and no event is needed.
//!
//! As PyTorch: `record_free_markers`, `free_safe_blocks_in_capture`. The driver reports which streams are captured,
//! and into which graph: [`Driver::is_capturing`], [`Driver::captured`].

use std::collections::{BTreeMap, BTreeSet};

use crate::allocator::Allocator;
use crate::block::BlockId;
use crate::driver::{Captured, Driver, NodeId};
use crate::error::Error;
use crate::event::Observer;
use crate::request::{PoolId, StreamId};

/// The graph nodes after which a freed block is no longer used.
#[derive(Debug)]
pub(crate) struct LastUses {
    capture: u64,
    nodes: Vec<NodeId>,
}

/// By capture and stream, the nodes that are known to precede the stream's next work. A graph only grows,
/// so no node is visited twice.
#[derive(Debug, Default)]
pub(crate) struct NodesBefore(BTreeMap<(u64, StreamId), BTreeSet<NodeId>>);

impl NodesBefore {
    /// Forgets all graphs: later ones may reuse node ids.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

impl<D: Driver, O: Observer> Allocator<D, O> {
    /// Completes the frees that no longer wait for other streams. Runs at the start of each request.
    #[inline(always)] // Note [Laid out once]
    pub(crate) fn settle_frees(&mut self, stream: StreamId) -> Result<(), Error> {
        if self.streams.is_idle() {
            Ok(())
        } else if self.in_capture() {
            self.settle_frees_in_capture(stream)
        } else {
            self.poll_events()
        }
    }

    /// Frees the blocks of `stream` whose last uses all precede the stream's next work.
    #[cold]
    fn settle_frees_in_capture(&mut self, stream: StreamId) -> Result<(), Error> {
        if !self.config.graph_capture_record_stream_reuse() || !self.streams.has_deferred() {
            return Ok(());
        }
        let Some(Captured { capture, tail }) = self.driver.captured(stream)? else { return Ok(()) };
        let mut before = self.streams.nodes_before.0.remove(&(capture, stream)).unwrap_or_default();
        self.walk_back(tail, &mut before)?; // after a failure, the walk starts over
        let is_past = |uses: &LastUses| {
            uses.capture == capture
                && !uses.nodes.is_empty()
                && uses.nodes.iter().all(|node| before.contains(node))
        };
        let blocks = &self.pools.blocks;
        let settled = self.streams.deferred_with_last_uses();
        let settled = settled.filter(|&(id, uses)| blocks[id].stream == stream && is_past(uses));
        let settled: Vec<BlockId> = settled.map(|(id, _)| id).collect();
        self.streams.nodes_before.0.insert((capture, stream), before);
        settled.into_iter().for_each(|id| self.settle_in_capture(id));
        Ok(())
    }

    /// Frees the blocks of a pool that only a capture used on other streams. The capture is over when no more
    /// requests go to the pool.
    pub(crate) fn settle_frees_in_pool(&mut self, pool: PoolId) {
        if self.config.graph_capture_record_stream_reuse() {
            let of_pool = |&id: &BlockId| self.pools.pool(self.pools.blocks[id].pool).id == pool;
            let settled: Vec<BlockId> = self.streams.deferred().filter(of_pool).collect();
            settled.into_iter().for_each(|id| self.settle_in_capture(id));
        }
    }

    /// Adds `from` and all its predecessors to the known nodes.
    fn walk_back(&self, mut from: Vec<NodeId>, known: &mut BTreeSet<NodeId>) -> Result<(), Error> {
        while let Some(node) = from.pop() {
            if !known.contains(&node) {
                from.extend(self.driver.dependencies(node)?);
                known.insert(node);
            }
        }
        Ok(())
    }

    /// The nodes after which a block that is freed in a capture is no longer used; `None` if the option is
    /// off, or if not all streams that use the block are captured into one graph.
    pub(crate) fn last_uses(&self, id: BlockId) -> Option<LastUses> {
        if !self.config.graph_capture_record_stream_reuse() {
            return None;
        }
        let Captured { capture, tail: mut nodes } = self.captured(self.pools.blocks[id].stream)?;
        for stream in self.streams.uses_of(self.pools.blocks[id].uses) {
            let other = self.captured(stream).filter(|other| other.capture == capture)?;
            nodes.extend(other.tail);
        }
        Some(LastUses { capture, nodes })
    }

    /// The capture of a stream. Freeing does not fail: if the driver returns an error, the block waits for
    /// the end of the capture.
    fn captured(&self, stream: StreamId) -> Option<Captured> {
        self.driver.captured(stream).ok().flatten()
    }
}
