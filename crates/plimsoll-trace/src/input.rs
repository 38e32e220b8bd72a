//! Where a snapshot comes from: a file or stdin, plain, gzip or zstd, a pickle or JSON, told by its first
//! bytes and not by its name.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;
use std::rc::Rc;

use flate2::bufread::MultiGzDecoder;

use crate::error::{SnapshotError, Why};
use crate::pickle;
use crate::snapshot::Snapshot;

const GZIP: [u8; 2] = [0x1f, 0x8b];
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Bytes that are taken from the system at once.
const CHUNK_BYTES: usize = 256 << 10;

/// Reads the snapshot in a file; `-` is stdin.
///
/// # Errors
/// The system's, and what is no snapshot.
pub fn open(path: &Path) -> Result<Snapshot, SnapshotError> {
    if path.as_os_str() == "-" { read(io::stdin().lock()) } else { read(File::open(path)?) }
}

/// Reads a snapshot from bytes, packed or not.
///
/// ```
/// let pickle = b"\x80\x04]."; // an empty list of segments
/// let snapshot = plimsoll_trace::input::read(pickle.as_slice())?;
/// assert!(snapshot.segments.is_empty());
/// # Ok::<(), plimsoll_trace::SnapshotError>(())
/// ```
///
/// # Errors
/// The system's, and what is no snapshot.
pub fn read(input: impl Read) -> Result<Snapshot, SnapshotError> {
    let taken = Rc::new(Cell::new(0));
    let counted = Counted { input, taken: Rc::clone(&taken) };
    let (head, input) = peek::<4, _>(counted)?;
    let packed = || taken.get();
    if head.starts_with(&GZIP) {
        unpacked(MultiGzDecoder::new(BufReader::with_capacity(CHUNK_BYTES, input)), packed)
    } else if head == ZSTD {
        let decoder = ruzstd::decoding::StreamingDecoder::new(input)
            .map_err(|why| io::Error::new(io::ErrorKind::InvalidData, why.to_string()))?;
        unpacked(decoder, packed)
    } else {
        unpacked(input, packed)
    }
}

fn unpacked(input: impl Read, packed: impl Fn() -> u64) -> Result<Snapshot, SnapshotError> {
    let (head, input) = peek::<2, _>(input)?;
    match head.as_slice() {
        [] => Err(SnapshotError { at: None, why: Why::Empty }),
        [0x80, ..] => pickle::read(input, packed),
        &[a, ref rest @ ..] => {
            Err(SnapshotError::at(0, Why::NotASnapshot([a, rest.first().copied().unwrap_or(0)])))
        }
    }
}

/// The first bytes, and the input with them still to come.
fn peek<const N: usize, R: Read>(mut input: R) -> io::Result<(Vec<u8>, impl Read)> {
    let mut head = Vec::with_capacity(N);
    input.by_ref().take(N as u64).read_to_end(&mut head)?;
    Ok((head.clone(), io::Cursor::new(head).chain(input)))
}

/// Counts the bytes that are taken.
struct Counted<R> {
    input: R,
    taken: Rc<Cell<u64>>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.input.read(buffer)?;
        self.taken.set(self.taken.get() + read as u64);
        Ok(read)
    }
}
