//! Inspecting the state: snapshots, how a request would be served, consistency checks.

use super::Allocator;
use crate::driver::Driver;
use crate::error::Error;
use crate::event::Observer;
use crate::explain::Explanation;
use crate::request::Request;
use crate::segment::{CacheInfo, Segment};
use crate::violation::Violation;

impl<D, O> Allocator<D, O> {
    /// The cached bytes of all pools and streams. In PyTorch: `cacheInfo`, which returns the larger of `largest_bytes`
    /// and its argument; if the argument is 0, it uses the device's free memory instead.
    pub fn cache_info(&self) -> CacheInfo {
        self.heap.pools().cache_info()
    }

    /// The largest cached block: `largest_bytes` of [`cache_info`](Self::cache_info), without visiting all
    /// blocks.
    pub(crate) fn largest_cached_bytes(&self) -> u64 {
        self.heap.pools().largest_cached_bytes()
    }

    /// All segments and their blocks, in address order. Visits all blocks.
    pub fn segments(&self) -> Vec<Segment> {
        self.heap.pools().segments()
    }

    /// Checks that the blocks, the free sets, the events and `reserved` agree. Visits all blocks.
    ///
    /// # Errors
    /// The first broken invariant.
    pub fn check(&self) -> Result<(), Violation> {
        self.heap.pools().check(self.source.ranges(), self.heap.reserved_bytes())?;
        self.pending.check(self.heap.pools())
    }
}

impl<D: Driver, O: Observer> Allocator<D, O> {
    /// The cached blocks that could serve a request now, which one would, and why. Blocks that become free
    /// when the request polls events are not included.
    ///
    /// # Errors
    /// [`Error::Pool`] if the request's pool does not exist, [`Error::TooLarge`] for one exbibyte or more.
    pub fn explain(&self, request: Request) -> Result<Explanation, Error> {
        Ok(Explanation::of(&self.size_request(request)?, self.heap.pools(), &self.config))
    }
}

#[cfg(test)]
mod tests {
    use crate::{Allocator, Config, Request, SimDriver, StreamId};

    #[test]
    fn the_largest_cached_block_of_any_stream_and_pool_is_found() {
        let mut allocator = Allocator::new(Config::default(), SimDriver::with_capacity(1 << 30), ());
        assert_eq!(allocator.largest_cached_bytes(), 0);
        for (bytes, stream) in [(1 << 10, 0), (30 << 20, 7), (3 << 20, 0), (50 << 20, 3)] {
            let request = Request { stream: StreamId(stream), ..Request::of(bytes) };
            let block = allocator.malloc(request).unwrap();
            assert_eq!(allocator.largest_cached_bytes(), allocator.cache_info().largest_bytes);
            allocator.free(block);
            assert_eq!(allocator.largest_cached_bytes(), allocator.cache_info().largest_bytes);
        }
        assert_eq!(allocator.largest_cached_bytes(), 50 << 20);
    }
}
