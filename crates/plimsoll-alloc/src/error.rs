//! The error type: [`Error`]. The figures of an out-of-memory error are in
//! `out_of_memory.rs`.

use std::fmt;

use crate::address::AddressError;
use crate::bytes::Bytes;
use crate::checkpoint::CheckpointError;
use crate::driver::DriverError;
use crate::out_of_memory::OutOfMemory;
use crate::private::PoolError;

/// Why a call to the allocator failed. The allocator stays usable after any of them.
///
/// ```
/// # use plimsoll_alloc::{Allocator, Config, Error, Request, SimDriver};
/// let mut allocator = Allocator::new(Config::default(), SimDriver::with_capacity(64 << 20), ());
/// let Err(Error::OutOfMemory(why)) = allocator.malloc(Request::of(65 << 20)) else { panic!("it fits?") };
/// assert_eq!((why.requested_bytes, why.segment_bytes), (65 << 20, 66 << 20));
/// ```
#[derive(Debug, Clone, PartialEq)]
pub enum Error {
    /// Out of memory, even after the cache was released.
    OutOfMemory(Box<OutOfMemory>),
    /// The request is one exbibyte or more; nothing was tried.
    TooLarge {
        /// The requested value, bytes.
        requested_bytes: u64,
    },
    /// A device call failed for a reason other than out of memory.
    Driver(DriverError),
    /// A memory fraction outside 0 to 1.
    InvalidFraction(f64),
    /// Rejected before any device call: the request would exceed `per_process_memory_fraction`, and
    /// `throw_on_cudamalloc_oom` is on. The cache was not released.
    Rejected {
        /// The size of the segment that was needed, bytes.
        segment_bytes: u64,
        /// Reserved memory, bytes.
        reserved_bytes: u64,
        /// The limit, bytes.
        allowed_bytes: u64,
    },
    /// An invalid call on a private pool.
    Pool(PoolError),
    /// A pool cannot be restored to a checkpoint.
    Checkpoint(CheckpointError),
    /// No memory at the requested address.
    Address(AddressError),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfMemory(why) => why.fmt(f),
            Self::TooLarge { requested_bytes } => {
                write!(f, "out of memory: asked for {requested_bytes} bytes, which is one exbibyte or more")
            }
            Self::Driver(why) => why.fmt(f),
            Self::InvalidFraction(fraction) => {
                write!(f, "a memory fraction must be between 0 and 1, not {fraction}")
            }
            Self::Rejected { segment_bytes, reserved_bytes, allowed_bytes } => write!(
                f,
                "refused: {} more than the {} that are reserved would pass the {} of \
                 per_process_memory_fraction",
                Bytes(*segment_bytes),
                Bytes(*reserved_bytes),
                Bytes(*allowed_bytes)
            ),
            Self::Pool(why) => why.fmt(f),
            Self::Checkpoint(why) => why.fmt(f),
            Self::Address(why) => why.fmt(f),
        }
    }
}

impl std::error::Error for Error {}

impl From<DriverError> for Error {
    fn from(why: DriverError) -> Self {
        Self::Driver(why)
    }
}

impl From<PoolError> for Error {
    fn from(why: PoolError) -> Self {
        Self::Pool(why)
    }
}

impl From<CheckpointError> for Error {
    fn from(why: CheckpointError) -> Self {
        Self::Checkpoint(why)
    }
}

impl From<AddressError> for Error {
    fn from(why: AddressError) -> Self {
        Self::Address(why)
    }
}
