//! PyTorch's results for small programs with non-default options, as literal numbers from a device of 1 GiB:
//! specification 14.4 to 14.6, and the numbers in 2, 4 and 5.

use plimsoll_alloc::{Addr, AddressError, Allocation, Error, Request};

use crate::trace::{MIB, Traced, assert_bytes, assert_counters, assert_sound, device, layout, trace};

fn alloc(allocator: &mut Traced, bytes: u64) -> Allocation {
    let allocation = allocator.malloc(Request::of(bytes)).unwrap();
    assert_sound(allocator);
    allocation
}

fn free(allocator: &mut Traced, allocation: Allocation) {
    allocator.free(allocation);
    assert_sound(allocator);
}

#[test]
fn blocks_beyond_max_split_size_are_not_split_and_serve_only_such_requests() {
    let mut a = device(1024 * MIB, "max_split_size_mb:40");
    let x = alloc(&mut a, 60 * MIB);
    free(&mut a, x);
    let y = alloc(&mut a, 5 * MIB);
    assert_eq!(a.reserved(), 80 * MIB, "the block of 60 MiB is too large for 5 MiB");
    let z = alloc(&mut a, 45 * MIB);
    let stats = &a.observer().0;
    assert_eq!(z.bytes(), 62_914_560, "15 MiB over is less than 20");
    assert_eq!(stats.requested_bytes().all.current, (5 * MIB + 47_185_920) as i64);
    assert_eq!((stats.oversize_allocations.current, stats.oversize_segments.current), (1, 1));
    free(&mut a, z);
    let w = alloc(&mut a, 55 * MIB);
    assert_eq!(w.bytes(), 60 * MIB);
    free(&mut a, w);
    free(&mut a, y);
    let q = alloc(&mut a, 80 * MIB);
    assert_eq!(a.reserved(), 167_772_160, "nothing is released while the device has room");
    assert_eq!(a.observer().0.memory_stats()["max_split_size"], 40 << 20);
    free(&mut a, q);
    assert_eq!(a.observer().0.oversize_segments.current, 2);
    assert_eq!(a.empty_cache(), Ok(167_772_160));
    assert_eq!(a.observer().0.oversize_segments.current, 0);
}

#[test]
fn a_block_too_much_larger_is_skipped_and_oversize_segments_are_released_first() {
    let mut a = device(100 * MIB, "max_split_size_mb:20");
    let x = alloc(&mut a, 60 * MIB);
    let keep = alloc(&mut a, 30 * MIB);
    free(&mut a, x);
    let y = alloc(&mut a, 40 * MIB); // a block of 60 exceeds it by 20, which is not less than 20
    assert_eq!(y.bytes(), 40 * MIB);
    assert_counters(&a, [0, 0, 0, 3, 1]);
    free(&mut a, keep);
    free(&mut a, y);
    let z = alloc(&mut a, 90 * MIB); // neither block fits; the largest are released until 90 MiB are free
    assert_counters(&a, [1, 0, 1, 4, 3]);
    free(&mut a, z);
}

/// PyTorch's result, recorded on the oracle (shared/tools/oracle): the third segment stays.
#[test]
fn only_as_many_oversize_segments_are_released_as_the_request_needs() {
    let mut a = device(100 * MIB, "max_split_size_mb:20");
    let blocks = [(); 3].map(|()| alloc(&mut a, 30 * MIB));
    blocks.into_iter().for_each(|block| free(&mut a, block));
    let x = alloc(&mut a, 60 * MIB);
    assert_eq!(layout(&a), ["0: 30", "90: 60H"]);
    assert_counters(&a, [0, 0, 0, 4, 2]);
    free(&mut a, x);
}

#[test]
fn garbage_is_collected_by_age_once_the_threshold_is_passed() {
    let mut a = device(1024 * MIB, "garbage_collection_threshold:0.5");
    a.set_memory_fraction(0.25).unwrap();
    let (x, y) = (alloc(&mut a, 40 * MIB), alloc(&mut a, 60 * MIB));
    free(&mut a, x);
    free(&mut a, y);
    let p = alloc(&mut a, 50 * MIB);
    let z = alloc(&mut a, 70 * MIB);
    assert_eq!(a.reserved(), 178_257_920, "100 MiB were below the threshold of 128");
    free(&mut a, z);
    let w = alloc(&mut a, 80 * MIB);
    assert_eq!(a.reserved(), 146_800_640);
    assert_counters(&a, [0, 0, 0, 4, 2]);
    let released = trace(&a).into_iter().filter(|&(action, _)| action == "segment_free");
    assert_eq!(released.map(|(_, bytes)| bytes / MIB).collect::<Vec<_>>(), [40, 70]);
    free(&mut a, p);
    free(&mut a, w);
}

