//! Private pools: specification 14.7, and the rules of section 6.

use plimsoll_alloc::{Addr, Allocation, Error, Event, PoolError, PoolId, Request, StreamId};

use crate::trace::{MIB, Traced, assert_counters, assert_sound, device, layout};

const POOL: PoolId = PoolId(0, 1);

fn alloc_in(allocator: &mut Traced, pool: PoolId, bytes: u64) -> Allocation {
    let allocation = allocator.malloc(Request { pool, ..Request::of(bytes) }).unwrap();
    assert_sound(allocator);
    allocation
}

#[test]
fn a_pool_keeps_its_memory_while_it_is_in_use() {
    let mut a = device(1024 * MIB, "");
    a.create_pool(POOL).unwrap();
    a.begin_allocate_to_pool(POOL).unwrap();
    assert_eq!(a.pool_use_count(POOL), Some(2));
    let x = alloc_in(&mut a, POOL, 3 * MIB);
    a.end_allocate_to_pool(POOL).unwrap();
    let y = alloc_in(&mut a, PoolId::DEFAULT, 3 * MIB);
    assert_eq!(a.reserved(), 40 * MIB, "17 MiB are free in the pool, but not for others");
    a.free(x);
    assert_eq!(a.empty_cache(), Ok(0), "the pool is in use, and y's segment is split");
    a.release_pool(POOL).unwrap();
    a.release_pool(POOL).unwrap();
    assert_eq!(a.pool_use_count(POOL), Some(0));
    assert_eq!(a.empty_pool(POOL), Ok(20 * MIB));
    assert_counters(&a, [0, 0, 2, 2, 1]);
    let last = a.observer().1.last();
    assert!(matches!(last, Some(Event::SegmentFree { memory, .. }) if memory.pool_id == POOL));
    assert_eq!(a.pool_use_count(POOL), None, "it is forgotten");
    let stats = a.observer().0.memory_stats();
    assert_eq!(stats.len(), 135);
    assert_eq!(stats["reserved_bytes_by_private_pools.0_1.all.current"], 0);
    assert_eq!(stats["reserved_bytes_by_private_pools.0_1.large_pool.peak"], 20 << 20);
    a.free(y);
}

#[test]
fn allocations_outlive_their_pool_and_the_next_release_frees_their_memory() {
    let mut a = device(1024 * MIB, "");
    a.create_pool(POOL).unwrap();
    let x = alloc_in(&mut a, POOL, 3 * MIB);
    a.release_pool(POOL).unwrap();
    assert_eq!(a.empty_pool(POOL), Ok(0));
    a.free(x);
    assert_sound(&a);
    assert_eq!(a.empty_cache(), Ok(20 * MIB));
    assert_eq!(a.pool_use_count(POOL), None);
    assert_eq!(a.malloc(Request { pool: POOL, ..Request::of(1) }), Err(PoolError::Unknown(POOL).into()));
}

#[test]
fn a_no_split_pool_allocates_whole_segments() {
    let mut a = device(1024 * MIB, "");
    a.set_no_split(POOL);
    a.create_pool(POOL).unwrap();
    let x = alloc_in(&mut a, POOL, 4096);
    assert_eq!(x.bytes(), 2 * MIB);
    let y = alloc_in(&mut a, PoolId::DEFAULT, 4096);
    assert_eq!(y.bytes(), 4096);
    a.free(x);
    a.free(y);
}

#[test]
fn a_plain_pool_has_no_expandable_segments() {
    let mut a = device(1024 * MIB, "expandable_segments:True");
    a.set_plain(POOL);
    a.create_pool(POOL).unwrap();
    let (x, y) = (alloc_in(&mut a, POOL, 30 * MIB), alloc_in(&mut a, PoolId::DEFAULT, 30 * MIB));
    let is_expandable = |at: Addr| {
        let segments = a.segments();
        segments
            .iter()
            .find(|segment| segment.addr <= at && at.0 < segment.addr.0 + segment.bytes)
            .unwrap()
            .is_expandable
    };
    assert_eq!((is_expandable(x.addr()), is_expandable(y.addr())), (false, true));
    assert_sound(&a);
    a.free(x);
    a.free(y);
}

