//! Compact arrays of numbers: base64 of little-endian arrays, which a browser reads without conversion. Bytes of memory
//! are counted in units of 512, the allocator's granularity, so that two tebibytes fit into 32 bits.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

/// The bytes of one unit (grain).
pub(super) const GRAIN_BYTES: u64 = 512;

/// The number of units that contain these bytes.
pub(super) fn grains(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(GRAIN_BYTES)).unwrap_or(u32::MAX)
}

/// An array of 32-bit numbers: a `Uint32Array`.
pub(super) fn words(numbers: impl IntoIterator<Item = u32>) -> Value {
    octets(numbers.into_iter().flat_map(u32::to_le_bytes))
}

/// An array of floating-point numbers: a `Float64Array`.
pub(super) fn floats(numbers: impl IntoIterator<Item = f64>) -> Value {
    octets(numbers.into_iter().flat_map(f64::to_le_bytes))
}

/// An array of bytes: a `Uint8Array`.
pub(super) fn octets(numbers: impl IntoIterator<Item = u8>) -> Value {
    let bytes: Vec<u8> = numbers.into_iter().collect();
    STANDARD.encode(bytes).into()
}

/// A count in 32 bits; a larger one becomes the maximum.
pub(super) fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_are_little_endian_and_bytes_are_counted_in_grains() {
        assert_eq!(words([1, 258]), Value::from("AQAAAAIBAAA="));
        assert_eq!((grains(0), grains(1), grains(1024), grains(u64::MAX)), (0, 1, 2, u32::MAX));
    }
}
