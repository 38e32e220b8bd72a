//! The out-of-memory error, with the figures at the time of the failure.

use super::Allocator;
use crate::block::SlotState;
use crate::category::CategoryBytes;
use crate::driver::Driver;
use crate::error::Error;
use crate::event::{Event, Observer};
use crate::out_of_memory::OutOfMemory;
use crate::pools::SizedRequest;
use crate::request::PoolId;
use crate::source::exceeded_reserve;

impl<D: Driver, O: Observer> Allocator<D, O> {
    /// Makes the error, and sends the event.
    pub(super) fn out_of_memory_error(&mut self, sized: &SizedRequest) -> Error {
        let why = self.out_of_memory(sized);
        self.heap.send(&Event::OutOfMemory {
            requested_bytes: why.requested_bytes,
            rounded_bytes: why.rounded_bytes,
            segment_bytes: why.segment_bytes,
            stream: why.stream,
            pool_id: why.pool,
            tag: sized.request.tag(),
            stack: sized.request.stack,
            device_free_bytes: why.device_free_bytes,
        });
        Error::OutOfMemory(Box::new(why))
    }

    fn out_of_memory(&self, sized: &SizedRequest) -> OutOfMemory {
        let mut by_category = CategoryBytes::default();
        let (mut pending_bytes, mut private_cached_bytes) = (0, 0);
        let pools = self.heap.pools();
        for block in pools.blocks() {
            match block.state {
                SlotState::Active => by_category[block.tag.category] += block.bytes,
                SlotState::Pending => pending_bytes += block.bytes,
                SlotState::Cached if pools.id_of(block.pool) != PoolId::DEFAULT => {
                    private_cached_bytes += block.bytes;
                }
                _ => {}
            }
        }
        let device = self.source.memory();
        let reserved_bytes = self.heap.reserved_bytes();
        let within_limit = self.limit.allows(reserved_bytes.saturating_add(sized.segment_bytes));
        let segment_allocator_refused = within_limit && self.source.has_allocator(sized.request.pool);
        OutOfMemory {
            segment_allocator_refused,
            requested_bytes: sized.request.bytes,
            rounded_bytes: sized.block_bytes,
            segment_bytes: sized.segment_bytes,
            stream: sized.request.stream,
            pool: sized.request.pool,
            category: sized.request.category,
            label: sized.request.label,
            allocated_bytes: by_category.total(),
            pending_bytes,
            private_cached_bytes,
            reserved_bytes,
            limit_bytes: self.limit.bytes(),
            device_free_bytes: device.free_bytes,
            device_total_bytes: device.total_bytes,
            largest_free_block_bytes: pools.largest_bytes(sized.pool, sized.request.stream),
            by_category,
            expandable_segments: self.config.expandable_segments(),
            exceeded_reserve_bytes: exceeded_reserve(&self.config, sized, device.total_bytes),
        }
    }
}
