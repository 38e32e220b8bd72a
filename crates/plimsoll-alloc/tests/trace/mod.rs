//! Events in the format of a worked trace: PyTorch's action names, sizes and addresses.

use plimsoll_alloc::{Allocator, Config, Event, SimDriver, Stats};

pub(crate) const MIB: u64 = 1 << 20;

pub(crate) type Traced = Allocator<SimDriver, (Stats, Vec<Event>)>;

/// A device of `bytes` with the options of a configuration string.
pub(crate) fn device(bytes: u64, options: &str) -> Traced {
    let config = Config::parse(options).unwrap().config;
    let stats = Stats::new(&config);
    Allocator::new(config, SimDriver::with_capacity(bytes), (stats, Vec::new()))
}

/// Checks that state and statistics are consistent.
#[track_caller]
pub(crate) fn assert_sound(allocator: &Traced) {
    allocator.check().unwrap();
    allocator.observer().0.check(&allocator.segments()).unwrap();
}

/// Asserts allocated, active and reserved bytes; inactive_split count and bytes; requested bytes.
#[track_caller]
pub(crate) fn assert_bytes(allocator: &Traced, expected: [i64; 6]) {
    assert_sound(allocator);
    let stats = &allocator.observer().0;
    let got = [
        stats.allocated_bytes().all.current,
        stats.active_bytes().all.current,
        stats.reserved_bytes().all.current,
        stats.inactive_split().all.current,
        stats.inactive_split_bytes().all.current,
        stats.requested_bytes().all.current,
    ];
    assert_eq!(got, expected);
}

/// Asserts retries, ooms, syncs, device_alloc, device_free.
#[track_caller]
pub(crate) fn assert_counters(allocator: &Traced, expected: [i64; 5]) {
    let stats = &allocator.observer().0;
    let got = [
        stats.num_alloc_retries,
        stats.num_ooms,
        stats.num_sync_all_streams,
        stats.num_device_alloc,
        stats.num_device_free,
    ];
    assert_eq!(got, expected);
}

/// The entries that PyTorch would trace, each with its bytes: for an allocation, the requested size.
pub(crate) fn trace(allocator: &Traced) -> Vec<(&'static str, u64)> {
    let entry = |event: &Event| match *event {
        Event::Alloc { block, .. } => Some(("alloc", block.requested_bytes)),
        Event::Free { block, .. } => Some(("free_requested", block.requested_bytes)),
        Event::FreeCompleted { block, .. } => Some(("free_completed", block.requested_bytes)),
        Event::SegmentAlloc { memory, .. } => Some(("segment_alloc", memory.bytes)),
        Event::SegmentFree { memory, .. } => Some(("segment_free", memory.bytes)),
        Event::SegmentMap { memory, .. } => Some(("segment_map", memory.bytes)),
        Event::SegmentUnmap { memory } => Some(("segment_unmap", memory.bytes)),
        Event::OutOfMemory { rounded_bytes, .. } => Some(("oom", rounded_bytes)),
        _ => None,
    };
    allocator.observer().1.iter().filter_map(entry).collect()
}

/// The segments as text: `addr-offset: sizes in MiB, H for held, P for pending`.
pub(crate) fn layout(allocator: &Traced) -> Vec<String> {
    use plimsoll_alloc::BlockState;
    let base = 0x5000_0000_0000;
    let segments = allocator.segments();
    let row = |segment: &plimsoll_alloc::Segment| {
        let blocks = segment.blocks.iter().map(|block| {
            let mark = match block.state {
                BlockState::Active => "H",
                BlockState::Pending => "P",
                BlockState::Cached => "",
            };
            format!(" {}{mark}", block.bytes as f64 / MIB as f64)
        });
        format!("{}:{}", (segment.addr.0 - base) as f64 / MIB as f64, blocks.collect::<String>())
    };
    segments.iter().map(row).collect()
}
