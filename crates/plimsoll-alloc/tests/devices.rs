//! Every driver of this crate passes the driver test suite. Then come tests of each driver's own properties.

use plimsoll_alloc::{Addr, Driver, DriverError, FailNth, Limit, Sim, SimDriver, StreamId, driver_suite};

const MIB: u64 = 1 << 20;

#[test]
fn every_driver_with_pages_passes_their_suite() {
    let pass = |mut device: Box<dyn Driver>| {
        driver_suite::pages(&mut device);
        driver_suite::aliases(&mut device);
    };
    pass(Box::<Sim>::default());
    pass(Box::new(SimDriver::with_capacity(64 * MIB)));
    pass(Box::new(FailNth::new(Sim::default(), 0, DriverError::OutOfMemory)));
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
fn a_device_without_pages_names_the_option_to_set() {
    use plimsoll_alloc::{Allocator, Config, Request};
    /// A driver with segments only.
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
    let pass = |mut device: Box<dyn Driver>| {
        driver_suite::segments(&mut device);
        driver_suite::events(&mut device);
    };
    pass(Box::<Sim>::default());
    pass(Box::new(SimDriver::with_capacity(64 * MIB)));
    pass(Box::new(Limit::new(Limit::new(Sim::default(), 64 * MIB), 128 * MIB)));
    pass(Box::new(FailNth::new(Sim::default(), 0, DriverError::OutOfMemory)));
}

#[test]
fn simulated_addresses_ascend_and_are_never_reused() {
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

/// The suite detects a driver that breaks a rule, and names the rule.
#[test]
fn the_suite_names_the_broken_rule() {
    /// A broken driver that returns the same address for every segment.
    struct Same(Sim);
    impl Driver for Same {
        fn segment_alloc(&mut self, bytes: u64) -> Result<Addr, DriverError> {
            self.0.segment_alloc(bytes).map(|_| Addr(512))
        }
        fn segment_free(&mut self, _addr: Addr) -> Result<(), DriverError> {
            Ok(())
        }
        fn memory(&self) -> plimsoll_alloc::MemoryInfo {
            self.0.memory()
        }
    }
    let said = |suite: fn(&mut Same)| {
        let why = std::panic::catch_unwind(|| suite(&mut Same(Sim::default()))).unwrap_err();
        why.downcast_ref::<String>().unwrap().clone()
    };
    assert!(said(driver_suite::segments).ends_with("overlap"));
    assert!(said(driver_suite::pages).starts_with("reserve: the device failed: no virtual memory support"));
}
