//! The handle with many threads: the final state is consistent, and the sums do not depend on the order.

use std::thread;

use plimsoll_alloc::{DeviceStream, PinnedConfig, PinnedMemory, PinnedRequest, SimHost};

#[test]
fn many_threads_leave_a_consistent_state() {
    let memory = PinnedMemory::new(PinnedConfig::default(), SimHost::with_capacity(1 << 30));
    thread::scope(|scope| {
        for thread in 0..8_u64 {
            let memory = &memory;
            scope.spawn(move || {
                for round in 0..500 {
                    let block =
                        memory.alloc(PinnedRequest::of(1 + (thread * 977 + round * 131) % 9000)).unwrap();
                    if round % 3 == 0 {
                        assert!(memory.record_event(block.addr(), DeviceStream::default()));
                    }
                    memory.free(block).unwrap();
                }
            });
        }
    });
    memory.check().unwrap();
    memory.empty_cache().unwrap();
    memory.check().unwrap();
    let stats = memory.host_memory_stats();
    assert_eq!((stats["active_requests.allocated"], stats["active_requests.freed"]), (4000, 4000));
    assert_eq!((stats["allocations.current"], stats["allocated_bytes.current"]), (0, 0));
}
