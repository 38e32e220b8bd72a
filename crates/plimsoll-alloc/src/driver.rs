//! The device seam: all that the allocator asks of a device is a [`Driver`].
//!
//! Implementations here: [`Sim`](crate::Sim) (addresses only) and the wrappers [`Limit`](crate::Limit) and
//! [`FailNth`](crate::FailNth). Real devices implement it in their own crates. A driver never calls back.

use std::fmt;

use crate::request::Addr;

/// A device's memory, by the segment. Every call can fail; a failed call has changed nothing.
///
/// ```
/// use plimsoll_alloc::{Addr, Driver, DriverError, MemoryInfo};
///
/// /// A device with one segment of 2 MiB.
/// struct One(Option<Addr>);
/// impl Driver for One {
///     fn segment_alloc(&mut self, bytes: u64) -> Result<Addr, DriverError> {
///         if bytes > 2 << 20 {
///             return Err(DriverError::OutOfMemory);
///         }
///         self.0.take().ok_or(DriverError::OutOfMemory)
///     }
///     fn segment_free(&mut self, addr: Addr) -> Result<(), DriverError> {
///         self.0 = Some(addr);
///         Ok(())
///     }
///     fn memory(&self) -> MemoryInfo {
///         let free_bytes = if self.0.is_some() { 2 << 20 } else { 0 };
///         MemoryInfo { free_bytes, total_bytes: 2 << 20 }
///     }
/// }
/// let mut device = One(Some(Addr(512)));
/// assert_eq!(device.segment_alloc(4096), Ok(Addr(512)));
/// assert_eq!(device.segment_alloc(4096), Err(DriverError::OutOfMemory));
/// ```
pub trait Driver {
    /// Makes a segment of `bytes` and returns its start: not 0, a multiple of 512, apart from all others.
    ///
    /// # Errors
    /// [`DriverError::OutOfMemory`] if it does not fit, which the allocator answers by releasing its cache
    /// and asking once more; [`DriverError::Failed`] for anything else, which goes to the caller.
    fn segment_alloc(&mut self, bytes: u64) -> Result<Addr, DriverError>;

    /// Gives back the segment that starts at `addr`.
    ///
    /// # Errors
    /// If the device refuses; the segment then stays in the cache.
    fn segment_free(&mut self, addr: Addr) -> Result<(), DriverError>;

    /// What the device has.
    fn memory(&self) -> MemoryInfo;
}

impl<D: Driver + ?Sized> Driver for Box<D> {
    fn segment_alloc(&mut self, bytes: u64) -> Result<Addr, DriverError> {
        (**self).segment_alloc(bytes)
    }

    fn segment_free(&mut self, addr: Addr) -> Result<(), DriverError> {
        (**self).segment_free(addr)
    }

    fn memory(&self) -> MemoryInfo {
        (**self).memory()
    }
}

/// A device's memory in numbers.
///
/// ```
/// # use plimsoll_alloc::{Driver, MemoryInfo, SimDriver};
/// let device = SimDriver::with_capacity(64 << 20);
/// assert_eq!(device.memory(), MemoryInfo { free_bytes: 64 << 20, total_bytes: 64 << 20 });
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryInfo {
    /// What nobody holds, bytes.
    pub free_bytes: u64,
    /// All of it, bytes.
    pub total_bytes: u64,
}

/// Why a device refused.
///
/// ```
/// # use plimsoll_alloc::DriverError;
/// let error = DriverError::Failed("the device fell off the bus".into());
/// assert_eq!(error.to_string(), "the device failed: the device fell off the bus");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DriverError {
    /// There is not enough memory left.
    OutOfMemory,
    /// Anything else, in the device's own words.
    Failed(String),
}

impl fmt::Display for DriverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfMemory => write!(f, "the device is out of memory"),
            Self::Failed(why) => write!(f, "the device failed: {why}"),
        }
    }
}

impl std::error::Error for DriverError {}
