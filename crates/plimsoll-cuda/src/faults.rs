//! Errors that kernels detect: an index out of range, or a target that is not a class.
//!
//! A kernel that detects an error writes it to memory that the host can read and continues with a harmless value, so
//! the context survives. Only the first error is kept. A flag in device memory decides which one is first.

use crate::driver::{Driver, Handle};
use crate::error::Result;
use crate::pinned::Pinned;

/// The first error that a kernel detected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The id of the launch.
    pub id: u64,
    /// The value that is out of range.
    pub value: i64,
    /// The row in which it was found.
    pub row: i64,
    /// The number of valid values.
    pub limit: i64,
}

/// The memory to which a device's kernels write errors. The words in host memory: found, id, value, row, limit.
pub(crate) struct Faults {
    host: Pinned,
    /// The address of a word in device memory that is 1 once an error was found.
    flag: u64,
}

impl Faults {
    pub(crate) fn new(driver: &Driver, stream: Handle) -> Result<Faults> {
        let flag = driver.alloc(512)?;
        driver.clear(flag, 512, stream)?;
        driver.synchronize_stream(stream)?;
        Ok(Faults { host: Pinned::new(driver, 4096)?, flag })
    }

    /// The argument for a launch: the prelude's `Faults`.
    pub(crate) fn words(&self, id: u64) -> [u64; 3] {
        [self.flag, self.host.address(), id]
    }

    /// Whether an error was found. Costs one load.
    pub(crate) fn is_found(&self) -> bool {
        self.host.word(0) != 0
    }

    /// Takes the error that was found, if any.
    pub(crate) fn take(&mut self, driver: &Driver, stream: Handle) -> Result<Option<Fault>> {
        if !self.is_found() {
            return Ok(None);
        }
        let word = |index: usize| self.host.word(index);
        let fault = Fault {
            id: word(1),
            value: word(2).cast_signed(),
            row: word(3).cast_signed(),
            limit: word(4).cast_signed(),
        };
        self.host.set_word(0, 0);
        driver.clear(self.flag, 8, stream)?;
        Ok(Some(fault))
    }

    pub(crate) fn close(self, driver: &Driver) {
        let _ = driver.free(self.flag);
        self.host.free(driver);
    }
}
