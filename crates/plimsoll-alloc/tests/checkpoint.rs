//! Restoring a private pool to a checkpoint: PyTorch's results for scenarios of its
//! `TestBlockStateAbsorption`, recorded by `oracle/checkpoint.py`, and pools that cannot be restored.

use plimsoll_alloc::{
    Addr, Allocation, BlockState, CheckpointError, PoolError, PoolId, Request, Restored, StreamId,
};

use crate::trace::{MIB, Traced, assert_sound, device};

fn alloc(allocator: &mut Traced, pool: PoolId, bytes: u64) -> Allocation {
    allocator.malloc(Request { pool, ..Request::of(bytes) }).unwrap()
}

/// The pool's segments in the format of `oracle/checkpoint.py`.
fn layout(allocator: &Traced, pool: PoolId) -> Vec<String> {
    let segments = allocator.segments();
    let of_pool: Vec<_> = segments.iter().filter(|segment| segment.pool_id == pool).collect();
    let row = |segment: &&plimsoll_alloc::Segment| {
        let mark = |state| if state == BlockState::Active { "H" } else { "" };
        let blocks = segment.blocks.iter().map(|block| format!(" {}{}", block.bytes, mark(block.state)));
        format!("{}:{}", segment.addr.0 - of_pool[0].addr.0, blocks.collect::<String>())
    };
    of_pool.iter().map(row).collect()
}

/// The statistics that `oracle/checkpoint.py` writes, in its order: allocation current and allocated; allocated and
/// requested bytes; inactive_split count and bytes; device_alloc.
fn stats(allocator: &Traced) -> [i64; 7] {
    let stats = &allocator.observer().0;
    [
        stats.allocation().all.current,
        stats.allocation().all.allocated,
        stats.allocated_bytes().all.current,
        stats.requested_bytes().all.current,
        stats.inactive_split().all.current,
        stats.inactive_split_bytes().all.current,
        stats.num_device_alloc,
    ]
}

/// A pool that stays in use.
fn new_pool(allocator: &mut Traced, number: u64) -> PoolId {
    let pool = PoolId(0, number);
    allocator.empty_cache().unwrap();
    allocator.create_pool(pool).unwrap();
    pool
}

fn restore(allocator: &mut Traced, checkpoint: &plimsoll_alloc::Checkpoint) -> Restored {
    let restored = allocator.restore(checkpoint).unwrap();
    assert_sound(allocator);
    restored
}

#[test]
fn a_pool_is_restored_as_in_pytorch() {
    let mut a = device(80 << 30, "");
    let first = alloc(&mut a, PoolId::DEFAULT, 1);
    a.free(first);

    let pool = new_pool(&mut a, 1);
    let [x, y, z] = [3 * MIB, 512, 5 * MIB].map(|bytes| alloc(&mut a, pool, bytes));
    a.free(y);
    let checkpoint = a.checkpoint(pool).unwrap();
    assert_eq!(layout(&a, pool), ["0: 3145728H 5242880H 12582912", "20971520: 2097152"]);
    let w = alloc(&mut a, pool, 4 * MIB);
    assert_eq!(layout(&a, pool), ["0: 3145728H 5242880H 4194304H 8388608", "20971520: 2097152"]);
    let restored = restore(&mut a, &checkpoint);
    assert_eq!(layout(&a, pool), ["0: 3145728H 5242880H 12582912", "20971520: 2097152"]);
    assert_eq!(stats(&a), [2, 9, 8_388_608, 8_388_608, 1, 12_582_912, 3]);
    assert_eq!(restored.freed, [&x, &z, &w].map(Allocation::addr));
    assert_eq!(restored.held.iter().map(Allocation::addr).collect::<Vec<_>>(), [x.addr(), z.addr()]);

    let pool = new_pool(&mut a, 2);
    let mut blocks: Vec<Allocation> = (0..6).map(|_| alloc(&mut a, pool, MIB + 512)).collect();
    for nth in [3, 1] {
        let block = blocks.remove(nth);
        a.free(block);
    }
    let checkpoint = a.checkpoint(pool).unwrap();
    let then = layout(&a, pool);
    assert_eq!(then, ["0: 1049088H 1049088 1049088H 1049088 1049088H 1049088H 14676992"]);
    let _gone = [2 * MIB, 100].map(|bytes| alloc(&mut a, pool, bytes));
    let changed = "0: 1049088H 1049088 1049088H 1049088 1049088H 1049088H 2097152H 12579840";
    assert_eq!(layout(&a, pool), [changed, "20971520: 512H 2096640"]);
    let restored = restore(&mut a, &checkpoint);
    assert_eq!(layout(&a, pool), [then[0].as_str(), "20971520: 2097152"], "the new segment stays, cached");
    assert_eq!(stats(&a), [6, 24, 12_584_960, 12_584_960, 4, 29_358_080, 5]);
    assert_eq!((restored.freed.len(), restored.held.len()), (6, 4));

    let pool = new_pool(&mut a, 3);
    let mut blocks: Vec<Allocation> = (0..5).map(|_| alloc(&mut a, pool, 300 * 1024)).collect();
    for nth in [4, 3, 0] {
        let block = blocks.remove(nth);
        a.free(block);
    }
    let checkpoint = a.checkpoint(pool).unwrap();
    let then = layout(&a, pool);
    assert_eq!(then, ["0: 307200 307200H 307200H 1175552"]);
    let _gone = alloc(&mut a, pool, 300 * 1024);
    assert_eq!(layout(&a, pool), ["0: 307200H 307200H 307200H 1175552"]);
    let restored = restore(&mut a, &checkpoint);
    assert_eq!(layout(&a, pool), then);
    assert_eq!(stats(&a), [8, 34, 13_199_360, 13_199_360, 6, 30_840_832, 6]);
    for block in restored.held {
        a.free(block);
    }
    assert_sound(&a);
}

