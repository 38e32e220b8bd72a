//! Streams by the allocator's numbers, and events that are used again.

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

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Streams {
    /// The stream of a number; made when it is first asked for.
    pub(crate) fn get(&self, driver: &Driver, id: StreamId) -> Result<Handle> {
        let mut open = lock(&self.open);
        if let Some(&stream) = open.get(&id) {
            return Ok(stream);
        }
        let stream = driver.create_stream()?;
        open.insert(id, stream);
        Ok(stream)
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
