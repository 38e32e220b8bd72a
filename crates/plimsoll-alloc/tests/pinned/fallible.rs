//! A simulated host that fails at one call: [`Fallible`].

use plimsoll_alloc::{Addr, DeviceStream, DriverError, EventId, PinnedDriver, SimHost, Timed};

/// Fails at the `nth` call (from 1; 0 means never) and forwards all others.
pub(crate) struct Fallible {
    pub(crate) host: SimHost,
    pub(crate) nth: u64,
    pub(crate) calls: u64,
}

impl Fallible {
    fn count(&mut self) -> Result<(), DriverError> {
        self.calls += 1;
        if self.calls == self.nth { Err(DriverError::Failed("injected".into())) } else { Ok(()) }
    }
}

impl PinnedDriver for Fallible {
    fn pin(&mut self, bytes: u64) -> Result<Timed<Addr>, DriverError> {
        self.count()?;
        self.host.pin(bytes)
    }

    fn unpin(&mut self, addr: Addr) -> Result<Timed<()>, DriverError> {
        self.count()?;
        self.host.unpin(addr)
    }

    fn record(&mut self, on: DeviceStream) -> Result<EventId, DriverError> {
        self.count()?;
        self.host.record(on)
    }

    fn is_done(&mut self, event: EventId) -> Result<bool, DriverError> {
        self.count()?;
        self.host.is_done(event)
    }
}
