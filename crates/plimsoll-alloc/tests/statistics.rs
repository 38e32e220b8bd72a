//! PyTorch's statistics: its keys, its resets and its table.

use std::collections::BTreeSet;

use plimsoll_alloc::{Allocation, Allocator, Config, Request, SimDriver, Stat, Stats};

const MIB: u64 = 1 << 20;

fn device() -> Allocator<SimDriver, Stats> {
    Allocator::new(Config::default(), SimDriver::with_capacity(1024 * MIB), Stats::default())
}

fn alloc(allocator: &mut Allocator<SimDriver, Stats>, bytes: u64) -> Allocation {
    allocator.malloc(Request::of(bytes)).unwrap()
}

#[test]
fn there_are_123_keys_and_they_are_pytorchs() {
    let mut keys = BTreeSet::new();
    for array in [
        "allocation",
        "segment",
        "active",
        "inactive_split",
        "allocated_bytes",
        "reserved_bytes",
        "active_bytes",
        "inactive_split_bytes",
        "requested_bytes",
    ] {
        for pool in ["all", "large_pool", "small_pool"] {
            keys.extend(["current", "peak", "allocated", "freed"].map(|key| format!("{array}.{pool}.{key}")));
        }
    }
    for array in ["oversize_allocations", "oversize_segments"] {
        keys.extend(["current", "peak", "allocated", "freed"].map(|key| format!("{array}.{key}")));
    }
    let scalars = ["num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_device_alloc"];
    keys.extend(scalars.map(str::to_owned));
    keys.extend(["num_device_free", "num_oom_rejections", "max_split_size"].map(str::to_owned));
    assert_eq!(keys.len(), 123);
    assert_eq!(Stats::default().memory_stats().into_keys().collect::<BTreeSet<_>>(), keys);
}

#[test]
fn one_tensor_of_a_thousand_floats_counts_as_in_pytorch() {
    let mut a = device();
    let x = alloc(&mut a, 4000);
    let stats = a.observer().memory_stats();
    let expected = [
        ("allocation", 1),
        ("allocated_bytes", 4096),
        ("active", 1),
        ("active_bytes", 4096),
        ("requested_bytes", 4000),
        ("segment", 1),
        ("reserved_bytes", 2_097_152),
        ("inactive_split", 1),
        ("inactive_split_bytes", 2_093_056),
    ];
    for (array, current) in expected {
        for (pool, current) in [("all", current), ("small_pool", current), ("large_pool", 0)] {
            assert_eq!(stats[&format!("{array}.{pool}.current")], current, "{array}.{pool}");
        }
    }
    assert_eq!((stats["num_device_alloc"], stats["num_ooms"], stats["max_split_size"]), (1, 0, -1));
    a.free(x);
    let stats = a.observer();
    assert_eq!(stats.requested_bytes().all, Stat { current: 0, peak: 4000, allocated: 4000, freed: 4000 });
    let piece = Stat { current: 0, peak: 2_093_056, allocated: 2_093_056, freed: 2_093_056 };
    assert_eq!(stats.inactive_split_bytes().all, piece);
    assert_eq!(stats.reserved_bytes().all.current, 2_097_152);
}

/// A free that merges two neighbours changes `inactive_split` by one net decrease, not by a decrease of two and an
/// increase of one.
#[test]
fn merging_changes_a_statistic_once_by_the_net_amount() {
    let mut a = device();
    let (x, y, z) = (alloc(&mut a, 4 * MIB), alloc(&mut a, 4 * MIB), alloc(&mut a, 4 * MIB));
    a.free(x);
    let before = a.observer().inactive_split().all;
    assert_eq!(before, Stat { current: 2, peak: 2, allocated: 2, freed: 0 });
    a.free(z);
    assert_eq!(a.observer().inactive_split().all, before, "z joins the tail: no net change in pieces");
    a.free(y);
    assert_eq!(a.observer().inactive_split().all, Stat { current: 0, freed: 2, ..before });
}

#[test]
fn a_request_of_zero_bytes_changes_no_statistic() {
    let mut a = device();
    let nothing = alloc(&mut a, 0);
    a.free(nothing);
    assert_eq!(a.observer(), &Stats::default());
}

