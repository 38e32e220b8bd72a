//! What the tests share: short ways to write buffers, a generator of numbers, and the check of a result.

use plimsoll_packing::{Buffer, Packing, lower_bound};

/// Buffers from `(lower, upper, size)`.
pub(crate) fn buffers(rows: &[(u64, u64, u64)]) -> Vec<Buffer> {
    rows.iter().map(|&(lower, upper, size)| Buffer { lower, upper, size }).collect()
}

/// Checks a packing. Returns its bytes.
#[track_caller]
pub(crate) fn valid(packing: &Packing, buffers: &[Buffer]) -> u64 {
    packing.check(buffers).expect("a valid packing");
    let ends = packing.offsets.iter().zip(buffers).map(|(offset, buffer)| offset + buffer.size);
    assert_eq!(packing.bytes, ends.max().unwrap_or(0));
    assert!(packing.bytes >= lower_bound(buffers).expect("valid buffers"));
    packing.bytes
}

/// A linear congruential generator (Knuth's MMIX).
pub(crate) struct Numbers(pub(crate) u64);

impl Numbers {
    /// A number in `0..end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}
