//! Errors that kernels find: an index out of range, a target that is no class.
//!
//! A kernel that finds one writes it where the host sees it and goes on with something harmless, so the context is not
//! lost. Only the first is kept. A flag in the device's own memory decides which is first.

use crate::driver::{Driver, Handle};
use crate::error::Result;
use crate::pinned::Pinned;

/// The first error that a kernel found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The number that the launch was given.
    pub id: u64,
    /// The value that is out of range.
    pub value: i64,
    /// Where it was found.
    pub row: i64,
    /// How many values there are.
    pub limit: i64,
}

/// Where a device's kernels write errors. Words of the host: found, id, value, row, limit.
pub(crate) struct Faults {
    host: Pinned,
    /// A word of the device: 1 once an error was found.
    flag: u64,
}

impl Faults {
    pub(crate) fn new(driver: &Driver, stream: Handle) -> Result<Faults> {
        let flag = driver.alloc(512)?;
        driver.clear(flag, 512, stream)?;
        driver.synchronize_stream(stream)?;
        Ok(Faults { host: Pinned::new(driver, 4096)?, flag })
    }

    /// What a launch gets: the prelude's `Faults`.
    pub(crate) fn words(&self, id: u64) -> [u64; 3] {
        [self.flag, self.host.address(), id]
    }

    /// Whether one was found. Costs a load.
    pub(crate) fn is_found(&self) -> bool {
        self.host.word(0) != 0
    }

    /// The error that was found, once.
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
