//! Which requests go to which pool: [`Redirect`].
//!
//! The core serves each request from the pool that it names. Here, threads and streams are redirected to pools. A
//! request that names no pool is sent to the pool of the newest redirect that matches it.
//!
//! In PyTorch: `use_mem_pool`, and the filters of `beginAllocateToPool`.

use crate::lock::thread::{self, ThreadId};
use crate::request::{PoolId, Request, StreamId};

/// Which requests are sent to a pool.
///
/// ```
/// use plimsoll_alloc::{Config, DeviceMemory, PoolId, Redirect, Request, SimDriver, StreamId};
///
/// let memory = DeviceMemory::new(Config::default(), SimDriver::with_capacity(64 << 20));
/// memory.begin_allocate_to_pool(PoolId(1, 0), Redirect::Stream(StreamId(3)))?;
/// let x = memory.alloc(Request { stream: StreamId(3), ..Request::of(1) })?;
/// assert_eq!(memory.segments()[0].pool_id, PoolId(1, 0));
/// # memory.free(x);
/// # Ok::<(), plimsoll_alloc::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Redirect {
    /// The calling thread's requests. In PyTorch: `use_mem_pool`.
    ThisThread,
    /// One stream's requests. In PyTorch: the capture of a graph.
    Stream(StreamId),
    /// All requests.
    Everyone,
}

/// The active redirects.
#[derive(Debug, Default)]
pub(super) struct Redirects {
    newest_last: Vec<(PoolId, Filter)>,
}

#[derive(Debug, Clone, Copy)]
enum Filter {
    Thread(ThreadId),
    Stream(StreamId),
    Everyone,
}

impl Redirects {
    /// The pool that serves a request: the one it names, or the pool of the newest matching redirect.
    #[inline]
    pub(super) fn serving(&self, request: &Request) -> PoolId {
        if self.newest_last.is_empty() { request.pool } else { self.redirected(request) }
    }

    #[inline(never)] // usually there is no redirect
    fn redirected(&self, request: &Request) -> PoolId {
        if request.pool != PoolId::DEFAULT {
            return request.pool;
        }
        let means = |filter| match filter {
            Filter::Thread(id) => id == thread::current().id(),
            Filter::Stream(stream) => stream == request.stream,
            Filter::Everyone => true,
        };
        let newest = self.newest_last.iter().rev().find(|&&(_, filter)| means(filter));
        newest.map_or(PoolId::DEFAULT, |&(pool, _)| pool)
    }

    /// Starts sending requests to a pool.
    pub(super) fn begin(&mut self, pool: PoolId, whose: Redirect) {
        let filter = match whose {
            Redirect::ThisThread => Filter::Thread(thread::current().id()),
            Redirect::Stream(stream) => Filter::Stream(stream),
            Redirect::Everyone => Filter::Everyone,
        };
        self.newest_last.push((pool, filter));
    }

    /// Stops sending requests to a pool.
    pub(super) fn end(&mut self, pool: PoolId) {
        self.newest_last.retain(|&(redirected, _)| redirected != pool);
    }
}
