//! A device that fails once, on purpose: [`FailNth`].

use crate::driver::{Driver, DriverError, MemoryInfo};
use crate::request::Addr;

/// Answers the `nth` call that can fail (from 1) with an error, and passes on all the others. Walking `nth`
/// over a program shows what each failure leaves behind.
///
/// ```
/// # use plimsoll_alloc::{Driver, DriverError, FailNth, Sim};
/// let mut device = FailNth::new(Sim::default(), 2, DriverError::OutOfMemory);
/// assert!(device.segment_alloc(512).is_ok());
/// assert_eq!(device.segment_alloc(512), Err(DriverError::OutOfMemory));
/// assert!(device.segment_alloc(512).is_ok());
/// assert_eq!(device.calls(), 3);
/// ```
#[derive(Debug, Clone)]
pub struct FailNth<D> {
    driver: D,
    nth: u64,
    error: DriverError,
    calls: u64,
}

impl<D: Driver> FailNth<D> {
    /// `driver`, failing with `error` at call `nth`; 0 never fails.
    pub fn new(driver: D, nth: u64, error: DriverError) -> Self {
        Self { driver, nth, error, calls: 0 }
    }

    /// How many calls that can fail were made.
    pub fn calls(&self) -> u64 {
        self.calls
    }

    fn count(&mut self) -> Result<(), DriverError> {
        self.calls += 1;
        if self.calls == self.nth { Err(self.error.clone()) } else { Ok(()) }
    }
}

impl<D: Driver> Driver for FailNth<D> {
    fn segment_alloc(&mut self, bytes: u64) -> Result<Addr, DriverError> {
        self.count()?;
        self.driver.segment_alloc(bytes)
    }

    fn segment_free(&mut self, addr: Addr) -> Result<(), DriverError> {
        self.count()?;
        self.driver.segment_free(addr)
    }

    fn memory(&self) -> MemoryInfo {
        self.driver.memory()
    }
}