#[test]
fn an_expandable_segment_grows_and_shrinks_by_the_page() {
    let mut a = device(1024 * MIB, "expandable_segments:True");
    let x = alloc(&mut a, 30 * MIB);
    assert_bytes(&a, [31_457_280, 31_457_280, 41_943_040, 0, 0, 31_457_280]);
    let y = alloc(&mut a, 25 * MIB);
    assert_eq!(layout(&a), ["0: 30H 25H 5"]);
    assert_bytes(&a, [57_671_680, 57_671_680, 62_914_560, 0, 0, 57_671_680]);
    let base = x.addr();
    free(&mut a, x);
    let z = alloc(&mut a, 50 * MIB);
    assert_eq!(layout(&a), ["0: 30 25H 50H 15"]);
    assert_eq!(a.reserved(), 125_829_120);
    free(&mut a, y);
    let q = alloc(&mut a, 12 * MIB);
    assert_eq!(q.addr(), base, "the hole is taken, not the end at which the segment grows");
    assert_eq!(layout(&a), ["0: 12H 43 50H 15"]);
    assert_eq!(a.empty_cache(), Ok(20 * MIB));
    assert_eq!(layout(&a), ["0: 12H 8", "40: 15 50H 15"]);
    free(&mut a, z);
    free(&mut a, q);
    assert_eq!(layout(&a), ["0: 20", "40: 80"]);
    assert_eq!(a.empty_cache(), Ok(100 * MIB));
    assert_bytes(&a, [0, 0, 0, 0, 0, 0]);
    assert_counters(&a, [0, 0, 2, 3, 3]);
    assert_eq!(a.observer().0.segment().all.allocated, 0);
    let device_calls: Vec<_> =
        trace(&a).into_iter().filter(|(action, _)| action.starts_with("segment")).collect();
    assert_eq!(
        device_calls,
        [
            ("segment_map", 41_943_040),
            ("segment_map", 20_971_520),
            ("segment_map", 62_914_560),
            ("segment_unmap", 20_971_520),
            ("segment_unmap", 20_971_520),
            ("segment_unmap", 83_886_080),
        ]
    );
}

#[test]
fn small_requests_map_small_pages() {
    let mut a = device(1024 * MIB, "expandable_segments:True");
    let x = alloc(&mut a, 100);
    assert_eq!((a.reserved(), x.bytes()), (2 * MIB, 512));
    free(&mut a, x);
    assert_eq!(a.empty_cache(), Ok(2 * MIB));
}

#[test]
fn the_limit_counts_whole_segments_but_growth_is_by_the_page() {
    let mut a = device(1024 * MIB, "expandable_segments:True");
    a.set_memory_fraction(0.5).unwrap();
    let mut held: Vec<Allocation> = Vec::new();
    while let Ok(allocation) = a.malloc(Request::of(10 * MIB)) {
        held.push(allocation);
    }
    assert_eq!(a.reserved(), 520 * MIB, "10 MiB asked with 500 reserved pass the limit of 512");
    held.into_iter().for_each(|allocation| free(&mut a, allocation));
}

#[test]
fn a_reserve_smaller_than_the_request_is_out_of_memory() {
    let mut a = device(1024 * MIB, "expandable_segments:True,expandable_segments_reserve:0.25");
    let x = alloc(&mut a, 260 * MIB); // 13 pages of 20 MiB
    assert_eq!(a.reserved(), 260 * MIB);
    assert!(matches!(a.malloc(Request::of(261 * MIB)), Err(Error::OutOfMemory(_))));
    assert_sound(&a);
    let y = alloc(&mut a, 20 * MIB);
    assert!(y.addr().0 >= x.addr().0 + 260 * MIB, "in a second range");
    free(&mut a, x);
    free(&mut a, y);
}

#[test]
fn both_kinds_of_segments_coexist_when_the_option_changes() {
    let mut a = device(1024 * MIB, "");
    let fixed = alloc(&mut a, 40 * MIB);
    let on = a.config().apply("expandable_segments:True").unwrap().config;
    let off = a.config().clone();
    a.set_config(on);
    let expandable = alloc(&mut a, 40 * MIB);
    free(&mut a, fixed);
    free(&mut a, expandable);
    let cut = alloc(&mut a, 39 * MIB + 512);
    assert_eq!(cut.bytes(), 39 * MIB + 512, "an ordinary block is cut to 512 while the option is on");
    a.set_config(off);
    let other = alloc(&mut a, 30 * MIB);
    assert_eq!(a.reserved(), 110 * MIB, "the expandable block is not used while the option is off");
    free(&mut a, cut);
    free(&mut a, other);
    assert_eq!(a.empty_cache(), Ok(110 * MIB), "but it is released");
}