#[test]
fn resets_keep_current_values() {
    let mut a = device();
    let (x, y) = (alloc(&mut a, 4 * MIB), alloc(&mut a, 1000));
    a.free(x);
    a.empty_cache().unwrap();
    let before = a.observer().clone();
    a.observer_mut().reset_peak();
    let peak_reset = a.observer().clone();
    assert_eq!(peak_reset.allocated_bytes().all, Stat { peak: 1024, ..before.allocated_bytes().all });
    assert_eq!(peak_reset.segment().large_pool, Stat { peak: 0, ..before.segment().large_pool });
    assert_eq!(peak_reset.num_device_alloc, 2);
    a.observer_mut().reset_accumulated();
    let both_reset = a.observer();
    assert_eq!(both_reset.allocated_bytes().all, Stat { current: 1024, peak: 1024, allocated: 0, freed: 0 });
    assert_eq!((both_reset.num_device_alloc, both_reset.num_device_free), (0, 0));
    assert_eq!(both_reset.num_sync_all_streams, 0);
    a.free(y);
}

/// The expected text is what torch 2.15 printed after the same three steps.
#[test]
fn the_summary_is_pytorchs_table() {
    let mut a = device();
    let (x, y) = (alloc(&mut a, 3 * MIB), alloc(&mut a, 1000));
    a.free(x);
    let summary = a.observer().summary("PyTorch CUDA memory summary, device ID 0");
    let expected = "\
|===========================================================================|
|                  PyTorch CUDA memory summary, device ID 0                 |
|---------------------------------------------------------------------------|
|            CUDA OOMs: 0            |        cudaMalloc retries: 0         |
|===========================================================================|
|        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  |
|---------------------------------------------------------------------------|
| Allocated memory      |   1024 B   |   3073 KiB |   3073 KiB |   3072 KiB |
|       from large pool |      0 B   |   3072 KiB |   3072 KiB |   3072 KiB |
|       from small pool |   1024 B   |      1 KiB |      1 KiB |      0 KiB |
|---------------------------------------------------------------------------|
| Active memory         |   1024 B   |   3073 KiB |   3073 KiB |   3072 KiB |
|       from large pool |      0 B   |   3072 KiB |   3072 KiB |   3072 KiB |
|       from small pool |   1024 B   |      1 KiB |      1 KiB |      0 KiB |
|---------------------------------------------------------------------------|
| Requested memory      |   1000 B   |   3072 KiB |   3072 KiB |   3072 KiB |
|       from large pool |      0 B   |   3072 KiB |   3072 KiB |   3072 KiB |
|       from small pool |   1000 B   |      0 KiB |      0 KiB |      0 KiB |
|---------------------------------------------------------------------------|
| GPU reserved memory   |  22528 KiB |  22528 KiB |  22528 KiB |      0 B   |
|       from large pool |  20480 KiB |  20480 KiB |  20480 KiB |      0 B   |
|       from small pool |   2048 KiB |   2048 KiB |   2048 KiB |      0 B   |
|---------------------------------------------------------------------------|
| Non-releasable memory |   2047 KiB |  19455 KiB |  19455 KiB |  17408 KiB |
|       from large pool |      0 KiB |  17408 KiB |  17408 KiB |  17408 KiB |
|       from small pool |   2047 KiB |   2047 KiB |   2047 KiB |      0 KiB |
|---------------------------------------------------------------------------|
| Allocations           |       1    |       2    |       2    |       1    |
|       from large pool |       0    |       1    |       1    |       1    |
|       from small pool |       1    |       1    |       1    |       0    |
|---------------------------------------------------------------------------|
| Active allocs         |       1    |       2    |       2    |       1    |
|       from large pool |       0    |       1    |       1    |       1    |
|       from small pool |       1    |       1    |       1    |       0    |
|---------------------------------------------------------------------------|
| GPU reserved segments |       2    |       2    |       2    |       0    |
|       from large pool |       1    |       1    |       1    |       0    |
|       from small pool |       1    |       1    |       1    |       0    |
|---------------------------------------------------------------------------|
| Non-releasable allocs |       1    |       2    |       2    |       1    |
|       from large pool |       0    |       1    |       1    |       1    |
|       from small pool |       1    |       1    |       1    |       0    |
|---------------------------------------------------------------------------|
| Oversize allocations  |       0    |       0    |       0    |       0    |
|---------------------------------------------------------------------------|
| Oversize GPU segments |       0    |       0    |       0    |       0    |
|===========================================================================|
";
    assert_eq!(summary, expected, "\n{summary}");
    a.free(y);
}
