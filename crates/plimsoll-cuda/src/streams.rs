//! Streams by the allocator's numbers, and events that are used again.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use plimsoll_alloc::{EventId, StreamId};

use crate::driver::{Driver, Handle};
use crate::error::Result;

/// The streams and events of one device. Each method needs the device's context to be the thread's.
#[derive(Default)]
pub(crate) struct Streams {
    open: Mutex<BTreeMap<StreamId, Handle>>,
    /// Events that nobody asks about.
    spare: Mutex<Vec<Handle>>,
}

/// A stream of one device whose work this thread captures: it goes to another stream, on which nothing runs. Work of other
/// threads on the stream runs as before.
#[derive(Clone, Copy)]
struct Captured {
    /// Where the device's `Streams` are.
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
    /// Where this thread's work of a stream goes: the stream itself, or the one that captures it.
    pub(crate) fn get(&self, driver: &Driver, id: StreamId) -> Result<Handle> {
        match CAPTURED.get() {
            Some(captured) if captured.of == self.address() && captured.id == id => Ok(captured.onto),
            _ => self.itself(driver, id),
        }
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Sends this thread's work of a stream to `onto`, which is captured.
    pub(crate) fn capture(&self, id: StreamId, onto: Handle) {
        CAPTURED.set(Some(Captured { of: self.address(), id, onto }));
    }

    /// The stream of this device that this thread captures, and the one that captures it.
    pub(crate) fn captured(&self) -> Option<(StreamId, Handle)> {
        CAPTURED.get().filter(|captured| captured.of == self.address()).map(|it| (it.id, it.onto))
    }

    /// Ends the capture of this thread.
    pub(crate) fn end_capture(&self) {
        if self.captured().is_some() {
            CAPTURED.set(None);
        }
    }

    /// The stream of a number; made when it is first asked for.
    pub(crate) fn itself(&self, driver: &Driver, id: StreamId) -> Result<Handle> {
        let mut open = lock(&self.open);
        if let Some(&stream) = open.get(&id) {
            return Ok(stream);
        }
        let stream = driver.create_stream()?;
        open.insert(id, stream);
        Ok(stream)
    }

    /// All streams, without those that are captured.
    pub(crate) fn all(&self) -> Vec<Handle> {
        lock(&self.open).values().copied().collect()
    }

    /// An event after the work that is now on a stream.
    pub(crate) fn record(&self, driver: &Driver, on: StreamId) -> Result<EventId> {
        let stream = self.get(driver, on)?;
        let spare = lock(&self.spare).pop();
        let event = spare.map_or_else(|| driver.create_event(false), Ok)?;
        driver.record(event, stream).map(|()| EventId(event as u64))
    }

    /// Lets an event serve again.
    pub(crate) fn recycle(&self, event: EventId) {
        lock(&self.spare).push(handle(event));
    }

    /// Ends all of them. What a lost context does not give back, the process's end does.
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
