//! The events that freed blocks wait for: [`EventQueues`].

use std::collections::VecDeque;

use crate::block::BlockId;
use crate::driver::EventId;
use crate::request::StreamId;

/// One event queue per stream, sorted by stream. A queue's events are in the order in which they complete.
#[derive(Debug, Default)]
pub(super) struct EventQueues {
    /// Empty queues are kept, so a steady state does not allocate from the heap.
    queues: Vec<Queue>,
    /// The number of events in all queues.
    events: usize,
}

#[derive(Debug)]
struct Queue {
    stream: StreamId,
    events: VecDeque<(EventId, BlockId)>,
}

impl EventQueues {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.events == 0
    }

    /// The number of queues.
    pub(super) fn queues(&self) -> usize {
        self.queues.len()
    }

    /// Adds an event, and the block that waits for it.
    pub(super) fn push(&mut self, stream: StreamId, event: EventId, block: BlockId) {
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

    /// Event number `at` of a queue; 0 is the oldest.
    pub(super) fn get(&self, queue: usize, at: usize) -> Option<(EventId, BlockId)> {
        self.queues[queue].events.get(at).copied()
    }

    /// Removes an event that is done.
    pub(super) fn remove(&mut self, queue: usize, at: usize) {
        let events = &mut self.queues[queue].events;
        let removed = if at == 0 { events.pop_front() } else { events.remove(at) }; // removing the first is cheaper
        self.events -= usize::from(removed.is_some());
    }

    /// The blocks of all events, stream by stream.
    pub(super) fn blocks(&self) -> impl Iterator<Item = BlockId> + '_ {
        self.queues.iter().flat_map(|queue| queue.events.iter().map(|&(_, block)| block))
    }
}
