//! The result of a request: [`Allocation`].

use crate::block::BlockId;
use crate::event::LiveBlock;
use crate::request::Addr;

/// Ownership of one allocated block; `free` ends it.
///
/// It cannot be copied and `free` consumes it, so a block cannot be freed twice. Dropping it without `free`
/// leaks the block: it has no reference to its allocator. The result of a request of 0 bytes has `Addr(0)`
/// and no block.
///
/// ```
/// # use plimsoll_alloc::{Addr, Allocator, Config, Request, SimDriver};
/// let mut allocator = Allocator::new(Config::default(), SimDriver::with_capacity(64 << 20), ());
/// let nothing = allocator.malloc(Request::of(0))?;
/// let some = allocator.malloc(Request::of(1000))?;
/// assert_eq!((nothing.addr(), nothing.bytes()), (Addr(0), 0));
/// assert_eq!((some.requested_bytes(), some.bytes()), (1000, 1024));
/// allocator.free(nothing);
/// allocator.free(some);
/// # Ok::<(), plimsoll_alloc::Error>(())
/// ```
#[derive(Debug, PartialEq, Eq)]
#[must_use = "an allocation that is dropped instead of freed is leaked"]
pub struct Allocation {
    addr: Addr,
    bytes: u64,
    requested_bytes: u64,
    block: Option<BlockId>,
    /// The block's generation at the time of the request.
    generation: u32,
}

impl Allocation {
    /// The result of a request of 0 bytes.
    pub(crate) fn nothing() -> Self {
        Self { addr: Addr(0), bytes: 0, requested_bytes: 0, block: None, generation: 0 }
    }

    pub(crate) fn of_block(id: BlockId, generation: u32, block: &LiveBlock) -> Self {
        let LiveBlock { addr, bytes, requested_bytes, .. } = *block;
        Self { addr, bytes, requested_bytes, block: Some(id), generation }
    }

    pub(crate) fn generation(&self) -> u32 {
        self.generation
    }

    pub(crate) fn block(&self) -> Option<BlockId> {
        self.block
    }

    /// The block's address: a multiple of 512, or `Addr(0)` for a request of 0 bytes.
    pub fn addr(&self) -> Addr {
        self.addr
    }

    /// The block's size: the requested size rounded up, and up to 1 MiB more if the remainder was not worth a split.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The requested size.
    pub fn requested_bytes(&self) -> u64 {
        self.requested_bytes
    }
}
