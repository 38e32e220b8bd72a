//! IDX, the file format of MNIST: two zero bytes, a type code, the number of dimensions, each as a big-endian
//! u32, then the elements. Plain or gzip, distinguished by their first bytes, not by the file's name.
//!
//! The header is untrusted. Its size is compared with the length of the file before anything is
//! allocated, and no more than that size and one byte is ever decompressed. Only bytes (`u8`) are read.
//!
//! `mnist.rs` finds the files that make up MNIST.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use flate2::bufread::MultiGzDecoder;

use super::DataError;

/// The largest body that is accepted: nearly twice EMNIST's 547 MB, the largest of MNIST's family.
const LIMIT_BYTES: u64 = 1 << 30;

/// DEFLATE's maximum expansion of one byte (zlib's technical notes: 1032 to 1).
const DEFLATE_RATIO: u64 = 1032;

/// The contents of an IDX file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Idx {
    /// Its dimensions.
    pub(super) header: IdxHeader,
    /// Its elements, row-major, exactly as many as the header says.
    pub(super) bytes: Vec<u8>,
}

/// The first bytes of an IDX file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct IdxHeader {
    /// Extent of each dimension, outermost first; the first is the number of samples.
    pub(super) dims: Vec<usize>,
}

impl Idx {
    /// Reads a complete file.
    ///
    /// # Errors
    /// If the file cannot be read, is not an IDX file of bytes, or is not exactly as long as its header says.
    pub(super) fn read(path: &Path) -> Result<Self, DataError> {
        let mut source = Source::open(path)?;
        let header = source.header()?;
        let bytes = source.body(header.bytes())?;
        Ok(Self { header, bytes })
    }
}

impl IdxHeader {
    /// Reads only the header, which is a few bytes even in a large file. A body that a file of this length
    /// cannot hold is an error; a truncated gzip body is not detected.
    ///
    /// # Errors
    /// If the file cannot be read, is not an IDX file of bytes, or is too short for its header.
    pub(super) fn read(path: &Path) -> Result<Self, DataError> {
        Source::open(path)?.header()
    }

    /// Bytes of the elements. Does not overflow: `Source::header` checks the product.
    fn bytes(&self) -> u64 {
        self.dims.iter().map(|&dim| dim as u64).product()
    }
}

/// An open file, as a stream of decompressed bytes.
struct Source<'a> {
    path: &'a Path,
    file_bytes: u64,
    packing: Packing,
    bytes: Box<dyn Read>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Packing {
    Plain,
    Gzip,
}

impl<'a> Source<'a> {
    fn open(path: &'a Path) -> Result<Self, DataError> {
        let failed = |doing| move |source| DataError::Io { path: path.to_owned(), doing, source };
        let file = File::open(path).map_err(failed("open"))?;
        let file_bytes = file.metadata().map_err(failed("open"))?.len();
        let mut raw = BufReader::new(file);
        let start = raw.fill_buf().map_err(failed("read"))?;
        let (packing, bytes): (_, Box<dyn Read>) = if start.starts_with(&[0x1f, 0x8b]) {
            (Packing::Gzip, Box::new(MultiGzDecoder::new(raw)))
        } else {
            (Packing::Plain, Box::new(raw))
        };
        Ok(Self { path, file_bytes, packing, bytes })
    }

    fn header(&mut self) -> Result<IdxHeader, DataError> {
        let mut magic = [0; 4];
        self.header_bytes(&mut magic, 0)?;
        let [zero, also_zero, code, dimensions] = magic;
        if [zero, also_zero] != [0, 0] {
            return Err(DataError::NotIdx { path: self.path.to_owned(), found: [zero, also_zero] });
        }
        if code != 0x08 {
            let name = element_name(code);
            return Err(DataError::ElementType { path: self.path.to_owned(), code, name });
        }
        let mut dims = vec![0; 4 * usize::from(dimensions)];
        self.header_bytes(&mut dims, 4)?;
        let dims =
            dims.chunks_exact(4).map(|dim| u32::from_be_bytes([dim[0], dim[1], dim[2], dim[3]]) as usize);
        let header = IdxHeader { dims: dims.collect() };
        self.check_promise(&header)?;
        Ok(header)
    }

