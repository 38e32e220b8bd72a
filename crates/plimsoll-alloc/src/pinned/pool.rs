//! The cached blocks of one pool: [`HostPool`], its buckets and its pending events.

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

/// The default pool, or a pool of graph captures.
#[derive(Debug)]
pub(super) struct HostPool {
    /// The use count: captures and graphs. At 0, the pool is removed with its last block.
    pub(super) users: u64,
    /// The cached blocks, indexed by `size::bucket`; within a bucket, oldest first.
    pub(super) buckets: Vec<Vec<Cached>>,
    /// The events of freed blocks, oldest first.
    pub(super) waiting: VecDeque<(EventId, Addr)>,
}

impl HostPool {
    pub(super) fn new() -> Self {
        Self { users: 1, buckets: vec![Vec::new(); BUCKETS], waiting: VecDeque::new() }
    }

    /// Caches a block, as the newest of its bucket.
    pub(super) fn put(&mut self, block: Cached) {
        self.buckets[bucket(block.bytes)].push(block);
    }

    /// Removes and returns the newest block of the bucket that is large enough; it need not be the best fit. In
    /// PyTorch: `get_free_block`.
    pub(super) fn take(&mut self, bytes: u64) -> Option<Cached> {
        let bucket = &mut self.buckets[bucket(bytes)];
        let nth = bucket.iter().rposition(|block| block.bytes >= bytes)?;
        Some(bucket.remove(nth))
    }
}
