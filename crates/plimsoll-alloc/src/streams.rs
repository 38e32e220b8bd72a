//! Blocks used on several streams: a freed one is reused only after the work of the others has passed it.
//!
//! A use on another stream is remembered with the block. When the block is given back, an event is recorded
//! on each such stream (ascending ids; PyTorch's order there is a hash map's), and the block is pending until
//! all of them are done. Events are asked about at the start of each request outside a capture, in the order
//! of stream ids and within a stream in the order of recording, and waited for before the cache is released:
//! never when a block is given back.
//!
//! As PyTorch: `recordStream`, `insert_events`, `process_events`, `synchronize_and_free_events`.

use std::collections::{BTreeSet, VecDeque};
use std::num::NonZeroU32;

use crate::allocator::Allocator;
use crate::block::{BlockId, State};
use crate::capture::{LastUses, NodesBefore};
use crate::driver::{Driver, EventId};
use crate::error::Error;
use crate::event::{Event, Observer};
use crate::request::{Allocation, PoolId, StreamId};

/// Whether a use was recorded while work was captured rather than run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Recorded {
    Eagerly,
    InCapture,
}

/// A place in the list of uses.
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

/// What the allocator knows of uses on other streams.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    /// Uses for which no event is recorded yet: a list for each block, by stream.
    uses: Vec<Use>,
    vacant: Vec<UseId>,
    /// By stream. A queue that has run empty stays, so that a steady state needs no heap.
    queues: Vec<Queue>,
    /// Events in all queues.
    events: usize,
    /// Blocks given back whose events could not be recorded yet, because work was being captured or because
    /// the device failed.
    deferred: VecDeque<Deferred>,
    pub(crate) nodes_before: NodesBefore,
    /// Blocks whose waiting ends when somebody else says so: `adopt.rs`.
    pub(crate) elsewhere: BTreeSet<BlockId>,
}

#[derive(Debug)]
struct Deferred {
    block: BlockId,
    /// Where a capture leaves the block, if that is known: `capture.rs`.
    last_uses: Option<LastUses>,
}

/// The events of one stream, which are done in this order.
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

    /// Adds a use to a block's list; returns the list's head. A stream is listed once.
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

    /// Every event that is still to come, with its block, by stream: for `check.rs`.
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

    /// Blocks of which it is known where a capture leaves them.
    pub(crate) fn deferred_with_last_uses(&self) -> impl Iterator<Item = (BlockId, &LastUses)> {
        self.deferred.iter().filter_map(|deferred| Some((deferred.block, deferred.last_uses.as_ref()?)))
    }
}

impl<D: Driver, O: Observer> Allocator<D, O> {
    /// Says that work on `stream` uses a block, too: after it is given back, it is not reused until that
    /// work is done. Costs an event per stream when the block is given back.
    /// Nothing happens for the block's own stream, or a request of 0 bytes.
    ///
    /// # Panics
    /// If the allocation is another allocator's.
    pub fn record_stream(&mut self, allocation: &Allocation, stream: StreamId) {
        let Some(id) = self.held(allocation) else { return };
        if self.pools.blocks[id].stream != stream {
            let recorded = if self.in_capture() { Recorded::InCapture } else { Recorded::Eagerly };
            let uses = self.pools.blocks[id].uses;
            self.pools.blocks[id].uses = self.streams.add_use(uses, stream, recorded);
        }
    }

    /// Keeps a block that was given back until its uses on other streams are done. If an event cannot be
    /// recorded now, it is before the next request: giving a block back does not fail.
    pub(crate) fn wait_for_uses(&mut self, id: BlockId) {
        self.pools.blocks[id].state = State::Pending;
        if self.in_capture() {
            let last_uses = self.last_uses(id);
            self.streams.deferred.push_back(Deferred { block: id, last_uses });
        } else if self.record_events(id).is_err() {
            self.streams.deferred.push_back(Deferred { block: id, last_uses: None });
        }
    }

    /// Frees a deferred block whose uses in a capture are past, unless others were recorded before it.
    pub(crate) fn settle_in_capture(&mut self, id: BlockId) {
        self.drop_captured_uses(id);
        if self.pools.blocks[id].uses.is_none() {
            self.streams.deferred.retain(|deferred| deferred.block != id);
            self.free_if_settled(id);
        }
    }

    /// Records an event on each stream that uses a block. Those recorded before a failure count.
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

    /// Frees the blocks whose events are done. As PyTorch: `process_events`.
    #[inline(never)] // mostly there is none: ask `is_idle` first
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

    /// Waits for all events, or for those of one pool's blocks, and frees the blocks.
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

    /// Records the events of deferred blocks. What a capture used is ordered by the capture itself: those
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