#[test]
fn a_use_on_oom_pool_serves_the_default_pool_when_the_device_is_out_of_memory() {
    let mut a = device(100 * MIB, "");
    a.create_pool(POOL).unwrap();
    let x = alloc_in(&mut a, POOL, 60 * MIB);
    a.free(x);
    assert!(matches!(a.malloc(Request::of(50 * MIB)), Err(Error::OutOfMemory(_))));
    a.set_use_on_oom(POOL, true);
    let y = alloc_in(&mut a, PoolId::DEFAULT, 50 * MIB);
    assert_eq!(layout(&a), ["0: 50H 10"]);
    assert_counters(&a, [1, 1, 1, 1, 0]);
    a.free(y);
    a.set_use_on_oom(POOL, false);
    assert!(matches!(a.malloc(Request::of(50 * MIB)), Err(Error::OutOfMemory(_))));
    a.set_use_on_oom(POOL, true);
    a.release_pool(POOL).unwrap();
    a.empty_pool(POOL).unwrap();
    let y = alloc_in(&mut a, PoolId::DEFAULT, 50 * MIB);
    assert_eq!(a.segments()[0].pool_id, PoolId::DEFAULT, "a pool that is gone lends nothing");
    a.free(y);
}

#[test]
fn invalid_calls_on_pools_return_errors() {
    let mut a = device(1024 * MIB, "");
    assert_eq!(a.create_pool(PoolId::DEFAULT), Err(PoolError::Unknown(PoolId::DEFAULT).into()));
    assert_eq!(a.release_pool(POOL), Err(PoolError::Unknown(POOL).into()));
    assert_eq!(a.end_allocate_to_pool(POOL), Err(PoolError::NotRecording(POOL).into()));
    a.begin_allocate_to_pool(POOL).unwrap();
    assert_eq!(a.begin_allocate_to_pool(POOL), Err(PoolError::AlreadyRecording(POOL).into()));
    assert_eq!(a.pool_use_count(POOL), Some(2), "as in PyTorch, the refused call counts");
    a.release_pool(POOL).unwrap();
    a.release_pool(POOL).unwrap();
    assert_eq!(a.release_pool(POOL), Err(PoolError::Unused(POOL).into()));
    a.create_pool(POOL).unwrap();
    assert_eq!(a.pool_use_count(POOL), Some(1), "one that is used again is in use again");
}

#[test]
fn an_expandable_pool_is_counted_right_and_removed_when_it_is_empty() {
    let mut a = device(1024 * MIB, "expandable_segments:True");
    a.create_pool(POOL).unwrap();
    let blocks: Vec<Allocation> = (0..5).map(|_| alloc_in(&mut a, POOL, 15 * MIB)).collect();
    assert_eq!(a.observer().0.reserved_bytes_by_private_pools()[&POOL].all.current, 80 << 20);
    for (nth, block) in blocks.into_iter().enumerate() {
        a.free(block);
        assert_sound(&a);
        if nth == 2 {
            a.release_pool(POOL).unwrap();
            assert_eq!(a.empty_cache(), Ok(40 * MIB));
            assert_sound(&a);
        }
    }
    assert_eq!(a.empty_pool(POOL), Ok(40 * MIB));
    assert_eq!((a.pool_use_count(POOL), a.reserved()), (None, 0));
}

