//! `release_lock_on_cudamalloc`: the ladder climbed with the lock released while a segment is made.
//!
//! Others allocate and free from the cache meanwhile. Who needs the device for something else still waits for
//! it. As in PyTorch, two that ask at the same time are both held against the limit as it was before either.

use super::{Core, DeviceMemory, Shared, device};
use crate::allocator::Allocator;
use crate::driver::{Driver, DriverError};
use crate::ladder::Climber;
use crate::lock::Guard;
use crate::request::Addr;
use crate::search::Ask;

/// A climber that has the lock except while it waits for a segment.
pub(super) struct Unlocked<'a> {
    memory: &'a DeviceMemory,
    shared: Option<Guard<'a, Shared>>,
}

const HELD: &str = "the lock is let go of only while a segment is made";

impl<'a> Unlocked<'a> {
    pub(super) fn new(memory: &'a DeviceMemory, shared: Guard<'a, Shared>) -> Self {
        Self { memory, shared: Some(shared) }
    }

    pub(super) fn into_guard(self) -> Guard<'a, Shared> {
        self.shared.expect(HELD)
    }
}

impl Climber for Unlocked<'_> {
    type Driver = device::Device;
    type Observer = <Core as Climber>::Observer;

    fn allocator(&mut self) -> &mut Allocator<Self::Driver, Self::Observer> {
        &mut self.shared.as_mut().expect(HELD).core
    }

    fn segment_alloc(&mut self, ask: &Ask) -> Result<Addr, DriverError> {
        let core = self.allocator();
        let (pool, mut device) = (ask.request.pool, core.driver().clone());
        let theirs = core.privates.segment_allocators.get(pool).cloned();
        core.privates.hold(pool);
        self.shared = None;
        let answer = match theirs {
            Some(theirs) => theirs.segment_alloc(ask.segment_bytes, ask.request.stream),
            None => device.segment_alloc(ask.segment_bytes),
        };
        self.shared = Some(self.memory.lock());
        self.allocator().privates.let_go(pool);
        answer
    }
}
