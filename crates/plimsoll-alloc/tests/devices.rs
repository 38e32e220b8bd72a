//! The device seam's suite: what every driver must do, asked of each driver here.

#![allow(clippy::unwrap_used, reason = "a test's helper may unwrap, as a test may")]

use plimsoll_alloc::{Addr, Driver, DriverError, FailNth, Limit, Sim, SimDriver};

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
