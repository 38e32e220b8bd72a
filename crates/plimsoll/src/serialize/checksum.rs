//! Checksums in a safetensors header, to detect flipped bits.
//!
//! In `__metadata__`, the key [`TENSORS`] has the XXH3-64 of each tensor's bytes, as JSON in a string. The key [`HEADER`] has the
//! XXH3-64 of the file's beginning (the header and its length), computed with 16 zeros in place of its own digits. Other readers
//! ignore both keys. A file without them can be read; a file with only one of them is damaged. Files that are read in
//! ranges of rows also have [`BLOCKS`]: the XXH3-64 of each MiB of larger tensors.

use std::collections::BTreeMap;

use plimsoll_tensor::DType;
use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_64;

/// The key of the tensors' checksums.
pub(super) const TENSORS: &str = "plimsoll.xxh3";
/// The key of the header's checksum.
pub(super) const HEADER: &str = "plimsoll.xxh3.header";
/// The key of the checksums of parts of tensors.
pub(super) const BLOCKS: &str = "plimsoll.xxh3.blocks";
/// The length of these parts.
const BLOCK_BYTES: u64 = 1 << 20;
/// The placeholder for a checksum that is not known yet.
pub(super) const NONE: &str = "0000000000000000";

/// What identifies a file: its length, and the checksum of its beginning, which includes the checksums of all tensors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Sealed {
    pub(super) bytes: u64,
    pub(super) xxh3: String,
}

/// The checksum of some bytes, as 16 digits.
pub(super) fn of(bytes: &[u8]) -> String {
    format!("{:016x}", XxHash3_64::oneshot(bytes))
}

/// The two metadata entries of a header, with placeholders of the final length.
pub(super) fn placeholders<'a>(names: impl Iterator<Item = &'a str>) -> [(String, String); 2] {
    let sums: BTreeMap<&str, &str> = names.map(|name| (name, NONE)).collect();
    [(TENSORS.to_owned(), text(&sums)), (HEADER.to_owned(), NONE.to_owned())]
}

/// The value of [`TENSORS`].
pub(super) fn text(sums: &BTreeMap<&str, &str>) -> String {
    serde_json::json!(sums).to_string()
}

/// Parses the value of [`TENSORS`]: the checksum of each tensor.
pub(super) fn read(text: &str) -> Option<BTreeMap<String, String>> {
    serde_json::from_str(text).ok()
}

/// The checksums of parts of the tensors that are larger than one part: the value of [`BLOCKS`].
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Blocks {
    /// The length of a part; the last one may be shorter.
    pub(super) bytes: u64,
    pub(super) sums: BTreeMap<String, Vec<String>>,
}

impl Default for Blocks {
    fn default() -> Blocks {
        Blocks { bytes: BLOCK_BYTES, sums: BTreeMap::new() }
    }
}

impl Blocks {
    /// Placeholders for tensors of these lengths in bytes.
    pub(super) fn placeholders<'a>(tensors: impl Iterator<Item = (&'a str, usize)>) -> Blocks {
        let large = tensors.filter(|(_, bytes)| *bytes as u64 > BLOCK_BYTES);
        let none = |bytes: usize| vec![NONE.to_owned(); bytes.div_ceil(BLOCK_BYTES as usize)];
        let sums = large.map(|(name, bytes)| (name.to_owned(), none(bytes))).collect();
        Blocks { sums, ..Blocks::default() }
    }

    /// Adds the checksums of a tensor, if it is larger than one part.
    pub(super) fn add(&mut self, name: &str, bytes: &[u8]) {
        if bytes.len() as u64 > BLOCK_BYTES {
            self.sums.insert(name.to_owned(), bytes.chunks(BLOCK_BYTES as usize).map(of).collect());
        }
    }

    /// The value of [`BLOCKS`].
    pub(super) fn text(&self) -> String {
        serde_json::json!(self).to_string()
    }

    /// Parses this value. `None` if it is malformed, or the length of its parts is 0.
    pub(super) fn read(text: &str) -> Option<Blocks> {
        serde_json::from_str(text).ok().filter(|blocks: &Blocks| blocks.bytes > 0)
    }
}

/// Writes the checksum of a file's beginning into it. Without a placeholder in the header, nothing changes.
pub(super) fn seal(beginning: &mut [u8]) {
    if let Some(place) = place(beginning) {
        let sum = of(beginning);
        beginning[place..place + NONE.len()].copy_from_slice(sum.as_bytes());
    }
}

/// Whether a file's beginning matches its checksum; `None` if it has none.
pub(super) fn is_whole(beginning: &[u8]) -> Option<bool> {
    let place = place(beginning)?;
    let mut blank = beginning.to_vec();
    blank[place..place + NONE.len()].copy_from_slice(NONE.as_bytes());
    Some(of(&blank).as_bytes() == &beginning[place..place + NONE.len()])
}

/// The offset of the digits of the header's own checksum. Inside a JSON string, quotes are escaped, so this finds the key and not
/// a string that contains it.
fn place(beginning: &[u8]) -> Option<usize> {
    let key = format!("\"{HEADER}\":\"");
    let at = beginning.windows(key.len()).position(|window| window == key.as_bytes())? + key.len();
    (at + NONE.len() <= beginning.len()).then_some(at)
}

/// Whether values contain neither NaN nor infinity; always true for types that are not floating point.
pub(super) fn is_finite(bytes: &[u8], dtype: DType) -> bool {
    let all = |size: usize, is_finite: fn(&[u8]) -> bool| bytes.chunks_exact(size).all(is_finite);
    // In NaN and infinity, all exponent bits are set.
    match dtype.name() {
        "float64" => all(8, |it| u16::from_le_bytes([it[6], it[7]]) & 0x7ff0 != 0x7ff0),
        "float32" | "bfloat16" => {
            let size = dtype.size();
            let high = |it: &[u8]| u16::from_le_bytes([it[it.len() - 2], it[it.len() - 1]]);
            bytes.chunks_exact(size).all(|it| high(it) & 0x7f80 != 0x7f80)
        }
        "float16" => all(2, |it| u16::from_le_bytes([it[0], it[1]]) & 0x7c00 != 0x7c00),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sealed_beginning_is_whole_until_one_of_its_bits_changes() {
        let mut beginning = format!("12345678{{\"{HEADER}\":\"{NONE}\",\"x\":1}}  ").into_bytes();
        assert_eq!(is_whole(&beginning), Some(false));
        seal(&mut beginning);
        assert_eq!(is_whole(&beginning), Some(true));
        for bit in 0..beginning.len() * 8 {
            beginning[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(is_whole(&beginning), Some(true), "bit {bit}");
            beginning[bit / 8] ^= 1 << (bit % 8);
        }
        assert_eq!(is_whole(b"{}"), None);
    }

    #[test]
    fn infinity_and_nan_are_found_in_every_floating_point_type() {
        for (bytes, name) in [
            (f64::INFINITY.to_le_bytes().to_vec(), "float64"),
            (f64::NAN.to_le_bytes().to_vec(), "float64"),
            (f32::NEG_INFINITY.to_le_bytes().to_vec(), "float32"),
            (vec![0x80, 0x7f], "bfloat16"),
            (vec![0x01, 0x7e], "float16"),
        ] {
            let dtype = DType::from_name(name).expect("a type");
            assert!(!is_finite(&bytes, dtype), "{name}");
            assert!(is_finite(&vec![0x11; dtype.size()], dtype), "{name}");
        }
        assert!(is_finite(&[0xff; 8], DType::from_name("int64").expect("a type")));
    }
}
