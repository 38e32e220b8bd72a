//! A simulated host with address space only, whose streams can be paused: [`SimHost`].

use std::collections::{BTreeMap, BTreeSet};

use super::driver::{PinnedDriver, Timed};
use super::request::DeviceStream;
use crate::driver::{DriverError, EventId};
use crate::request::Addr;

/// The first address; the addresses of simulated devices are elsewhere.
const BASE: u64 = 0x1000_0000_0000;
/// The alignment of pinned memory: a page.
const PAGE_BYTES: u64 = 4096;

/// A simulated host: no address is reused, pinning takes no time, and the work on a stream is done
/// immediately, unless the stream is [held](SimHost::hold).
///
/// ```
/// # use plimsoll_alloc::{DeviceStream, DriverError, PinnedDriver, SimHost};
/// let mut host = SimHost::with_capacity(1 << 20);
/// let copies = DeviceStream::default();
/// let before = host.record(copies)?;
/// host.hold(copies);
/// let after = host.record(copies)?;
/// assert_eq!((host.is_done(before)?, host.is_done(after)?), (true, false));
/// host.finish(copies, 1);
/// assert!(host.is_done(after)?);
/// # Ok::<(), DriverError>(())
/// ```
#[derive(Debug, Clone)]
pub struct SimHost {
    capacity_bytes: u64,
    handed_out_bytes: u64,
    pinned: BTreeMap<Addr, u64>,
    held: BTreeSet<DeviceStream>,
    last_event: u64,
    not_done: BTreeMap<EventId, DeviceStream>,
}

impl SimHost {
    /// Makes a host that can pin `bytes`.
    pub fn with_capacity(bytes: u64) -> Self {
        Self {
            capacity_bytes: bytes,
            handed_out_bytes: 0,
            pinned: BTreeMap::new(),
            held: BTreeSet::new(),
            last_event: 0,
            not_done: BTreeMap::new(),
        }
    }

    /// Pauses a stream: its events are done only after [`finish`](Self::finish).
    pub fn hold(&mut self, on: DeviceStream) {
        self.held.insert(on);
    }

    /// Completes the next `events` events of a held stream.
    pub fn finish(&mut self, on: DeviceStream, events: usize) {
        let next = self.not_done.iter().filter(|&(_, &stream)| stream == on).take(events);
        for event in next.map(|(&event, _)| event).collect::<Vec<_>>() {
            self.not_done.remove(&event);
        }
    }

    /// Pinned memory, bytes.
    pub fn pinned_bytes(&self) -> u64 {
        self.pinned.values().sum()
    }
}

impl PinnedDriver for SimHost {
    fn pin(&mut self, bytes: u64) -> Result<Timed<Addr>, DriverError> {
        if bytes > self.capacity_bytes - self.pinned_bytes() {
            return Err(DriverError::OutOfMemory);
        }
        let value = Addr(BASE + self.handed_out_bytes);
        self.handed_out_bytes += bytes.next_multiple_of(PAGE_BYTES);
        self.pinned.insert(value, bytes);
        Ok(Timed { value, elapsed_us: 0 })
    }

    fn unpin(&mut self, addr: Addr) -> Result<Timed<()>, DriverError> {
        match self.pinned.remove(&addr) {
            Some(_) => Ok(Timed { value: (), elapsed_us: 0 }),
            None => Err(DriverError::Failed(format!("no pinned memory starts at {addr}"))),
        }
    }

    fn record(&mut self, on: DeviceStream) -> Result<EventId, DriverError> {
        self.last_event += 1;
        let event = EventId(self.last_event);
        if self.held.contains(&on) {
            self.not_done.insert(event, on);
        }
        Ok(event)
    }

    fn is_done(&mut self, event: EventId) -> Result<bool, DriverError> {
        Ok(!self.not_done.contains_key(&event))
    }
}
