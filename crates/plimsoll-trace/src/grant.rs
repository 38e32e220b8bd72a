//! A limit on the memory that reading a file may take: [`Grant`]. The limit grows with the file's length, so a small
//! hostile file cannot use a huge amount of memory.

use std::cell::Cell;
use std::io::{self, Read};
use std::rc::Rc;

use crate::error::Why;

/// The bytes that every file may use.
const GRANTED_BYTES: u64 = 1 << 30;
/// The additional bytes for each (packed) byte of the file. Reading takes up to two thirds of the unpacked length, and
/// gzip packs snapshots about twentyfold, zstd more.
const GRANTED_PER_BYTE: u64 = 64;

/// The memory granted for the bytes read so far.
#[derive(Clone, Default)]
pub(crate) struct Grant {
    taken: Rc<Cell<u64>>,
}

impl Grant {
    /// The memory granted for the bytes read so far.
    fn most_bytes(&self) -> u64 {
        GRANTED_BYTES.saturating_add(self.taken.get().saturating_mul(GRANTED_PER_BYTE))
    }

    /// Returns an error if more memory than granted is used.
    pub(crate) fn check(&self, heap_bytes: u64) -> Result<(), Why> {
        let most_bytes = self.most_bytes();
        if heap_bytes > most_bytes { Err(Why::TooLarge { heap_bytes, most_bytes }) } else { Ok(()) }
    }

    /// Wraps an input so that each byte that is read from it increases the grant.
    pub(crate) fn earned_by<R: Read>(&self, input: R) -> impl Read {
        Earning { input, grant: self.clone() }
    }

    /// Wraps an input so that it yields no more bytes than granted, for a reader that stores its input.
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
