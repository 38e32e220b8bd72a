//! Blocks used on several streams: a freed block is reused only after the other streams are done with it.
//!
//! A use on another stream is recorded with the block. When the block is freed, an event is recorded
//! on each such stream (ascending ids; PyTorch's order there is a hash map's), and the block is pending until
//! all of them are done. Events are queried at the start of each request outside a capture, in the order
//! of stream ids and within a stream in the order of recording, and waited for before the cache is released,
//! but never when a block is freed.
//!
//! As PyTorch: `recordStream`, `insert_events`, `process_events`, `synchronize_and_free_events`.

use std::collections::{BTreeSet, VecDeque};
use std::num::NonZeroU32;

use crate::allocator::Allocator;
use crate::block::{BlockId, SlotState};
use crate::capture::{LastUses, NodesBefore};
use crate::driver::{Driver, EventId};
use crate::error::Error;
use crate::event::{Event, Observer};
use crate::request::{Allocation, PoolId, StreamId};

/// Whether a use was recorded during a capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Recorded {
    Eagerly,
    InCapture,
}

/// An index into the list of uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct UseId(NonZeroU32);

impl UseId {
    fn index(self) -> usize {
        self.0.get() as usize - 1
    }
}

#[derive(Debug, Clone, Copy)]
struct Use {
    stream: StreamId,
    recorded: Recorded,
    next: Option<UseId>,
}

/// The recorded uses on other streams.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    /// Uses for which no event is recorded yet: a list for each block, by stream.
    uses: Vec<Use>,
    vacant: Vec<UseId>,
    /// By stream. Empty queues are kept, so a steady state does not allocate from the heap.
    queues: Vec<Queue>,
    /// Events in all queues.
    events: usize,
    /// Freed blocks whose events are not recorded yet, because of a capture or because
    /// the device failed.
    deferred: VecDeque<Deferred>,
    pub(crate) nodes_before: NodesBefore,
    /// Blocks whose free is completed by the caller: `adopt.rs`.
    pub(crate) elsewhere: BTreeSet<BlockId>,
}

#[derive(Debug)]
struct Deferred {
    block: BlockId,
    /// The nodes after which a capture no longer uses the block, if known: `capture.rs`.
    last_uses: Option<LastUses>,
}

/// The events of one stream, in the order of completion.
#[derive(Debug)]
struct Queue {
    stream: StreamId,
    events: VecDeque<(EventId, BlockId)>,
}

impl Streams {
    /// Whether no block waits for another stream.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.events == 0 && self.deferred.is_empty()
    }

    /// Adds a use to a block's list; returns the list's head. Each stream is listed once.
    fn add_use(&mut self, head: Option<UseId>, stream: StreamId, recorded: Recorded) -> Option<UseId> {
        let (mut before, mut at) = (None, head);
        while let Some(id) = at.filter(|id| self.uses[id.index()].stream < stream) {
            (before, at) = (Some(id), self.uses[id.index()].next);
        }
        if at.is_some_and(|id| self.uses[id.index()].stream == stream) {
            return head;
        }
        let new = self.insert(Use { stream, recorded, next: at });
        match before {
            Some(before) => {
                self.uses[before.index()].next = Some(new);
                head
            }
            None => Some(new),
        }
    }

    fn insert(&mut self, new: Use) -> UseId {
        if let Some(id) = self.vacant.pop() {
            self.uses[id.index()] = new;
            return id;
        }
        self.uses.push(new);
        let number = u32::try_from(self.uses.len()).ok().and_then(NonZeroU32::new);
        UseId(number.expect("fewer than 2^32 uses of blocks on other streams at one time"))
    }

    fn remove_use(&mut self, id: UseId) -> Option<UseId> {
        self.vacant.push(id);
        self.uses[id.index()].next
    }

    /// The streams in a block's list.
    pub(crate) fn uses_of(&self, head: Option<UseId>) -> impl Iterator<Item = StreamId> + '_ {
        let uses = std::iter::successors(head, |id| self.uses[id.index()].next);
        uses.map(|id| self.uses[id.index()].stream)
    }

    fn push_event(&mut self, stream: StreamId, event: EventId, block: BlockId) {
        let place = match self.queues.binary_search_by_key(&stream, |queue| queue.stream) {
            Ok(place) => place,
            Err(place) => {
                self.queues.insert(place, Queue { stream, events: VecDeque::new() });
                place
            }
        };
        self.queues[place].events.push_back((event, block));
        self.events += 1;
    }

    /// Every pending event with its block, by stream: for `check.rs`.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = BlockId> + '_ {
        self.queues.iter().flat_map(|queue| queue.events.iter().map(|&(_, block)| block))
    }

    /// Blocks whose events are not all recorded: for `check.rs`.
    pub(crate) fn deferred(&self) -> impl Iterator<Item = BlockId> + '_ {
        self.deferred.iter().map(|deferred| deferred.block)
    }

    pub(crate) fn has_deferred(&self) -> bool {
        !self.deferred.is_empty()
    }

    /// Blocks whose last nodes in a capture are known.
    pub(crate) fn deferred_with_last_uses(&self) -> impl Iterator<Item = (BlockId, &LastUses)> {
        self.deferred.iter().filter_map(|deferred| Some((deferred.block, deferred.last_uses.as_ref()?)))
    }
}