#[test]
fn a_rejection_comes_before_any_release() {
    let mut a = device(100 * MIB, "throw_on_cudamalloc_oom:True");
    let x = alloc(&mut a, 60 * MIB);
    free(&mut a, x);
    let (segment_bytes, reserved_bytes, allowed_bytes) = (70 * MIB, 60 * MIB, 100 * MIB);
    let rejected = Error::Rejected { segment_bytes, reserved_bytes, allowed_bytes };
    assert_eq!(a.malloc(Request::of(70 * MIB)), Err(rejected));
    assert_counters(&a, [0, 0, 0, 1, 0]);
    assert_eq!(a.observer().0.num_oom_rejections, 1);
    let y = alloc(&mut a, 40 * MIB);
    free(&mut a, y);
}

#[test]
fn the_memory_fraction_option_sets_the_initial_limit() {
    let mut a = device(1000 * MIB, "per_process_memory_fraction:0.5");
    assert_eq!(a.memory_limit(), Some(500 * MIB));
    assert!(matches!(a.malloc(Request::of(501 * MIB)), Err(Error::OutOfMemory(_))));
    a.set_config(a.config().apply("per_process_memory_fraction:1.0").unwrap().config);
    assert_eq!(a.memory_limit(), Some(500 * MIB), "a later change is not read");
}

#[test]
fn a_tie_goes_to_the_older_segment_or_to_the_lower_address() {
    use plimsoll_alloc::{Allocator, Config, TieOrder};
    let check = |order, expected: Addr| {
        let config = Config::default().with_tie_order(order);
        let mut a = Allocator::new(config, Falling::default(), ());
        let blocks = [(); 2].map(|()| a.malloc(Request::of(12 * MIB)).unwrap());
        blocks.into_iter().for_each(|block| a.free(block));
        let taken = a.malloc(Request::of(12 * MIB)).unwrap();
        assert_eq!(taken.addr(), expected, "{order:?}");
        a.free(taken);
    };
    check(TieOrder::RegistrationCounter, Falling::START);
    check(TieOrder::Address, Addr(Falling::START.0 - 32 * MIB));
}

/// A device with descending addresses.
#[derive(Default)]
struct Falling {
    segments: u64,
}

impl Falling {
    const START: Addr = Addr(0x5000_0000_0000);
}

impl plimsoll_alloc::Driver for Falling {
    fn segment_alloc(&mut self, _: u64) -> Result<Addr, plimsoll_alloc::DriverError> {
        let addr = Addr(Self::START.0 - self.segments * 32 * MIB);
        self.segments += 1;
        Ok(addr)
    }

    fn segment_free(&mut self, _: Addr) -> Result<(), plimsoll_alloc::DriverError> {
        Ok(())
    }

    fn memory(&self) -> plimsoll_alloc::MemoryInfo {
        plimsoll_alloc::MemoryInfo { free_bytes: 0, total_bytes: 1 << 40 }
    }
}

/// PyTorch's results, recorded on the oracle: an address in the mapped part of an expandable segment can be requested,
/// an address beyond it cannot, and the segment has no base address to share.
#[test]
fn a_given_address_in_an_expandable_segment_must_be_mapped() {
    let mut a = device(1024 * MIB, "expandable_segments:True");
    let x = a.malloc(Request::of(30 * MIB)).unwrap();
    let at = |mib: u64| Addr(x.addr().0 + mib * MIB);
    assert_eq!(a.base_allocation(&x), None);
    let at = [5, 39, 34].map(at);
    a.free(x);
    let y = a.malloc_with_address(Request::of(5 * MIB), at[0]).unwrap();
    let beyond = a.malloc_with_address(Request::of(5 * MIB), at[1]);
    let block_bytes = 5 * MIB;
    assert_eq!(beyond, Err(Error::Address(AddressError::NotCached { addr: at[1], block_bytes })));
    let z = a.malloc_with_address(Request::of(5 * MIB), at[2]).unwrap();
    assert_eq!(layout(&a), ["0: 5 5H 24 5H 1"]);
    assert_sound(&a);
    a.free(y);
    a.free(z);
}
