//! PyTorch's results for small programs, as literal numbers from a device of 1 GiB.

use plimsoll_alloc::{Allocation, BlockState, Error, Request};

use crate::trace;
use crate::trace::{MIB, Traced, assert_counters, trace};

fn device(bytes: u64) -> Traced {
    trace::device(bytes, "")
}

fn alloc(allocator: &mut Traced, bytes: u64) -> Allocation {
    allocator.malloc(Request::of(bytes)).unwrap()
}

/// Asserts allocated and reserved bytes; inactive_split count and bytes; requested bytes. Active bytes equal allocated
/// bytes throughout.
#[track_caller]
fn assert_bytes(allocator: &Traced, expected: [i64; 5]) {
    let [allocated, reserved, pieces, piece_bytes, requested] = expected;
    trace::assert_bytes(allocator, [allocated, allocated, reserved, pieces, piece_bytes, requested]);
}

#[test]
fn split_reuse_merge_and_empty() {
    let mut a = device(1024 * MIB);
    let x = alloc(&mut a, 3 * MIB);
    assert_bytes(&a, [3_145_728, 20_971_520, 1, 17_825_792, 3_145_728]);
    let y = alloc(&mut a, 5 * MIB);
    assert_bytes(&a, [8_388_608, 20_971_520, 1, 12_582_912, 8_388_608]);
    let z = alloc(&mut a, 1000);
    assert_bytes(&a, [8_389_632, 23_068_672, 2, 14_679_040, 8_389_608]);
    let x_addr = x.addr();
    a.free(x);
    assert_bytes(&a, [5_243_904, 23_068_672, 3, 17_824_768, 5_243_880]);
    let w = alloc(&mut a, 2 * MIB);
    assert_eq!((w.addr(), w.bytes()), (x_addr, 3 * MIB), "1 MiB over is not worth a split");
    assert_bytes(&a, [8_389_632, 23_068_672, 2, 14_679_040, 7_341_032]);
    a.free(y);
    assert_bytes(&a, [3_146_752, 23_068_672, 2, 19_921_920, 2_098_152]);
    a.free(w);
    assert_bytes(&a, [1024, 23_068_672, 1, 2_096_128, 1000]);
    assert_eq!(a.empty_cache(), Ok(20 * MIB));
    assert_bytes(&a, [1024, 2_097_152, 1, 2_096_128, 1000]);
    assert_counters(&a, [0, 0, 1, 2, 1]);
    assert_eq!(
        trace(&a),
        [
            ("segment_alloc", 20_971_520),
            ("alloc", 3_145_728),
            ("alloc", 5_242_880),
            ("segment_alloc", 2_097_152),
            ("alloc", 1000),
            ("free_requested", 3_145_728),
            ("free_completed", 3_145_728),
            ("alloc", 2_097_152),
            ("free_requested", 5_242_880),
            ("free_completed", 5_242_880),
            ("free_requested", 2_097_152),
            ("free_completed", 2_097_152),
            ("segment_free", 20_971_520),
        ]
    );
    a.free(z);
}

#[test]
fn release_retry_and_out_of_memory() {
    let mut a = device(100 * MIB);
    let x = alloc(&mut a, 40 * MIB);
    let y = alloc(&mut a, 40 * MIB);
    a.free(x);
    let z = alloc(&mut a, 50 * MIB);
    assert_eq!(a.reserved(), 94_371_840);
    assert_counters(&a, [1, 0, 1, 3, 1]);
    a.free(y);
    let v = alloc(&mut a, 50 * MIB);
    assert_counters(&a, [2, 0, 2, 4, 2]);
    let Err(Error::OutOfMemory(why)) = a.malloc(Request::of(60 * MIB)) else { panic!("it fits?") };
    assert_eq!((why.rounded_bytes, why.device_free_bytes), (62_914_560, 0));
    assert_counters(&a, [3, 1, 3, 4, 2]);
    assert_eq!(a.reserved(), 104_857_600);
    assert_eq!(trace(&a).last(), Some(&("oom", 62_914_560)));
    a.free(z);
    a.free(v);
    let u = alloc(&mut a, 60 * MIB);
    assert_eq!(a.reserved(), 60 * MIB, "the next request releases both and fits");
    a.free(u);
}

