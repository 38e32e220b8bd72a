//! A device whose streams run work: [`Clockwork`]. And a model of which work uses which memory: [`World`].

use std::collections::BTreeMap;

use plimsoll_alloc::{
    Addr, Allocation, Allocator, Config, Driver, DriverError, Error, EventId, MemoryInfo, Request, SimDriver,
    StreamId,
};

/// Streams whose work completes when the test says so or when a call waits for it.
pub(crate) struct Clockwork {
    driver: SimDriver,
    submitted: BTreeMap<StreamId, u64>,
    done: BTreeMap<StreamId, u64>,
    /// The stream and position of each event.
    events: Vec<(StreamId, u64)>,
}

impl Clockwork {
    pub(crate) fn with_capacity(bytes: u64) -> Self {
        let (submitted, done) = Default::default();
        Self { driver: SimDriver::with_capacity(bytes), submitted, done, events: Vec::new() }
    }

    /// Submits a piece of work to a stream. Returns its position.
    pub(crate) fn submit(&mut self, stream: StreamId) -> u64 {
        let submitted = self.submitted.entry(stream).or_default();
        *submitted += 1;
        *submitted
    }

    /// Completes the next piece of work of a stream, if any.
    pub(crate) fn finish(&mut self, stream: StreamId) {
        let submitted = self.submitted.get(&stream).copied().unwrap_or(0);
        let done = self.done.entry(stream).or_default();
        *done = submitted.min(*done + 1);
    }

    pub(crate) fn is_finished(&self, stream: StreamId, place: u64) -> bool {
        self.done.get(&stream).copied().unwrap_or(0) >= place
    }

    /// The streams on which events were recorded, in order.
    pub(crate) fn events_recorded(&self) -> Vec<StreamId> {
        self.events.iter().map(|&(stream, _)| stream).collect()
    }
}

impl Driver for Clockwork {
    fn segment_alloc(&mut self, bytes: u64) -> Result<Addr, DriverError> {
        self.driver.segment_alloc(bytes)
    }

    fn segment_free(&mut self, addr: Addr) -> Result<(), DriverError> {
        self.driver.segment_free(addr)
    }

    fn record(&mut self, stream: StreamId) -> Result<EventId, DriverError> {
        self.events.push((stream, self.submitted.get(&stream).copied().unwrap_or(0)));
        Ok(EventId(self.events.len() as u64 - 1))
    }

    fn is_done(&mut self, event: EventId) -> Result<bool, DriverError> {
        let (stream, place) = self.events[event.0 as usize];
        Ok(self.is_finished(stream, place))
    }

    fn wait(&mut self, event: EventId) -> Result<(), DriverError> {
        let (stream, place) = self.events[event.0 as usize];
        while !self.is_finished(stream, place) {
            self.finish(stream);
        }
        Ok(())
    }

    fn memory(&self) -> MemoryInfo {
        self.driver.memory()
    }
}

/// An allocator, and a model of the work that uses its memory.
pub(crate) struct World {
    allocator: Allocator<Clockwork, ()>,
    live: Vec<Allocation>,
    /// Work that uses memory: start, end, stream and position.
    uses: Vec<(u64, u64, StreamId, u64)>,
}

impl World {
    /// The kinds of step.
    pub(crate) const STEPS: u64 = 9;

    pub(crate) fn new() -> Self {
        let driver = Clockwork::with_capacity(4 << 20);
        Self { allocator: Allocator::new(Config::default(), driver, ()), live: Vec::new(), uses: Vec::new() }
    }

    /// Runs one step. The error names the memory that was reused early.
    pub(crate) fn step(&mut self, kind: u64) -> Result<(), String> {
        match kind {
            0 => self.alloc(1 << 20)?,
            1 => self.alloc(700 << 10)?,
            2 => self.use_on(StreamId(1), 0),
            3 => self.use_on(StreamId(2), self.live.len().saturating_sub(1)),
            4 => self.free(0),
            5 => self.free(self.live.len().saturating_sub(1)),
            6 => self.allocator.driver_mut().finish(StreamId(1)),
            7 => self.allocator.driver_mut().finish(StreamId(2)),
            _ => {
                self.allocator.empty_cache().map_err(|why| why.to_string())?;
            }
        }
        self.allocator.check().map_err(|broken| broken.to_string())
    }

    /// Completes all work, then makes one more request, which completes all frees.
    pub(crate) fn finish_everything(&mut self) {
        while !self.live.is_empty() {
            self.free(0);
        }
        for stream in [1, 2].map(StreamId) {
            (0..6).for_each(|_| self.allocator.driver_mut().finish(stream));
        }
        self.alloc(512).unwrap_or_else(|why| panic!("{why}"));
        self.free(0);
        let segments = self.allocator.segments();
        assert!(segments.iter().all(|segment| segment.blocks.len() == 1), "{segments:?}");
    }

    fn alloc(&mut self, bytes: u64) -> Result<(), String> {
        let allocation = match self.allocator.malloc(Request::of(bytes)) {
            Ok(allocation) => allocation,
            Err(Error::OutOfMemory(_)) => return Ok(()),
            Err(why) => return Err(why.to_string()),
        };
        let (from, to) = (allocation.addr().0, allocation.addr().0 + allocation.bytes());
        self.live.push(allocation);
        for &(used_from, used_to, stream, place) in &self.uses {
            let overlaps = used_from < to && from < used_to;
            if overlaps && !self.allocator.driver().is_finished(stream, place) {
                return Err(format!("{from:x} was reused while work {place} of {stream:?} uses it"));
            }
        }
        Ok(())
    }

    /// Submits work that uses a live block, and records the use.
    fn use_on(&mut self, stream: StreamId, nth: usize) {
        let Some(allocation) = self.live.get(nth) else { return };
        let (from, bytes) = (allocation.addr().0, allocation.bytes());
        let place = self.allocator.driver_mut().submit(stream);
        self.uses.push((from, from + bytes, stream, place));
        self.allocator.record_stream(&self.live[nth], stream);
    }

    fn free(&mut self, nth: usize) {
        if nth < self.live.len() {
            let allocation = self.live.remove(nth);
            self.allocator.free(allocation);
        }
    }
}
