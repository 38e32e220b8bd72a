//! The device seam's suite: what every driver must do, asked of each driver here.

#![allow(clippy::unwrap_used, reason = "a test's helper may unwrap, as a test may")]

use plimsoll_alloc::{Addr, Driver, DriverError, FailNth, Limit, Sim, SimDriver, StreamId};

const MIB: u64 = 1 << 20;

/// What every driver with at least 64 MiB must do.
fn suite(mut device: impl Driver) {
    let before = device.memory();
    assert!(before.free_bytes <= before.total_bytes, "{before:?}");
    let sizes = [2 * MIB, 20 * MIB, 11 * MIB];
    let mut segments = sizes.map(|bytes| (device.segment_alloc(bytes).unwrap(), bytes));
    segments.sort();
    for (addr, _) in segments {
        assert!(addr.0 != 0 && addr.0.is_multiple_of(512), "{addr}");
    }
    for pair in segments.windows(2) {
        assert!(pair[0].0.0 + pair[0].1 <= pair[1].0.0, "{pair:?} overlap");
    }
    assert!(device.memory().free_bytes <= before.free_bytes - 33 * MIB, "{:?}", device.memory());
    assert_eq!(device.segment_alloc(u64::MAX), Err(DriverError::OutOfMemory));
    assert!(matches!(device.segment_free(Addr(1)), Err(DriverError::Failed(_))), "no segment starts at 1");
    for (addr, _) in segments {
        assert_eq!(device.segment_free(addr), Ok(()));
    }
    assert!(matches!(device.segment_free(segments[0].0), Err(DriverError::Failed(_))), "it is free already");
    assert_eq!(device.memory().total_bytes, before.total_bytes);
    events(&mut device);
}

/// An event can be asked about and waited for until it is done.
fn events(device: &mut impl Driver) {
    let first = device.record(StreamId(1)).unwrap();
    device.wait(first).unwrap();
    let second = device.record(StreamId(1)).unwrap();
    device.wait(second).unwrap();
    let third = device.record(StreamId(2)).unwrap();
    while !device.is_done(third).unwrap() {}
}

/// What every driver with pages and at least 64 MiB must do.
fn pages(mut device: impl Driver) {
    let before = device.memory();
    let range = device.reserve(256 * MIB).unwrap();
    assert!(range.0 != 0 && range.0.is_multiple_of(512), "{range}");
    let at = |pages: u64| Addr(range.0 + pages * 20 * MIB);
    device.map(at(1), 20 * MIB, 2).unwrap();
    assert!(matches!(device.map(at(2), 20 * MIB, 1), Err(DriverError::Failed(_))), "it is mapped already");
    assert!(matches!(device.release(range, 256 * MIB), Err(DriverError::Failed(_))), "pages are mapped");
    assert!(matches!(device.unmap(at(0), 20 * MIB, 2, StreamId(0)), Err(DriverError::Failed(_))));
    device.unmap(at(2), 20 * MIB, 1, StreamId(0)).unwrap();
    device.map(at(0), 20 * MIB, 1).unwrap();
    device.unmap(at(0), 20 * MIB, 2, StreamId(0)).unwrap();
    assert_eq!(device.memory().total_bytes, before.total_bytes);
    device.release(range, 256 * MIB).unwrap();
    assert!(
        matches!(device.map(at(0), 20 * MIB, 1), Err(DriverError::Failed(_))),
        "nothing is reserved there"
    );
}

#[test]
fn every_driver_with_pages_passes_their_suite() {
    pages(Sim::default());
    pages(SimDriver::with_capacity(64 * MIB));
    pages(FailNth::new(Sim::default(), 0, DriverError::OutOfMemory));
    pages(Box::new(Sim::default()) as Box<dyn Driver>);
}

#[test]
fn pages_count_in_a_limit_all_or_none_and_reserved_space_does_not() {
    let mut device = Limit::new(Sim::default(), 50 * MIB);
    let range = device.reserve(1 << 40).unwrap();
    assert_eq!(device.memory().free_bytes, 50 * MIB);
    assert_eq!(device.map(range, 20 * MIB, 3), Err(DriverError::OutOfMemory));
    device.map(range, 20 * MIB, 2).unwrap();
    assert_eq!(device.memory().free_bytes, 10 * MIB);
    device.unmap(range, 20 * MIB, 2, StreamId(0)).unwrap();
    assert_eq!(device.memory().free_bytes, 50 * MIB);
}

#[test]
fn a_device_without_pages_says_what_to_set() {
    use plimsoll_alloc::{Allocator, Config, Request};
    /// Segments only.
    struct Plain(Sim);
    impl Driver for Plain {
        fn segment_alloc(&mut self, bytes: u64) -> Result<Addr, DriverError> {
            self.0.segment_alloc(bytes)
        }
        fn segment_free(&mut self, addr: Addr) -> Result<(), DriverError> {
            self.0.segment_free(addr)
        }
        fn memory(&self) -> plimsoll_alloc::MemoryInfo {
            plimsoll_alloc::MemoryInfo { free_bytes: 64 * MIB, total_bytes: 64 * MIB }
        }
    }
    let config = Config::default().with_expandable_segments(true);
    let mut allocator = Allocator::new(config, Plain(Sim::default()), ());
    let why = allocator.malloc(Request::of(1)).unwrap_err().to_string();
    assert!(why.ends_with("set expandable_segments:False"), "{why}");
}

#[test]
fn every_driver_here_passes_the_suite() {
    suite(Sim::default());
    suite(SimDriver::with_capacity(64 * MIB));
    suite(Limit::new(Limit::new(Sim::default(), 64 * MIB), 128 * MIB));
    suite(FailNth::new(Sim::default(), 0, DriverError::OutOfMemory));
    suite(Box::new(Sim::default()) as Box<dyn Driver>);
}

#[test]
fn simulated_addresses_come_in_order_and_never_twice() {
    let mut device = SimDriver::with_capacity(4 * MIB);
    let first = device.segment_alloc(3 * MIB).unwrap();
    device.segment_free(first).unwrap();
    let second = device.segment_alloc(1).unwrap();
    assert_eq!((first, second), (Addr(0x5000_0000_0000), Addr(0x5000_0040_0000)));
}

#[test]
fn a_limit_counts_in_steps_of_two_mebibytes_and_gives_capacity_back() {
    let mut device = Limit::new(Sim::default(), 5 * MIB);
    let first = device.segment_alloc(2 * MIB + 1).unwrap();
    assert_eq!(device.memory().free_bytes, MIB);
    assert_eq!(device.segment_alloc(1), Err(DriverError::OutOfMemory));
    device.segment_free(first).unwrap();
    assert_eq!(device.memory().free_bytes, 5 * MIB);
    assert_eq!(device.segment_alloc(5 * MIB), Err(DriverError::OutOfMemory), "5 MiB take 6");
}

#[test]
fn a_limit_refuses_without_asking_the_device() {
    let mut device = Limit::new(FailNth::new(Sim::default(), 1, DriverError::Failed("asked".into())), MIB);
    assert_eq!(device.segment_alloc(2 * MIB), Err(DriverError::OutOfMemory));
}
