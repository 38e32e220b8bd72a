//! What a simulation requires of an allocator: [`Policy`]. Implemented by `Allocator` (PyTorch's policy) and
//! `PackedAllocator` (which reserves little more than is allocated).

use plimsoll_alloc::{
    Allocation, Allocator, Driver, Error, Observer, PackedAllocation, PackedAllocator, PackedWaiting,
    Request, Waiting,
};

/// An allocator whose observer has type `O`.
pub(super) trait Policy<O> {
    /// Ownership of a block.
    type Held;
    /// A freed block that is waiting for a stream.
    type Waiting;

    fn malloc(&mut self, request: Request) -> Result<Self::Held, Error>;
    fn free(&mut self, held: Self::Held);
    fn free_later(&mut self, held: Self::Held) -> Option<Self::Waiting>;
    fn complete(&mut self, waiting: Self::Waiting);
    /// Releases the cache. The simulated device never fails to free memory.
    fn empty_cache(&mut self);
    fn tally(&mut self) -> &mut O;
}

impl<D: Driver, O: Observer> Policy<O> for Allocator<D, O> {
    type Held = Allocation;
    type Waiting = Waiting;

    #[inline]
    fn malloc(&mut self, request: Request) -> Result<Allocation, Error> {
        Self::malloc(self, request)
    }

    #[inline]
    fn free(&mut self, held: Allocation) {
        Self::free(self, held);
    }

    fn free_later(&mut self, held: Allocation) -> Option<Waiting> {
        Self::free_later(self, held)
    }

    fn complete(&mut self, waiting: Waiting) {
        Self::complete(self, waiting);
    }

    fn empty_cache(&mut self) {
        drop(Self::empty_cache(self));
    }

    fn tally(&mut self) -> &mut O {
        self.observer_mut()
    }
}

impl<D: Driver, O: Observer> Policy<O> for PackedAllocator<D, O> {
    type Held = PackedAllocation;
    type Waiting = PackedWaiting;

    fn malloc(&mut self, request: Request) -> Result<PackedAllocation, Error> {
        Self::malloc(self, request)
    }

    fn free(&mut self, held: PackedAllocation) {
        Self::free(self, held);
    }

    fn free_later(&mut self, held: PackedAllocation) -> Option<PackedWaiting> {
        Self::free_later(self, held)
    }

    fn complete(&mut self, waiting: PackedWaiting) {
        Self::complete(self, waiting);
    }

    fn empty_cache(&mut self) {
        drop(Self::empty_cache(self));
    }

    fn tally(&mut self) -> &mut O {
        self.observer_mut()
    }
}
