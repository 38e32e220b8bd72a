//! Blocks used on several streams: a freed block is reused only after the other streams are done with it.
//! [`PendingFrees`] has those that wait.
//!
//! A use on another stream is recorded with the block. When the block is freed, an event is recorded on each such
//! stream, and the block is pending until all of these events are done. The streams are visited in id order (in
//! PyTorch, in the order of a hash map). Events are queried at the start of each request outside a capture: stream by
//! stream in id order, each in the order of recording. They are waited for before the cache is released, but never when
//! a block is freed.
//!
//! In PyTorch: `recordStream`, `insert_events`, `process_events`, `synchronize_and_free_events`.

mod check;
mod queues;

use std::collections::{BTreeSet, VecDeque};

use crate::block::BlockId;
use crate::capture::{LastUses, NodesBefore};
use crate::driver::Driver;
use crate::error::Error;
use crate::event::{Event, Observer};
use crate::heap::Heap;
use crate::request::{PoolId, StreamId};
use crate::stream_uses::{Recorded, StreamUses};
use queues::EventQueues;

/// The uses of blocks on other streams, and the frees that wait for their end.
#[derive(Debug, Default)]
pub(crate) struct PendingFrees {
    uses: StreamUses,
    events: EventQueues,
    /// Freed blocks whose events are not recorded yet, because of a capture or because
    /// the device failed.
    deferred: VecDeque<Deferred>,
    /// Pending blocks whose free the caller completes: `allocator/adopt.rs`.
    elsewhere: BTreeSet<BlockId>,
}

#[derive(Debug)]
struct Deferred {
    block: BlockId,
    /// The nodes after which a capture no longer uses the block, if known.
    last_uses: Option<LastUses>,
}

/// Uses on other streams.
impl PendingFrees {
    /// Whether no block waits for another stream.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.events.is_empty() && self.deferred.is_empty()
    }

    /// Whether some freed blocks have no recorded events yet.
    pub(crate) fn has_deferred(&self) -> bool {
        !self.deferred.is_empty()
    }

    /// Records that a block is used by a stream other than its own.
    pub(crate) fn record_use<O>(
        &mut self,
        heap: &mut Heap<O>,
        id: BlockId,
        stream: StreamId,
        recorded: Recorded,
    ) {
        self.uses.add(heap.waits_mut(id), stream, recorded);
    }

    /// The last graph nodes of the streams that use a block in a capture, if all of these streams are in it.
    pub(crate) fn last_uses<O>(&self, heap: &Heap<O>, driver: &impl Driver, id: BlockId) -> Option<LastUses> {
        let block = heap.pools().block(id);
        LastUses::of(driver, block.stream, self.uses.streams(block.waits))
    }
}

/// Freeing.
impl PendingFrees {
    /// Keeps a freed block pending until the events of its uses are done. If an event cannot be
    /// recorded now, it is recorded before the next request: freeing does not fail.
    pub(crate) fn wait_for_uses<O>(&mut self, heap: &mut Heap<O>, driver: &mut impl Driver, id: BlockId) {
        heap.set_pending(id);
        if self.record_events(heap, driver, id).is_err() {
            self.deferred.push_back(Deferred { block: id, last_uses: None });
        }
    }

    /// Keeps a block that was freed in a capture pending until the capture ends, or until the stream's next work comes
    /// after its last uses.
    pub(crate) fn wait_for_capture<O>(
        &mut self,
        heap: &mut Heap<O>,
        id: BlockId,
        last_uses: Option<LastUses>,
    ) {
        heap.set_pending(id);
        self.deferred.push_back(Deferred { block: id, last_uses });
    }

    /// Keeps a freed block pending until [`complete`](Self::complete).
    pub(crate) fn wait_for_caller<O>(&mut self, heap: &mut Heap<O>, id: BlockId) {
        heap.set_pending(id);
        self.elsewhere.insert(id);
    }

    /// Completes a free that [`wait_for_caller`](Self::wait_for_caller) left pending.
    ///
    /// # Panics
    /// If the block's free does not wait for the caller.
    pub(crate) fn complete<O: Observer>(&mut self, heap: &mut Heap<O>, id: BlockId) {
        assert!(self.elsewhere.remove(&id), "the block belongs to another allocator");
        heap.complete_free(id);
    }

    /// Records an event on each stream that uses a block. After a failure, the events that were already recorded count.
    fn record_events<O>(
        &mut self,
        heap: &mut Heap<O>,
        driver: &mut impl Driver,
        id: BlockId,
    ) -> Result<(), Error> {
        while let Some(stream) = self.uses.first(*heap.waits_mut(id)) {
            self.events.push(stream, driver.record(stream)?, id);
            self.uses.make_event_of_first(heap.waits_mut(id));
        }
        Ok(())
    }
}

