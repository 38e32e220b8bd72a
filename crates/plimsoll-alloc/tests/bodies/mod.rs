//! Fuzz targets of the allocator: functions that take any bytes and panic if a check fails. `fuzz/` runs them with a
//! fuzzer, `tests/fuzz.rs` with a few thousand byte strings in the ordinary tests. A crate root that includes this
//! module also includes `naive/` and `programs/`.

#![allow(dead_code, reason = "each fuzzer uses a part of it")]

pub(crate) mod config;
pub(crate) mod placement;
pub(crate) mod world;

/// Decisions read from a fuzzer's bytes. Once the bytes are used up, all decisions are 0.
struct Input<'a> {
    bytes: std::slice::Iter<'a, u8>,
}

impl<'a> Input<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Self { bytes: bytes.iter() }
    }

    fn next(&mut self) -> Option<u64> {
        self.bytes.next().map(|&byte| u64::from(byte))
    }

    /// A number below `bound`, which is at most 256.
    fn below(&mut self, bound: u64) -> u64 {
        self.next().unwrap_or(0) % bound
    }

    /// A size from 0 to 64 MiB: a few significant bits, all magnitudes equally likely, some sizes slightly below a
    /// round number.
    fn size(&mut self) -> u64 {
        let (magnitude, bits, off) = (self.below(23), self.below(8), self.below(3));
        ((8 + bits) << magnitude).saturating_sub(off) / 2
    }
}
