//! A request and its result: [`PinnedRequest`], [`PinnedAllocation`], and the stream that uses it.

use crate::request::{Addr, PoolId, StreamId};

/// One request for pinned host memory.
///
/// ```
/// # use plimsoll_alloc::{During, PinnedRequest, PoolId};
/// let captured = PinnedRequest { pool: PoolId(1, 0), during: During::Capture, ..PinnedRequest::of(4000) };
/// assert_eq!(captured.bytes, 4000);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PinnedRequest {
    /// The size in bytes, before rounding. 0 is allowed and allocates nothing.
    pub bytes: u64,
    /// The default pool, or a pool with a capture under way.
    pub pool: PoolId,
    /// Whether the requesting stream is being captured.
    pub during: During,
}

impl PinnedRequest {
    /// `bytes` of the default pool, outside any capture.
    pub fn of(bytes: u64) -> Self {
        Self { bytes, pool: PoolId::DEFAULT, during: During::Eager }
    }
}

/// Whether work runs now, or is captured into a graph that may run later.
///
/// ```
/// # use plimsoll_alloc::{During, PinnedRequest};
/// assert_eq!(PinnedRequest::of(1).during, During::Eager);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum During {
    /// It runs now.
    Eager,
    /// It is captured. A block that is used then is never cached again, because no event can
    /// tell when the graph is done with it.
    Capture,
}

/// A stream of one of the devices: pinned memory serves all of them.
///
/// ```
/// # use plimsoll_alloc::{DeviceStream, StreamId};
/// let copies = DeviceStream { device: 1, stream: StreamId(7) };
/// assert_ne!(copies, DeviceStream { device: 0, ..copies });
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct DeviceStream {
    /// The device's number.
    pub device: u32,
    /// The stream's handle there.
    pub stream: StreamId,
}

/// Ownership of one block of pinned memory; `free` ends it.
///
/// It cannot be copied and `free` consumes it, so a block cannot be freed twice. Dropping it without `free`
/// leaks the block. The result of a request of 0 bytes has `Addr(0)` and no block.
///
/// ```
/// # use plimsoll_alloc::{Addr, PinnedAllocator, PinnedConfig, PinnedError, PinnedRequest, SimHost};
/// let mut pinned = PinnedAllocator::new(PinnedConfig::default(), SimHost::with_capacity(1 << 20), ());
/// let nothing = pinned.alloc(PinnedRequest::of(0))?;
/// let some = pinned.alloc(PinnedRequest::of(1000))?;
/// assert_eq!((nothing.addr(), nothing.bytes()), (Addr(0), 0));
/// assert_eq!((some.requested_bytes(), some.bytes()), (1000, 1024));
/// pinned.free(nothing)?;
/// pinned.free(some)?;
/// # Ok::<(), PinnedError>(())
/// ```
#[derive(Debug, PartialEq, Eq)]
#[must_use = "an allocation that is dropped instead of freed is leaked"]
pub struct PinnedAllocation {
    pub(super) addr: Addr,
    pub(super) bytes: u64,
    pub(super) requested_bytes: u64,
}

impl PinnedAllocation {
    /// The result of a request of 0 bytes.
    pub(super) fn nothing() -> Self {
        Self { addr: Addr(0), bytes: 0, requested_bytes: 0 }
    }

    /// The block's address, or `Addr(0)` for a request of 0 bytes.
    pub fn addr(&self) -> Addr {
        self.addr
    }

    /// The block's size, as large as the request or larger.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The requested size.
    pub fn requested_bytes(&self) -> u64 {
        self.requested_bytes
    }
}
