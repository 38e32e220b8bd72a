//! The host interface: [`PinnedDriver`] has every call that the pinned allocator makes to the host and its devices.
//!
//! [`SimHost`](super::SimHost) is a simulated host; the driver for CUDA is in its own crate. A driver does not call the
//! allocator. The allocator has no clock, so the driver returns the duration of its slow calls.

use super::request::DeviceStream;
use crate::driver::{DriverError, EventId};
use crate::request::Addr;

/// A result, and the duration of the call.
///
/// ```
/// # use plimsoll_alloc::{Addr, Timed};
/// let pinned = Timed { value: Addr(4096), elapsed_us: 80 };
/// assert_eq!(pinned.value, Addr(4096));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timed<T> {
    /// The result.
    pub value: T,
    /// The duration of the call, microseconds.
    pub elapsed_us: u64,
}

/// Pinned memory and the events of streams. Every call can fail; a failed call must change nothing.
///
/// ```
/// use plimsoll_alloc::{Addr, DeviceStream, DriverError, EventId, PinnedDriver, Timed};
///
/// /// A host with one page, and a device that is never behind.
/// struct OnePage(Option<Addr>);
/// impl PinnedDriver for OnePage {
///     fn pin(&mut self, bytes: u64) -> Result<Timed<Addr>, DriverError> {
///         let page = if bytes <= 4096 { self.0.take() } else { None };
///         page.map(|value| Timed { value, elapsed_us: 0 }).ok_or(DriverError::OutOfMemory)
///     }
///     fn unpin(&mut self, addr: Addr) -> Result<Timed<()>, DriverError> {
///         self.0 = Some(addr);
///         Ok(Timed { value: (), elapsed_us: 0 })
///     }
///     fn record(&mut self, _: DeviceStream) -> Result<EventId, DriverError> {
///         Ok(EventId(0))
///     }
///     fn is_done(&mut self, _: EventId) -> Result<bool, DriverError> {
///         Ok(true)
///     }
/// }
/// let mut host = OnePage(Some(Addr(4096)));
/// assert!(host.pin(100).is_ok());
/// assert_eq!(host.pin(100), Err(DriverError::OutOfMemory));
/// ```
pub trait PinnedDriver {
    /// Pins `bytes` of new memory and returns its address: not 0, overlapping no other pinned memory.
    ///
    /// # Errors
    /// [`DriverError::OutOfMemory`] if no memory is left, [`DriverError::Failed`] for anything else. Both go
    /// to the caller: as in PyTorch, the cache is not released to make room.
    fn pin(&mut self, bytes: u64) -> Result<Timed<Addr>, DriverError>;

    /// Frees the memory that starts at `addr`.
    ///
    /// # Errors
    /// If the host fails; the memory then stays cached.
    fn unpin(&mut self, addr: Addr) -> Result<Timed<()>, DriverError>;

    /// Records an event after the work now queued on a stream.
    ///
    /// # Errors
    /// If it cannot be recorded; the block is then never reused.
    fn record(&mut self, on: DeviceStream) -> Result<EventId, DriverError>;

    /// Whether an event is done. Once true, the event is not queried again, so its handle
    /// may be reused.
    ///
    /// # Errors
    /// If the query fails; the allocator retries later.
    fn is_done(&mut self, event: EventId) -> Result<bool, DriverError>;
}

impl<D: PinnedDriver + ?Sized> PinnedDriver for Box<D> {
    fn pin(&mut self, bytes: u64) -> Result<Timed<Addr>, DriverError> {
        (**self).pin(bytes)
    }

    fn unpin(&mut self, addr: Addr) -> Result<Timed<()>, DriverError> {
        (**self).unpin(addr)
    }

    fn record(&mut self, on: DeviceStream) -> Result<EventId, DriverError> {
        (**self).record(on)
    }

    fn is_done(&mut self, event: EventId) -> Result<bool, DriverError> {
        (**self).is_done(event)
    }
}
