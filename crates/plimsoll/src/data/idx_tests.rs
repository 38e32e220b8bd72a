//! The IDX reader against good files, every truncation of them, and hostile headers.

use std::io::Write;
use std::path::PathBuf;

use flate2::Compression;
use flate2::write::GzEncoder;

use super::*;

/// A file that is deleted when the test ends.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    /// An empty folder for this test.
    pub(crate) fn folder(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("plimsoll-data-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn put(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The bytes of an IDX file.
pub(crate) fn idx(dims: &[u32], values: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0, 0, 8, dims.len() as u8];
    bytes.extend(dims.iter().flat_map(|dim| dim.to_be_bytes()));
    bytes.extend(values);
    bytes
}

pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

const SIX: [u8; 6] = [9, 8, 7, 6, 5, 4];

fn read(name: &str, bytes: &[u8]) -> Result<Idx, DataError> {
    let scratch = Scratch::folder(name);
    Idx::read(&scratch.put("file", bytes))
}

#[test]
fn plain_and_gzip_read_the_same() {
    let plain = read("plain", &idx(&[1, 2, 3], &SIX)).unwrap();
    assert_eq!((&plain.header.dims[..], &plain.bytes[..]), (&[1, 2, 3][..], &SIX[..]));
    assert_eq!(read("gzip", &gzip(&idx(&[1, 2, 3], &SIX))).unwrap(), plain);
}

#[test]
fn every_truncation_is_an_error() {
    let plain = idx(&[1, 2, 3], &SIX);
    for (name, whole) in [("cut-plain", plain.clone()), ("cut-gzip", gzip(&plain))] {
        for length in 0..whole.len() {
            let error = read(name, &whole[..length]).unwrap_err();
            assert!(!matches!(error, DataError::TooLong { .. }), "{length}: {error}");
        }
    }
}

#[test]
fn a_cut_body_names_both_lengths_and_the_file() {
    let bytes = idx(&[1, 2, 3], &SIX[..4]);
    let expected = "cut short: its header promises 6 bytes of values, but it has 4";
    for (name, bytes) in [("short-plain", bytes.clone()), ("short-gzip", gzip(&bytes))] {
        let message = read(name, &bytes).unwrap_err().to_string();
        assert!(message.contains(expected) && message.contains(name), "{message}");
    }
}

#[test]
fn a_body_that_goes_on_is_an_error() {
    let bytes = idx(&[1, 2, 2], &SIX);
    for (name, bytes) in [("long-plain", bytes.clone()), ("long-gzip", gzip(&bytes))] {
        let error = read(name, &bytes).unwrap_err();
        assert!(matches!(error, DataError::TooLong { expected_bytes: 4, found_bytes: 5, .. }), "{error}");
    }
}

#[test]
fn a_changed_byte_in_a_gzip_body_never_gives_other_values() {
    let whole = gzip(&idx(&[1, 2, 3], &SIX));
    for at in 10..whole.len() {
        let mut changed = whole.clone();
        changed[at] ^= 0x10;
        // The padding bits between the end of the stream and its checksum are unused, so a change there is not an error.
        assert!(read("changed", &changed).map_or(true, |idx| idx.bytes == SIX), "byte {at}");
    }
}

#[test]
fn a_hostile_header_is_refused_before_anything_is_read() {
    let overflowing = idx(&[u32::MAX; 3], &SIX);
    let terabyte = idx(&[1 << 20, 1 << 10, 1 << 10], &SIX);
    for (name, bytes) in [
        ("overflow-plain", overflowing.clone()),
        ("overflow-gzip", gzip(&overflowing)),
        ("terabyte-gzip", gzip(&terabyte)),
    ] {
        let error = read(name, &bytes).unwrap_err();
        assert!(matches!(error, DataError::Impossible { .. }), "{name}: {error}");
    }
    let error = read("terabyte-plain", &terabyte).unwrap_err();
    assert!(
        matches!(error, DataError::Truncated { expected_bytes: 0x100_0000_0000, found_bytes: 6, .. }),
        "{error}"
    );
}

#[test]
fn a_body_beyond_the_limit_is_refused_unread() {
    // A sparse file: two gigabytes long, a few kilobytes on disk.
    let scratch = Scratch::folder("sparse");
    let path = scratch.put("file", &idx(&[1 << 21, 1 << 5, 1 << 5], &[]));
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len((1 << 31) + 16).unwrap();
    let error = Idx::read(&path).unwrap_err();
    assert!(matches!(error, DataError::TooLarge { limit_bytes: LIMIT_BYTES, .. }), "{error}");
}

#[test]
fn other_formats_are_named() {
    let message = read("png", b"\x89PNG\r\n\x1a\n").unwrap_err().to_string();
    assert!(message.contains("not an IDX file: it starts with [89, 50], not 00 00"), "{message}");
    let message = read("floats", &[0, 0, 0x0d, 1, 0, 0, 0, 0]).unwrap_err().to_string();
    assert!(message.contains("f32 elements (code 0x0d at byte 2); only u8 (0x08)"), "{message}");
}

#[test]
fn a_header_can_be_read_alone() {
    let scratch = Scratch::folder("header");
    let path = scratch.put("file", &gzip(&idx(&[2, 3], &SIX)));
    assert_eq!(IdxHeader::read(&path).unwrap().dims, [2, 3]);
}

#[test]
fn a_missing_file_is_named() {
    let error = Idx::read(Path::new("/nowhere/images")).unwrap_err().to_string();
    assert!(error.starts_with("cannot open /nowhere/images: "), "{error}");
}
