//! What can go wrong for a caller: [`Error`], and [`OutOfMemory`] with its numbers.

use std::fmt;

use crate::bytes::Bytes;
use crate::category::{Category, CategoryBytes};
use crate::driver::DriverError;
use crate::request::{LabelId, StreamId};

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
    /// No memory, even after the cache was released.
    OutOfMemory(Box<OutOfMemory>),
    /// The request is one exbibyte or more; nothing was tried.
    TooLarge {
        /// What was asked for, bytes.
        requested_bytes: u64,
    },
    /// The device failed for another reason than want of memory.
    Driver(DriverError),
    /// A memory fraction outside 0 to 1.
    InvalidFraction(f64),
    /// A large segment must be more than 10 MiB and a multiple of 512.
    InvalidLargeSegment {
        /// What was asked for, bytes.
        bytes: u64,
    },
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
            Self::InvalidLargeSegment { bytes } => {
                write!(
                    f,
                    "a large segment must be more than 10 MiB and a multiple of 512 bytes, not {bytes} bytes"
                )
            }
        }
    }
}

impl std::error::Error for Error {}

impl From<DriverError> for Error {
    fn from(why: DriverError) -> Self {
        Self::Driver(why)
    }
}

/// A request that did not fit, and how things stood when it failed (after the release of the cache).
///
/// ```
/// # use plimsoll_alloc::{Allocator, Bytes, Config, Error, Request, SimDriver};
/// let mut allocator = Allocator::new(Config::default(), SimDriver::with_capacity(64 << 20), ());
/// let x = allocator.malloc(Request::of(50 << 20))?;
/// let Err(why) = allocator.malloc(Request::of(3 << 19)) else { panic!("it fits?") };
/// assert_eq!(
///     why.to_string(),
///     "out of memory: asked for 1.50 MiB (a 20.00 MiB segment); 50.00 MiB allocated of 50.00 MiB reserved, \
///      largest free block 0 bytes; the device has 14.00 MiB of 64.00 MiB free; \
///      held by: temporaries 50.00 MiB"
/// );
/// # allocator.free(x);
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutOfMemory {
    /// What the caller asked for, bytes.
    pub requested_bytes: u64,
    /// The block that this needs, bytes.
    pub rounded_bytes: u64,
    /// What the device was asked for, bytes.
    pub segment_bytes: u64,
    /// The stream of the request.
    pub stream: StreamId,
    /// What the bytes were to be for.
    pub category: Category,
    /// Whose they were to be.
    pub label: LabelId,
    /// What callers hold, in whole blocks, bytes.
    pub allocated_bytes: u64,
    /// What the allocator holds of the device, bytes.
    pub reserved_bytes: u64,
    /// The bound on `reserved_bytes`, if one is set, bytes.
    pub limit_bytes: Option<u64>,
    /// What the device has free, bytes.
    pub device_free_bytes: u64,
    /// All that the device has, bytes.
    pub device_total_bytes: u64,
    /// The largest cached block of the request's stream, bytes; 0 if there is none.
    pub largest_free_block_bytes: u64,
    /// `allocated_bytes` by what they are for.
    pub by_category: CategoryBytes,
}

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "out of memory: asked for {} (a {} segment); {} allocated of {} reserved, largest free block {}; ",
            Bytes(self.requested_bytes),
            Bytes(self.segment_bytes),
            Bytes(self.allocated_bytes),
            Bytes(self.reserved_bytes),
            Bytes(self.largest_free_block_bytes),
        )?;
        if let Some(limit_bytes) = self.limit_bytes {
            write!(f, "limited to {}; ", Bytes(limit_bytes))?;
        }
        write!(
            f,
            "the device has {} of {} free",
            Bytes(self.device_free_bytes),
            Bytes(self.device_total_bytes)
        )?;
        for (nth, (category, bytes)) in self.by_category.iter().filter(|&(_, bytes)| bytes > 0).enumerate() {
            let before = if nth == 0 { "; held by: " } else { ", " };
            write!(f, "{before}{} {}", category.plural(), Bytes(bytes))?;
        }
        Ok(())
    }
}

impl std::error::Error for OutOfMemory {}