    /// Reads the header's bytes from offset `at`.
    fn header_bytes(&mut self, into: &mut [u8], at: u64) -> Result<(), DataError> {
        let found = self.read_up_to(into.len() as u64)?;
        if found.len() < into.len() {
            return Err(DataError::HeaderCut {
                path: self.path.to_owned(),
                expected_bytes: at + into.len() as u64,
                found_bytes: at + found.len() as u64,
            });
        }
        into.copy_from_slice(&found);
        Ok(())
    }

    /// Compares the header's size with what the file can hold, before any allocation.
    fn check_promise(&self, header: &IdxHeader) -> Result<(), DataError> {
        let path = || self.path.to_owned();
        let header_bytes = 4 + 4 * header.dims.len() as u64;
        let at_most_bytes = match self.packing {
            Packing::Plain => self.file_bytes.saturating_sub(header_bytes),
            Packing::Gzip => self.file_bytes.saturating_mul(DEFLATE_RATIO).saturating_sub(header_bytes),
        };
        let promised = header.dims.iter().try_fold(1u64, |bytes, &dim| bytes.checked_mul(dim as u64));
        match promised {
            Some(expected_bytes) if self.packing == Packing::Plain && expected_bytes > at_most_bytes => {
                Err(DataError::Truncated { path: path(), expected_bytes, found_bytes: at_most_bytes })
            }
            Some(bytes) if bytes > at_most_bytes => Err(impossible(path(), header, at_most_bytes)),
            None => Err(impossible(path(), header, at_most_bytes)),
            Some(expected_bytes) if expected_bytes > LIMIT_BYTES => {
                Err(DataError::TooLarge { path: path(), expected_bytes, limit_bytes: LIMIT_BYTES })
            }
            Some(_) => Ok(()),
        }
    }

    /// Reads the elements, and checks that nothing follows.
    fn body(&mut self, expected_bytes: u64) -> Result<Vec<u8>, DataError> {
        let bytes = self.read_up_to(expected_bytes)?;
        let path = || self.path.to_owned();
        let found_bytes = bytes.len() as u64;
        if found_bytes < expected_bytes {
            return Err(DataError::Truncated { path: path(), expected_bytes, found_bytes });
        }
        // Reading past the end also makes the gzip decoder verify its checksum.
        let mut beyond = [0];
        match self.bytes.read(&mut beyond) {
            Ok(0) => Ok(bytes),
            Ok(_) => Err(DataError::TooLong { path: path(), expected_bytes, found_bytes: found_bytes + 1 }),
            Err(source) => Err(DataError::Io { path: path(), doing: "read", source }),
        }
    }

    /// Reads the next `bytes` bytes, fewer only at the end of the file. The buffer grows with the data read, not with the
    /// requested size.
    fn read_up_to(&mut self, bytes: u64) -> Result<Vec<u8>, DataError> {
        let mut found = Vec::new();
        match (&mut self.bytes).take(bytes).read_to_end(&mut found) {
            Ok(_) => Ok(found),
            // A truncated gzip stream; the caller compares the length.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(found),
            Err(source) => Err(DataError::Io { path: self.path.to_owned(), doing: "read", source }),
        }
    }
}

fn impossible(path: PathBuf, header: &IdxHeader, at_most_bytes: u64) -> DataError {
    DataError::Impossible { path, dims: header.dims.clone(), at_most_bytes }
}

/// The IDX type codes, from the format's description at yann.lecun.com.
fn element_name(code: u8) -> &'static str {
    match code {
        0x08 => "u8",
        0x09 => "i8",
        0x0b => "i16",
        0x0c => "i32",
        0x0d => "f32",
        0x0e => "f64",
        _ => "unknown",
    }
}

#[cfg(test)]
#[path = "idx_tests.rs"]
pub(super) mod tests;