#[test]
fn expandable_segments_are_restored_too() {
    let mut a = device(1024 * MIB, "expandable_segments:True");
    let pool = new_pool(&mut a, 1);
    let [x, y] = [30 * MIB, 5 * MIB].map(|bytes| alloc(&mut a, pool, bytes));
    a.free(x);
    let checkpoint = a.checkpoint(pool).unwrap();
    let then = layout(&a, pool);
    let _gone = alloc(&mut a, pool, 7 * MIB);
    let restored = restore(&mut a, &checkpoint);
    assert_eq!(layout(&a, pool), then);
    assert_eq!(restored.held[0].addr(), y.addr());
}

#[test]
fn a_block_used_on_another_stream_or_a_released_segment_cannot_be_restored() {
    let mut a = device(1024 * MIB, "");
    let pool = new_pool(&mut a, 1);
    let x = alloc(&mut a, pool, 12 * MIB);
    let addr = x.addr();
    let checkpoint = a.checkpoint(pool).unwrap();
    a.record_stream(&x, StreamId(1));
    let in_use = Err(CheckpointError::InUse(addr).into());
    assert_eq!(a.restore(&checkpoint).map(drop), in_use);
    a.free(x);
    assert_eq!(a.restore(&checkpoint).map(drop), in_use, "it is pending");
    a.release_pool(pool).unwrap();
    assert_eq!(a.restore(&checkpoint).map(drop), Err(PoolError::Unused(pool).into()));
    assert_eq!(a.empty_pool(pool), Ok(12 * MIB));
    assert_eq!(a.restore(&checkpoint).map(drop), Err(PoolError::Unknown(pool).into()));
    a.create_pool(pool).unwrap();
    let gone: Addr = addr;
    assert_eq!(a.restore(&checkpoint).map(drop), Err(CheckpointError::SegmentGone(gone).into()));
    assert_sound(&a);
}

/// A handle from before the restore is rejected, even if the block is allocated again at the same address.
#[test]
fn an_allocation_from_before_a_restore_is_refused() {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    let mut a = device(1024 * MIB, "");
    let pool = new_pool(&mut a, 1);
    let elsewhere = alloc(&mut a, PoolId::DEFAULT, 5 * MIB);
    let [x, y] = [3 * MIB, 5 * MIB].map(|bytes| alloc(&mut a, pool, bytes));
    let checkpoint = a.checkpoint(pool).unwrap();
    let late = alloc(&mut a, pool, 5 * MIB);
    let restored = restore(&mut a, &checkpoint);
    let addrs = |blocks: &[Allocation]| blocks.iter().map(Allocation::addr).collect::<Vec<_>>();
    assert_eq!(addrs(&restored.held), [x.addr(), y.addr()]);
    let again = alloc(&mut a, pool, 5 * MIB);
    assert_eq!(again.addr(), late.addr(), "allocated again");
    for stale in [x, y, late] {
        let retagged = catch_unwind(AssertUnwindSafe(|| {
            a.retag(&stale, plimsoll_alloc::Category::Input, plimsoll_alloc::LabelId(1));
        }));
        assert!(retagged.is_err());
        let why = catch_unwind(AssertUnwindSafe(|| a.free(stale))).unwrap_err();
        let why = why.downcast_ref::<String>().unwrap();
        assert!(why.contains("its pool was restored to a checkpoint since"), "{why}");
    }
    assert_sound(&a);
    assert_eq!(stats(&a)[0], 4, "nothing was freed by them");
    for block in restored.held.into_iter().chain([again, elsewhere]) {
        a.free(block);
    }
    assert_sound(&a);
}

/// The generation fits in what would otherwise be padding.
#[test]
fn an_allocation_takes_four_words() {
    assert_eq!(size_of::<Allocation>(), 32);
}
