//! Streams by the allocator's numbers, and reusable events.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use plimsoll_alloc::{EventId, StreamId};

use crate::driver::{Driver, Handle};
use crate::error::Result;

/// The streams and events of one device. For each method, the device's context must be current on the thread.
#[derive(Default)]
pub(crate) struct Streams {
    open: Mutex<BTreeMap<StreamId, Handle>>,
    /// Events that can be reused.
    spare: Mutex<Vec<Handle>>,
}

/// A stream of one device whose work this thread captures. The work is redirected to another stream, on which nothing
/// runs. Work of other threads on the original stream runs as usual.
#[derive(Clone, Copy)]
struct Captured {
    /// The address of the device's `Streams`.
    of: usize,
    id: StreamId,
    onto: Handle,
}

thread_local! {
    static CAPTURED: Cell<Option<Captured>> = const { Cell::new(None) };
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Streams {
    /// The stream that receives this thread's work: the stream itself, or the one that captures it.
    pub(crate) fn get(&self, driver: &Driver, id: StreamId) -> Result<Handle> {
        match CAPTURED.get() {
            Some(captured) if captured.of == self.address() && captured.id == id => Ok(captured.onto),
            _ => self.itself(driver, id),
        }
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Redirects this thread's work on a stream to `onto`, which is captured.
    pub(crate) fn capture(&self, id: StreamId, onto: Handle) {
        CAPTURED.set(Some(Captured { of: self.address(), id, onto }));
    }

    /// The stream of this device that this thread captures, and the one that captures it.
    pub(crate) fn captured(&self) -> Option<(StreamId, Handle)> {
        CAPTURED.get().filter(|captured| captured.of == self.address()).map(|it| (it.id, it.onto))
    }

    /// Ends this thread's capture.
    pub(crate) fn end_capture(&self) {
        if self.captured().is_some() {
            CAPTURED.set(None);
        }
    }

    /// The stream with a number, created on first use.
    pub(crate) fn itself(&self, driver: &Driver, id: StreamId) -> Result<Handle> {
        let mut open = lock(&self.open);
        if let Some(&stream) = open.get(&id) {
            return Ok(stream);
        }
        let stream = driver.create_stream()?;
        open.insert(id, stream);
        Ok(stream)
    }

    /// All streams except those that capture.
    pub(crate) fn all(&self) -> Vec<Handle> {
        lock(&self.open).values().copied().collect()
    }

    /// Records an event after the work that is now on a stream.
    pub(crate) fn record(&self, driver: &Driver, on: StreamId) -> Result<EventId> {
        self.record_on(driver, self.get(driver, on)?)
    }

    /// Records an event on each stream except those that capture.
    pub(crate) fn record_all(&self, driver: &Driver) -> Result<Vec<EventId>> {
        self.all().into_iter().map(|stream| self.record_on(driver, stream)).collect()
    }

    fn record_on(&self, driver: &Driver, stream: Handle) -> Result<EventId> {
        let spare = lock(&self.spare).pop();
        let event = spare.map_or_else(|| driver.create_event(false), Ok)?;
        driver.record(event, stream).map(|()| EventId(event as u64))
    }

    /// Makes an event available for reuse.
    pub(crate) fn recycle(&self, event: EventId) {
        lock(&self.spare).push(handle(event));
    }

    /// Destroys all streams and events. If the context is lost, they are freed when the process ends.
    pub(crate) fn close(&self, driver: &Driver) {
        for (_, stream) in std::mem::take(&mut *lock(&self.open)) {
            let _ = driver.destroy_stream(stream);
        }
        for event in std::mem::take(&mut *lock(&self.spare)) {
            let _ = driver.destroy_event(event);
        }
    }
}

/// The driver's handle of an event.
pub(crate) fn handle(event: EventId) -> Handle {
    usize::try_from(event.0).unwrap_or(usize::MAX)
}
