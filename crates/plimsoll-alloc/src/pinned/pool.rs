//! The blocks that one pool has to give: [`HostPool`], its buckets, and the events that it waits for.

use std::collections::VecDeque;

use super::size::{BUCKETS, bucket};
use crate::driver::EventId;
use crate::request::Addr;

/// A cached block in its bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cached {
    pub(super) addr: Addr,
    pub(super) bytes: u64,
}

/// The default pool, or one that graph captures own.
#[derive(Debug)]
pub(super) struct HostPool {
    /// How many captures and graphs hold it. At 0 it dies as soon as its blocks are gone.
    pub(super) users: u64,
    /// The cached blocks by `size::bucket`, each bucket from the oldest to the newest.
    pub(super) buckets: Vec<Vec<Cached>>,
    /// Events of blocks that were given back, from the oldest to the newest.
    pub(super) waiting: VecDeque<(EventId, Addr)>,
}

impl HostPool {
    pub(super) fn new() -> Self {
        Self { users: 1, buckets: vec![Vec::new(); BUCKETS], waiting: VecDeque::new() }
    }

    /// Keeps a free block, as the newest of its bucket.
    pub(super) fn put(&mut self, block: Cached) {
        self.buckets[bucket(block.bytes)].push(block);
    }

    /// The newest block of the right bucket that is large enough, not the one that fits best. It leaves the
    /// cache. As PyTorch: `get_free_block`.
    pub(super) fn take(&mut self, bytes: u64) -> Option<Cached> {
        let bucket = &mut self.buckets[bucket(bytes)];
        let nth = bucket.iter().rposition(|block| block.bytes >= bytes)?;
        Some(bucket.remove(nth))
    }
}
