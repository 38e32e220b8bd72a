//! The error type, [`Error`], and the small errors that it contains. The large one, with the figures of an
//! out-of-memory error, is in `out_of_memory.rs`.

use std::fmt;

use crate::bytes::Bytes;
use crate::driver::DriverError;
use crate::out_of_memory::OutOfMemory;
use crate::request::{Addr, PoolId};
use crate::size::MIN_BLOCK_BYTES;

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
        /// The requested size, bytes.
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
                "refused: {} more than the {} already reserved would exceed the {} of per_process_memory_fraction",
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

/// Why a call on a private pool failed.
///
/// ```
/// # use plimsoll_alloc::{PoolError, PoolId};
/// assert_eq!(PoolError::Unknown(PoolId(0, 1)).to_string(), "there is no pool (0, 1)");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolError {
    /// The pool already exists.
    Exists(PoolId),
    /// There is no such private pool; the default pool is not private.
    Unknown(PoolId),
    /// Requests are already sent to this pool.
    AlreadyRecording(PoolId),
    /// Requests are not sent to this pool.
    NotRecording(PoolId),
    /// The pool has no users left.
    Unused(PoolId),
}

impl fmt::Display for PoolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exists(PoolId(a, b)) => write!(f, "pool ({a}, {b}) already exists"),
            Self::Unknown(PoolId(a, b)) => write!(f, "there is no pool ({a}, {b})"),
            Self::AlreadyRecording(PoolId(a, b)) => write!(f, "requests already go to pool ({a}, {b})"),
            Self::NotRecording(PoolId(a, b)) => write!(f, "no requests are sent to pool ({a}, {b})"),
            Self::Unused(PoolId(a, b)) => write!(f, "pool ({a}, {b}) has no users left"),
        }
    }
}

impl std::error::Error for PoolError {}

/// Why a pool cannot be restored.
///
/// ```
/// # use plimsoll_alloc::{Addr, CheckpointError};
/// let why = CheckpointError::SegmentGone(Addr(0x5000_0000_0000));
/// assert_eq!(why.to_string(), "the segment at 0x500000000000 of the checkpoint is no longer in the pool");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckpointError {
    /// A block is used on other streams, or waits for them.
    InUse(Addr),
    /// A segment of the checkpoint was released, or its pages are mapped differently now.
    SegmentGone(Addr),
}

impl fmt::Display for CheckpointError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InUse(addr) => write!(f, "the block at {addr} is still used on another stream"),
            Self::SegmentGone(addr) => {
                write!(f, "the segment at {addr} of the checkpoint is no longer in the pool")
            }
        }
    }
}

impl std::error::Error for CheckpointError {}

/// Why a request for a given address failed.
///
/// ```
/// # use plimsoll_alloc::{Addr, AddressError};
/// assert_eq!(AddressError::Unaligned(Addr(0x301)).to_string(), "blocks start at multiples of 512, not at 0x301");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AddressError {
    /// The address is not a multiple of 512.
    Unaligned(Addr),
    /// No cached block of the request's pool and stream contains the range.
    NotCached {
        /// The requested address.
        addr: Addr,
        /// The request, rounded up, bytes.
        block_bytes: u64,
    },
}

impl fmt::Display for AddressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unaligned(addr) => {
                write!(f, "blocks start at multiples of {MIN_BLOCK_BYTES}, not at {addr}")
            }
            Self::NotCached { addr, block_bytes } => {
                write!(f, "no cached block of this stream and pool holds {block_bytes} bytes at {addr}")
            }
        }
    }
}

impl std::error::Error for AddressError {}
