//! How much memory a file is worth: [`Grant`]. What a hostile file unpacks to is bounded by its length.

use std::cell::Cell;
use std::io::{self, Read};
use std::rc::Rc;

use crate::error::Why;

/// Any file is granted this.
const GRANTED_BYTES: u64 = 1 << 30;
/// What each byte of the file, packed as it is, adds: reading takes up to two thirds of the unpacked length,
/// and gzip packs snapshots about twentyfold, zstd more.
const GRANTED_PER_BYTE: u64 = 64;

/// What the bytes taken so far are worth.
#[derive(Clone, Default)]
pub(crate) struct Grant {
    taken: Rc<Cell<u64>>,
}

impl Grant {
    /// Memory that the bytes taken so far are worth.
    fn most_bytes(&self) -> u64 {
        GRANTED_BYTES.saturating_add(self.taken.get().saturating_mul(GRANTED_PER_BYTE))
    }

    /// Refuses more memory than that.
    pub(crate) fn check(&self, heap_bytes: u64) -> Result<(), Why> {
        let most_bytes = self.most_bytes();
        if heap_bytes > most_bytes { Err(Why::TooLarge { heap_bytes, most_bytes }) } else { Ok(()) }
    }

    /// The input, whose bytes add to the grant as they are taken.
    pub(crate) fn earned_by<R: Read>(&self, input: R) -> impl Read {
        Earning { input, grant: self.clone() }
    }

    /// The input, which may not give more bytes than the grant: for a reader that keeps what it was given.
    pub(crate) fn rationing<R: Read>(&self, input: R) -> impl Read {
        Rationed { input, given: 0, grant: self.clone() }
    }
}

struct Earning<R> {
    input: R,
    grant: Grant,
}

impl<R: Read> Read for Earning<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.input.read(buffer)?;
        self.grant.taken.set(self.grant.taken.get() + read as u64);
        Ok(read)
    }
}

struct Rationed<R> {
    input: R,
    given: u64,
    grant: Grant,
}

impl<R: Read> Read for Rationed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.input.read(buffer)?;
        self.given += read as u64;
        self.grant.check(self.given).map_err(io::Error::other)?;
        Ok(read)
    }
}
