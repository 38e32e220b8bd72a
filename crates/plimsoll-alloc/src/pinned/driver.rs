//! The seam: all that the pinned allocator asks of the host and its devices is a [`HostDriver`].
//!
//! [`SimHost`](super::SimHost) hands out numbers; CUDA's is in its own crate. A driver never calls back. The
//! allocator has no clock, so the driver says how long its slow calls took.

use super::request::DeviceStream;
use crate::driver::{DriverError, EventId};
use crate::request::Addr;

/// An answer, and how long it took.
///
/// ```
/// # use plimsoll_alloc::{Addr, Timed};
/// let pinned = Timed { value: Addr(4096), elapsed_us: 80 };
/// assert_eq!(pinned.value, Addr(4096));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timed<T> {
    /// The answer.
    pub value: T,
    /// How long the call took, whole microseconds.
    pub elapsed_us: u64,
}

/// Pinned memory and the events of streams. Every call can fail; a failed call has changed nothing.
///
/// ```
/// use plimsoll_alloc::{Addr, DeviceStream, DriverError, EventId, HostDriver, Timed};
///
/// /// A host with one page, and a device that is never behind.
/// struct OnePage(Option<Addr>);
/// impl HostDriver for OnePage {
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
pub trait HostDriver {
    /// Pins new memory of `bytes` and returns its start: not 0, apart from all other that is pinned.
    ///
    /// # Errors
    /// [`DriverError::OutOfMemory`] if there is no more, [`DriverError::Failed`] for anything else. Both go
    /// to the caller: the cache is not released to make room, in PyTorch neither.
    fn pin(&mut self, bytes: u64) -> Result<Timed<Addr>, DriverError>;

    /// Gives back the memory that starts at `addr`.
    ///
    /// # Errors
    /// If it is refused; the memory then stays in the cache.
    fn unpin(&mut self, addr: Addr) -> Result<Timed<()>, DriverError>;

    /// Marks the place that the work on a stream has come to.
    ///
    /// # Errors
    /// If it cannot be marked; the block in question is then never used again.
    fn record(&mut self, on: DeviceStream) -> Result<EventId, DriverError>;

    /// Whether the stream has passed the mark. Once true, the event is not asked about again, so its handle
    /// may be used again.
    ///
    /// # Errors
    /// If it cannot be told; it is asked again at the next occasion.
    fn is_done(&mut self, event: EventId) -> Result<bool, DriverError>;
}

impl<D: HostDriver + ?Sized> HostDriver for Box<D> {
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
