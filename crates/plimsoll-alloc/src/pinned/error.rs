//! Errors of pinned memory: [`PinnedError`].

use std::fmt;

use crate::bytes::Bytes;
use crate::driver::DriverError;
use crate::error::PoolError;

/// Why a call failed. The allocator stays usable after any of them.
///
/// ```
/// # use plimsoll_alloc::{PinnedAllocator, PinnedConfig, PinnedRequest, SimHost};
/// let mut pinned = PinnedAllocator::new(PinnedConfig::default(), SimHost::with_capacity(4096), ());
/// let x = pinned.alloc(PinnedRequest::of(3000))?;
/// pinned.free(x)?;
/// let why = pinned.alloc(PinnedRequest::of(2000)).unwrap_err();
/// assert_eq!(
///     why.to_string(),
///     "out of pinned memory: asked for 2.00 KiB; 0 bytes are in use and 4.00 KiB cached, \
///      which empty_cache() releases"
/// );
/// # Ok::<(), plimsoll_alloc::PinnedError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PinnedError {
    /// The host is out of memory. As in PyTorch, the cache was not released.
    OutOfMemory {
        /// The size requested from the host, for a block or for the reserve; bytes.
        asked_bytes: u64,
        /// Memory in use by callers or streams, bytes.
        active_bytes: u64,
        /// Cached memory, bytes.
        cached_bytes: u64,
    },
    /// The request is more than 2^63 bytes; nothing was tried.
    TooLarge {
        /// The requested value, bytes.
        requested_bytes: u64,
    },
    /// The host or a device failed for a reason other than out of memory.
    Driver(DriverError),
    /// An invalid use of a pool; nothing was tried.
    Pool(PoolError),
}

impl fmt::Display for PinnedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfMemory { asked_bytes, active_bytes, cached_bytes } => {
                let (asked, active) = (Bytes(*asked_bytes), Bytes(*active_bytes));
                write!(f, "out of pinned memory: asked for {asked}; {active} are in use")?;
                match cached_bytes {
                    0 => write!(f, " and none cached"),
                    _ => write!(f, " and {} cached, which empty_cache() releases", Bytes(*cached_bytes)),
                }
            }
            Self::TooLarge { requested_bytes } => {
                write!(f, "out of pinned memory: asked for {requested_bytes} bytes, which is more than 2^63")
            }
            Self::Driver(why) => why.fmt(f),
            Self::Pool(why) => write!(f, "pinned memory: {why}"),
        }
    }
}

impl std::error::Error for PinnedError {}

impl From<DriverError> for PinnedError {
    fn from(why: DriverError) -> Self {
        Self::Driver(why)
    }
}