/// Frees that wait for events.
impl PendingFrees {
    /// Completes the frees of blocks whose events are done. In PyTorch: `process_events`.
    pub(crate) fn poll<O: Observer>(
        &mut self,
        heap: &mut Heap<O>,
        driver: &mut impl Driver,
    ) -> Result<(), Error> {
        if self.has_deferred() {
            self.record_deferred(heap, driver)?;
        }
        for queue in 0..self.events.queues() {
            while let Some((event, id)) = self.events.get(queue, 0) {
                if !driver.is_done(event)? {
                    break;
                }
                self.event_is_done(heap, queue, 0, id);
            }
        }
        Ok(())
    }

    /// Waits for all events, or for the events of one pool's blocks, and completes the frees. In PyTorch:
    /// `synchronize_and_free_events`.
    pub(crate) fn wait<O: Observer>(
        &mut self,
        heap: &mut Heap<O>,
        driver: &mut impl Driver,
        pool: Option<PoolId>,
    ) -> Result<(), Error> {
        heap.send(&Event::SyncAllStreams);
        self.record_deferred(heap, driver)?;
        for queue in 0..self.events.queues() {
            let mut at = 0;
            while let Some((event, id)) = self.events.get(queue, at) {
                if pool.is_some_and(|pool| pool_of(heap, id) != pool) {
                    at += 1;
                    continue;
                }
                driver.wait(event)?;
                self.event_is_done(heap, queue, at, id);
            }
        }
        Ok(())
    }

    /// Records the events of deferred blocks. The capture itself orders the uses in it, so those uses need no event.
    fn record_deferred<O: Observer>(
        &mut self,
        heap: &mut Heap<O>,
        driver: &mut impl Driver,
    ) -> Result<(), Error> {
        while let Some(&Deferred { block: id, .. }) = self.deferred.front() {
            self.uses.drop_captured(heap.waits_mut(id));
            self.record_events(heap, driver, id)?;
            self.deferred.pop_front();
            free_if_settled(heap, id);
        }
        Ok(())
    }

    fn event_is_done<O: Observer>(&mut self, heap: &mut Heap<O>, queue: usize, at: usize, id: BlockId) {
        self.events.remove(queue, at);
        heap.waits_mut(id).event_is_done();
        free_if_settled(heap, id);
    }
}

/// Frees that wait for uses in a capture.
impl PendingFrees {
    /// Completes the frees of blocks of `stream` whose last uses all precede its next work.
    pub(crate) fn settle_past<O: Observer>(
        &mut self,
        heap: &mut Heap<O>,
        stream: StreamId,
        before: NodesBefore<'_>,
    ) {
        let is_past = |deferred: &&Deferred| {
            heap.pools().block(deferred.block).stream == stream
                && deferred.last_uses.as_ref().is_some_and(|uses| uses.are_past(before))
        };
        let settled: Vec<BlockId> =
            self.deferred.iter().filter(is_past).map(|deferred| deferred.block).collect();
        settled.into_iter().for_each(|id| self.settle(heap, id));
    }

    /// Completes the frees of a pool's blocks that other streams used only in a capture. When requests are no longer
    /// sent to the pool, its capture is over.
    pub(crate) fn settle_pool<O: Observer>(&mut self, heap: &mut Heap<O>, pool: PoolId) {
        let blocks = self.deferred.iter().map(|deferred| deferred.block);
        let settled: Vec<BlockId> = blocks.filter(|&id| pool_of(heap, id) == pool).collect();
        settled.into_iter().for_each(|id| self.settle(heap, id));
    }

    /// Completes the free of a deferred block, unless it has uses from before the capture.
    fn settle<O: Observer>(&mut self, heap: &mut Heap<O>, id: BlockId) {
        self.uses.drop_captured(heap.waits_mut(id));
        if !heap.waits_mut(id).has_uses() {
            self.deferred.retain(|deferred| deferred.block != id);
            free_if_settled(heap, id);
        }
    }
}

fn free_if_settled<O: Observer>(heap: &mut Heap<O>, id: BlockId) {
    if heap.waits_mut(id).is_over() {
        heap.complete_free(id);
    }
}

fn pool_of<O>(heap: &Heap<O>, id: BlockId) -> PoolId {
    heap.pools().id_of(heap.pools().block(id).pool)
}