impl<D: Driver, O: Observer> Allocator<D, O> {
    /// Records that work on `stream` also uses a block: after it is freed, it is not reused until that
    /// work is done. Costs an event per stream when the block is freed.
    /// Does nothing for the block's own stream, or for a request of 0 bytes.
    ///
    /// # Panics
    /// If the allocation belongs to another allocator.
    pub fn record_stream(&mut self, allocation: &Allocation, stream: StreamId) {
        let Some(id) = self.held(allocation) else { return };
        if self.pools.blocks[id].stream != stream {
            let recorded = if self.in_capture() { Recorded::InCapture } else { Recorded::Eagerly };
            let uses = self.pools.blocks[id].uses;
            self.pools.blocks[id].uses = self.streams.add_use(uses, stream, recorded);
        }
    }

    /// Keeps a freed block pending until its uses on other streams are done. If an event cannot be
    /// recorded now, it is recorded before the next request: freeing does not fail.
    pub(crate) fn wait_for_uses(&mut self, id: BlockId) {
        self.pools.blocks[id].state = SlotState::Pending;
        if self.in_capture() {
            let last_uses = self.last_uses(id);
            self.streams.deferred.push_back(Deferred { block: id, last_uses });
        } else if self.record_events(id).is_err() {
            self.streams.deferred.push_back(Deferred { block: id, last_uses: None });
        }
    }

    /// Completes the free of a deferred block whose uses in a capture are done, unless it has uses from before
    /// the capture.
    pub(crate) fn settle_in_capture(&mut self, id: BlockId) {
        self.drop_captured_uses(id);
        if self.pools.blocks[id].uses.is_none() {
            self.streams.deferred.retain(|deferred| deferred.block != id);
            self.free_if_settled(id);
        }
    }

    /// Records an event on each stream that uses a block. Events recorded before a failure count.
    fn record_events(&mut self, id: BlockId) -> Result<(), Error> {
        while let Some(first) = self.pools.blocks[id].uses {
            let stream = self.streams.uses[first.index()].stream;
            let event = self.driver.record(stream)?;
            self.streams.push_event(stream, event, id);
            let block = &mut self.pools.blocks[id];
            block.events += 1;
            block.uses = self.streams.remove_use(first);
        }
        Ok(())
    }

    /// Completes the frees of blocks whose events are done. As PyTorch: `process_events`.
    #[inline(never)] // usually there is none: check `is_idle` first
    pub(crate) fn poll_events(&mut self) -> Result<(), Error> {
        self.record_deferred()?;
        for queue in 0..self.streams.queues.len() {
            while let Some(&(event, id)) = self.streams.queues[queue].events.front() {
                if !self.driver.is_done(event)? {
                    break;
                }
                self.streams.queues[queue].events.pop_front();
                self.event_is_done(id);
            }
        }
        Ok(())
    }

    /// Waits for all events, or for those of one pool's blocks, and completes their frees.
    /// As PyTorch: `synchronize_and_free_events`.
    pub(crate) fn wait_for_events(&mut self, pool: Option<PoolId>) -> Result<(), Error> {
        self.observer.on(&Event::SyncAllStreams);
        self.record_deferred()?;
        for queue in 0..self.streams.queues.len() {
            let mut at = 0;
            while let Some(&(event, id)) = self.streams.queues[queue].events.get(at) {
                if pool.is_some_and(|pool| self.pools.pool(self.pools.blocks[id].pool).id != pool) {
                    at += 1;
                    continue;
                }
                self.driver.wait(event)?;
                self.streams.queues[queue].events.remove(at);
                self.event_is_done(id);
            }
        }
        Ok(())
    }

    /// Records the events of deferred blocks. Uses in a capture are ordered by the capture itself: those
    /// uses need no event.
    fn record_deferred(&mut self) -> Result<(), Error> {
        while let Some(&Deferred { block: id, .. }) = self.streams.deferred.front() {
            self.drop_captured_uses(id);
            self.record_events(id)?;
            self.streams.deferred.pop_front();
            self.free_if_settled(id);
        }
        Ok(())
    }

    fn drop_captured_uses(&mut self, id: BlockId) {
        let (mut at, mut kept) = (self.pools.blocks[id].uses, None);
        while let Some(use_id) = at {
            let Use { stream, recorded, .. } = self.streams.uses[use_id.index()];
            at = self.streams.remove_use(use_id);
            if recorded == Recorded::Eagerly {
                kept = self.streams.add_use(kept, stream, recorded);
            }
        }
        self.pools.blocks[id].uses = kept;
    }

    fn event_is_done(&mut self, id: BlockId) {
        self.streams.events -= 1;
        self.pools.blocks[id].events -= 1;
        self.free_if_settled(id);
    }

    fn free_if_settled(&mut self, id: BlockId) {
        if self.pools.blocks[id].events == 0 && self.pools.blocks[id].uses.is_none() {
            self.complete_free(id);
        }
    }
}