#[test]
fn a_first_request_splits_its_segment_as_in_pytorch() {
    let check = |request, block, segment, pieces, piece_bytes| {
        let mut a = device(1024 * MIB);
        let x = alloc(&mut a, request);
        assert_eq!(x.bytes(), block, "{request}");
        assert_bytes(&a, [block as i64, segment as i64, pieces, piece_bytes, request as i64]);
        a.free(x);
        assert_bytes(&a, [0, segment as i64, 0, 0, 0]);
    };
    check(1, 512, 2 * MIB, 1, 2_096_640);
    check(1_048_576, 1_048_576, 2 * MIB, 1, 1_048_576);
    check(1_048_577, 1_049_088, 20 * MIB, 1, 19_922_432);
    check(10_485_248, 10_485_248, 20 * MIB, 1, 10_486_272);
    check(10_485_760, 10_485_760, 10 * MIB, 0, 0);
    check(10_485_761, 10_486_272, 12 * MIB, 1, 2_096_640);
    check(11_534_336, 12_582_912, 12 * MIB, 0, 0);
}

#[test]
fn a_split_block_merges_back() {
    let mut a = device(64 * MIB);
    let blocks: Vec<Allocation> = (0..4).map(|_| alloc(&mut a, 4 * MIB)).collect();
    let [first, second, third, fourth] = <[Allocation; 4]>::try_from(blocks).unwrap();
    a.free(first);
    a.free(third);
    assert_eq!(a.observer().0.inactive_split().all.current, 3, "first, third, tail");
    a.free(second);
    assert_eq!(a.observer().0.inactive_split().all.current, 2, "three in one, tail");
    a.free(fourth);
    let segments = a.segments();
    assert_eq!(segments[0].blocks.len(), 1);
    assert_eq!((segments[0].blocks[0].state, segments[0].blocks[0].bytes), (BlockState::Cached, 20 * MIB));
}

#[test]
fn equal_blocks_are_taken_oldest_segment_first() {
    let mut a = device(1024 * MIB);
    let old = alloc(&mut a, 12 * MIB);
    let young = alloc(&mut a, 12 * MIB);
    let (old_addr, young_addr) = (old.addr(), young.addr());
    a.free(young);
    a.free(old);
    let (first, second) = (alloc(&mut a, 12 * MIB), alloc(&mut a, 12 * MIB));
    assert_eq!((first.addr(), second.addr()), (old_addr, young_addr));
    a.free(first);
    a.free(second);
}

#[test]
fn a_cached_block_serves_only_its_own_stream() {
    use plimsoll_alloc::StreamId;
    let mut a = device(64 * MIB);
    let x = alloc(&mut a, 3 * MIB);
    a.free(x);
    let y = a.malloc(Request { stream: StreamId(1), ..Request::of(3 * MIB) }).unwrap();
    assert_eq!(a.reserved(), 40 * MIB);
    a.free(y);
}

#[test]
fn a_fraction_limits_reserved_memory() {
    let mut a = device(1000 * MIB);
    a.set_memory_fraction(0.5).unwrap();
    assert_eq!(a.memory_limit(), Some(500 * MIB));
    let x = alloc(&mut a, 500 * MIB);
    assert!(matches!(a.malloc(Request::of(1)), Err(Error::OutOfMemory(_))));
    assert_eq!(a.set_memory_fraction(1.5), Err(Error::InvalidFraction(1.5)));
    assert!(matches!(a.set_memory_fraction(f64::NAN), Err(Error::InvalidFraction(_))));
    assert_eq!(a.memory_limit(), Some(500 * MIB), "a refused fraction changes nothing");
    a.set_memory_fraction(1.0).unwrap();
    assert_eq!(a.memory_limit(), None);
    let y = alloc(&mut a, 1);
    a.set_memory_fraction(0.0).unwrap();
    let z = alloc(&mut a, 1);
    assert_eq!(a.reserved(), 502 * MIB, "what is cached still serves under any limit");
    a.free(x);
    a.free(y);
    a.free(z);
}