/// PyTorch's `test_graph_memory_stats_and_use_result_after_destroy_graph`: the memory that three blocks of the same
/// size take in a capture's pool.
#[test]
fn a_capture_takes_the_segments_that_pytorchs_test_asserts() {
    let check = |bytes, segments, segment_bytes: u64| {
        let mut a = device(1024 * MIB, "");
        a.begin_allocate_to_pool(POOL).unwrap();
        a.begin_capture();
        let blocks: Vec<_> = (0..3).map(|_| alloc_in(&mut a, POOL, bytes)).collect();
        assert_eq!(a.reserved(), segments * segment_bytes, "{bytes}");
        assert_eq!(a.observer().0.segment().all.current as u64, segments, "{bytes}");
        a.end_capture();
        a.end_allocate_to_pool(POOL).unwrap();
        a.release_pool(POOL).unwrap();
        blocks.into_iter().for_each(|block| a.free(block));
        assert_eq!(a.empty_cache(), Ok(segments * segment_bytes));
    };
    check(512, 1, 2 * MIB);
    check(MIB, 2, 2 * MIB);
    check(MIB + 512, 1, 20 * MIB);
    check(10 * MIB - 512, 2, 20 * MIB);
    check(10 * MIB + 512, 3, 12 * MIB);
}

#[test]
fn the_cache_is_not_released_during_a_capture() {
    let mut a = device(100 * MIB, "");
    let x = alloc_in(&mut a, PoolId::DEFAULT, 60 * MIB);
    a.free(x);
    a.begin_capture();
    assert_eq!(a.empty_cache(), Ok(0));
    assert!(matches!(a.malloc(Request::of(70 * MIB)), Err(Error::OutOfMemory(_))));
    assert_counters(&a, [0, 1, 0, 1, 0]);
    a.end_capture();
    let y = alloc_in(&mut a, PoolId::DEFAULT, 70 * MIB);
    assert_counters(&a, [1, 1, 1, 2, 1]);
    a.free(y);
}

#[test]
fn an_older_allocator_takes_any_redirection_for_a_capture() {
    use plimsoll_alloc::CaptureTest;
    let mut a = device(100 * MIB, "");
    a.set_config(a.config().clone().with_capture_test(CaptureTest::AnyRedirection));
    let x = alloc_in(&mut a, PoolId::DEFAULT, 60 * MIB);
    a.free(x);
    a.begin_allocate_to_pool(POOL).unwrap();
    assert!(matches!(a.malloc(Request { pool: POOL, ..Request::of(70 * MIB) }), Err(Error::OutOfMemory(_))));
    a.end_allocate_to_pool(POOL).unwrap();
    let y = alloc_in(&mut a, POOL, 70 * MIB);
    a.free(y);
}

#[test]
fn emptying_one_pool_waits_only_for_its_own_blocks() {
    let mut a = device(1024 * MIB, "");
    a.create_pool(POOL).unwrap();
    let x = alloc_in(&mut a, POOL, 3 * MIB);
    let y = alloc_in(&mut a, PoolId::DEFAULT, 3 * MIB);
    for block in [&x, &y] {
        a.record_stream(block, StreamId(1));
    }
    a.free(x);
    a.free(y);
    a.release_pool(POOL).unwrap();
    assert_eq!(a.empty_pool(POOL), Ok(20 * MIB));
    assert_eq!(layout(&a), ["20: 3P 17"]);
    assert_sound(&a);
}

/// Found by `tests/fuzz.rs`: a request for such a pool released the cache, and that release removed the pool.
#[test]
fn a_pool_without_users_is_not_removed_while_a_request_for_it_makes_room() {
    let mut a = device(20 * MIB, "");
    let x = alloc_in(&mut a, PoolId::DEFAULT, 3 * MIB);
    a.free(x);
    a.create_pool(POOL).unwrap();
    a.release_pool(POOL).unwrap();
    let y = alloc_in(&mut a, POOL, 3 * MIB);
    assert_eq!((a.observer().0.num_alloc_retries, a.pool_use_count(POOL)), (1, Some(0)));
    a.free(y);
    assert_eq!((a.empty_cache(), a.pool_use_count(POOL)), (Ok(20 * MIB), None));
}
