//! Waiting for a GPU whose work involves other ranks. The driver waits forever for a rank that has disappeared, so the host
//! polls instead, and gives up if a rank is lost.

use std::thread;
use std::time::{Duration, Instant};

use plimsoll_alloc::{EventId, StreamId};

use super::shared::Shared;
use crate::error::Result;

/// How long the host polls without pausing.
const EAGER: Duration = Duration::from_micros(200);
/// The pause between polls after that.
const PAUSE: Duration = Duration::from_micros(50);
/// How often the host checks whether a rank is lost.
const LOOK: Duration = Duration::from_millis(20);

impl Shared {
    /// Waits until the work before these events is done. If no other ranks are involved, returns at once, and the
    /// driver does the waiting.
    pub(super) fn wait_for(&self, events: &[EventId]) -> Result<()> {
        let Some(gives_up) = self.gives_up.get() else { return Ok(()) };
        let (start, mut looked) = (Instant::now(), Duration::ZERO);
        for &event in events {
            while !self.done(self.gpu.is_done(event), "synchronize")? {
                let waited = start.elapsed();
                if waited < EAGER {
                    thread::yield_now();
                    continue;
                }
                if waited - looked >= LOOK {
                    looked = waited;
                    if let Some(error) = gives_up(waited) {
                        return Err(error);
                    }
                }
                thread::sleep(PAUSE);
            }
        }
        // Work that was ended because a rank is lost is done as well, with wrong values.
        gives_up(Duration::ZERO).map_or(Ok(()), Err)
    }

    /// Like [`Shared::wait_for`], for all work now queued on a stream.
    pub(super) fn wait_for_stream(&self, on: StreamId) -> Result<()> {
        if self.gives_up.get().is_none() {
            return Ok(());
        }
        let event = self.done(self.gpu.record(on), "synchronize")?;
        let waited = self.wait_for(&[event]);
        self.gpu.release(event);
        waited
    }

    /// Like [`Shared::wait_for`], for all work now queued on the device.
    pub(super) fn wait_for_all(&self) -> Result<()> {
        if self.gives_up.get().is_none() {
            return Ok(());
        }
        let events = self.done(self.gpu.record_all(), "synchronize")?;
        let waited = self.wait_for(&events);
        events.into_iter().for_each(|event| self.gpu.release(event));
        waited
    }
}
