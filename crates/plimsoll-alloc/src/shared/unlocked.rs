//! `release_lock_on_cudamalloc`: handling a cache miss with the lock released while a segment is allocated.
//!
//! In the meantime, other threads allocate and free from the cache. A thread that needs the device still waits for
//! it. As in PyTorch, if two requests run concurrently, the limit check of each ignores the segment of the other.

use super::device::Device;
use super::state::{Core, Shared};
use crate::allocator::{Allocator, GrowthContext};
use crate::driver::{Driver, DriverError};
use crate::lock::{Guard, Lock};
use crate::pools::SizedRequest;
use crate::request::Addr;

/// Access for a cache miss that holds the lock except while a segment is allocated.
pub(super) struct Unlocked<'a> {
    lock: &'a Lock<Shared>,
    shared: Option<Guard<'a, Shared>>,
}

const HELD: &str = "the lock is released only while a segment is allocated";

impl<'a> Unlocked<'a> {
    pub(super) fn new(lock: &'a Lock<Shared>, shared: Guard<'a, Shared>) -> Self {
        Self { lock, shared: Some(shared) }
    }

    pub(super) fn into_guard(self) -> Guard<'a, Shared> {
        self.shared.expect(HELD)
    }
}

impl GrowthContext for Unlocked<'_> {
    type Driver = Device;
    type Observer = <Core as GrowthContext>::Observer;

    fn allocator(&mut self) -> &mut Allocator<Self::Driver, Self::Observer> {
        &mut self.shared.as_mut().expect(HELD).core
    }

    fn segment_alloc(&mut self, sized: &SizedRequest) -> Result<Addr, DriverError> {
        let core = self.allocator();
        let (pool, mut device) = (sized.request.pool, core.driver().clone());
        let theirs = core.begin_segment_alloc(pool);
        self.shared = None;
        let answer = match theirs {
            Some(theirs) => theirs.segment_alloc(sized.segment_bytes, sized.request.stream),
            None => device.segment_alloc(sized.segment_bytes),
        };
        self.shared = Some(self.lock.lock());
        self.allocator().end_segment_alloc(pool);
        answer
    }
}
