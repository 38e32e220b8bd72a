//! In a steady state, no request touches the Rust heap: counted by a global allocator.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use plimsoll_alloc::{Allocation, Category, Config, DeviceMemory, LabelId, Request, SimDriver, StreamId};

const MIB: u64 = 1 << 20;

thread_local! {
    static TAKEN: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, with a count of each thread's allocations.
struct Counting;

// SAFETY: every call is forwarded to `System` unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        TAKEN.set(TAKEN.get() + 1);
        // SAFETY: the caller keeps `alloc`'s contract, which is `System`'s.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above; `pointer` came from `System`, through `alloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Step after step, frees the block of a random slot, allocates another block for it, and changes the new block's tag.
fn churn(memory: &DeviceMemory, slots: &mut [Option<Allocation>], streams: u64, most_bytes: u64) {
    let mut state = 1_u64;
    let mut below = |bound: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) % bound
    };
    for _ in 0..20_000 {
        let nth = below(slots.len() as u64) as usize;
        if let Some(old) = slots[nth].take() {
            memory.free(old);
        }
        let bytes = 1 + below(most_bytes);
        let stream = StreamId(below(streams));
        let label = LabelId(below(100) as u32);
        let block = memory.alloc(Request { bytes, stream, label, ..Request::of(0) }).unwrap();
        memory.retag(&block, Category::ALL[below(8) as usize], label);
        slots[nth] = Some(block);
    }
}

/// Asserts that a third round, after two for warm-up, allocates nothing from the heap.
fn check(live: usize, streams: u64, most_bytes: u64) {
    let memory = DeviceMemory::new(Config::default(), SimDriver::with_capacity(1 << 40));
    let mut slots: Vec<Option<Allocation>> = (0..live).map(|_| None).collect();
    for _ in 0..2 {
        churn(&memory, &mut slots, streams, most_bytes);
    }
    let segments = memory.memory_stats()["num_device_alloc"];
    let before = TAKEN.get();
    churn(&memory, &mut slots, streams, most_bytes);
    let taken = TAKEN.get() - before;
    assert_eq!(memory.memory_stats()["num_device_alloc"], segments, "the state is steady");
    assert_eq!(taken, 0, "{live} blocks up to {most_bytes} bytes on {streams} streams");
}

#[test]
fn a_steady_state_does_not_allocate_from_the_heap() {
    check(1, 1, MIB);
    check(100, 1, MIB);
    check(1000, 1, MIB);
    check(100, 3, 4 * MIB);
    check(200, 1, 64 * MIB);
}

#[test]
fn the_count_sees_the_heap() {
    let before = TAKEN.get();
    drop(Box::new(1));
    assert_eq!(TAKEN.get() - before, 1);
}
