//! Opens a snapshot: from a file or stdin; plain, gzip or zstd; a pickle, JSON or our own log. The format is recognised
//! by its first bytes, not by its name.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::errors::FrameDecoderError;
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

use crate::error::{Absent, SnapshotError, Why};
use crate::grant::Grant;
use crate::json;
use crate::log;
use crate::message::{self, Pasted};
use crate::snapshot::{Form, Snapshot};
use crate::torch;

const GZIP: [u8; 2] = [0x1f, 0x8b];
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// How many of the latest entries of a long log are kept. Some entries take less than a byte, so the length of a log
/// does not limit the number of its entries.
const MOST_LOGGED: usize = 4 << 20;
/// The number of bytes read from the system at once.
const CHUNK_BYTES: usize = 256 << 10;

/// Reads the snapshot in a file; `-` is stdin.
///
/// # Errors
/// I/O errors, or an input that is not a snapshot.
pub fn open(path: &Path) -> Result<Snapshot, SnapshotError> {
    if path.as_os_str() == "-" { read(io::stdin().lock()) } else { read(opened(path)?) }
}

/// The content of a file or a text.
#[derive(Debug)]
pub enum Found {
    /// A snapshot.
    Snapshot(Box<Snapshot>),
    /// A text that was read instead of a snapshot.
    Pasted(Pasted),
}

/// Reads the snapshot in a file, or a text that can be read instead: a log with an out-of-memory message,
/// counters, a profile. `-` is stdin.
///
/// # Errors
/// I/O errors, or an input that is none of these.
pub fn open_any(path: &Path) -> Result<Found, SnapshotError> {
    let found = if path.as_os_str() == "-" { read_any(io::stdin().lock()) } else { read_any(opened(path)?) };
    found.map_err(|error| match error.why {
        Why::Empty if !is_named_as_snapshot(path) => SnapshotError { at: None, why: Why::EmptyText },
        _ => error,
    })
}

/// Whether an empty file was meant to be a snapshot. Any other empty file counts as the log of a program.
fn is_named_as_snapshot(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    ["pickle", "pkl", "json", "snapshot"].iter().any(|part| name.contains(part))
}

/// Does the same as [`open_any`], but reads bytes.
///
/// # Errors
/// I/O errors, or an input that is none of these.
pub fn read_any(input: impl Read) -> Result<Found, SnapshotError> {
    let (head, input) = peek::<4, _>(input)?;
    if head == log::HEAD {
        return read(input).map(|snapshot| Found::Snapshot(Box::new(snapshot)));
    }
    // A compressed text log looks like a compressed snapshot. Only the first unpacked bytes show whether it is a log or
    // a snapshot.
    let grant = Grant::default();
    let input = grant.earned_by(input);
    let mut input: Box<dyn Read + '_> = if head.starts_with(&GZIP) {
        Box::new(MultiGzDecoder::new(BufReader::with_capacity(CHUNK_BYTES, input)))
    } else if head == ZSTD {
        Box::new(ZstdFrames::new(BufReader::with_capacity(CHUNK_BYTES, input))?)
    } else {
        Box::new(input)
    };
    let (head, mut input) = peek::<HEAD_BYTES, _>(&mut input)?;
    if head.is_empty() || head[0] == 0x80 || !message::is_likely(&head) {
        return unpacked(input, &grant).map(|snapshot| Found::Snapshot(Box::new(snapshot)));
    }
    if head.len() < HEAD_BYTES && head.trim_ascii().is_empty() {
        return Err(SnapshotError { at: None, why: Why::EmptyText });
    }
    let absent = match message::understood(&mut input)? {
        Ok(pasted) => return Ok(Found::Pasted(pasted)),
        Err(absent) => absent,
    };
    let no_message = || SnapshotError { at: None, why: Why::NoMessage(absent) };
    // A small input may be a snapshot although none of its keys was recognised. If the input is neither a snapshot nor
    // a text, the reason is the error of reading it as a snapshot.
    if head.len() >= HEAD_BYTES || absent != Absent::Nothing {
        return Err(no_message());
    }
    let is_prose = message::is_prose(&head);
    match unpacked(head.as_slice(), &grant) {
        Ok(snapshot) => Ok(Found::Snapshot(Box::new(snapshot))),
        Err(SnapshotError { why: Why::NotASnapshot(_) | Why::Json(_) | Why::InJson { .. }, .. })
            if is_prose =>
        {
            Err(no_message())
        }
        Err(why) => Err(why),
    }
}

/// The number of bytes that suffice to distinguish a JSON snapshot from other text.
const HEAD_BYTES: usize = 64 << 10;

/// Opens a file. Rejects named pipes, which may have no writer, and devices, which may have no end; they can be read as
/// stdin.
fn opened(path: &Path) -> Result<File, SnapshotError> {
    // The pipes of a shell's `<(…)` are allowed: the shell has started their writers.
    let is_shells = ["/dev/fd", "/dev/stdin", "/proc/self/fd"].iter().any(|ours| path.starts_with(ours));
    let kind = path.metadata()?.file_type();
    if !kind.is_file() && !kind.is_dir() && !is_shells {
        return Err(SnapshotError { at: None, why: Why::NotAFile });
    }
    Ok(File::open(path)?)
}

/// Reads a snapshot from bytes, compressed or not.
///
/// ```
/// let pickle = b"\x80\x04]."; // an empty list of segments
/// let snapshot = plimsoll_trace::input::read(pickle.as_slice())?;
/// assert!(snapshot.segments.is_empty());
/// # Ok::<(), plimsoll_trace::SnapshotError>(())
/// ```
///
/// # Errors
/// I/O errors, or an input that is not a snapshot.
pub fn read(input: impl Read) -> Result<Snapshot, SnapshotError> {
    let grant = Grant::default();
    let (head, input) = peek::<4, _>(grant.earned_by(input))?;
    if head.starts_with(&GZIP) {
        unpacked(MultiGzDecoder::new(BufReader::with_capacity(CHUNK_BYTES, input)), &grant)
    } else if head == log::HEAD {
        Ok(in_form(log::read(input, MOST_LOGGED)?.snapshot, Form::Log))
    } else if head == ZSTD {
        let frames = ZstdFrames::new(BufReader::with_capacity(CHUNK_BYTES, input))?;
        unpacked(frames, &grant)
    } else {
        unpacked(input, &grant)
    }
}

fn unpacked(input: impl Read, grant: &Grant) -> Result<Snapshot, SnapshotError> {
    let (head, mut input) = peek::<2, _>(input)?;
    match *head.as_slice() {
        [] => Err(SnapshotError { at: None, why: Why::Empty }),
        [0x80, ref rest @ ..] => {
            let protocol = rest.first().copied().unwrap_or_default();
            let snapshot = torch::read(&mut input, grant)?;
            // This reads once more, so that the decompressor reaches and verifies its checksum.
            io::copy(&mut input.take(1), &mut io::sink())?;
            Ok(in_form(snapshot, Form::Pickle(protocol)))
        }
        [b'{' | b'[' | b' ' | b'\t' | b'\r' | b'\n', ..] => {
            let snapshot = json::read(BufReader::with_capacity(CHUNK_BYTES, input), grant)?;
            Ok(in_form(snapshot, Form::Json))
        }
        [a, ref rest @ ..] => {
            Err(SnapshotError::at(0, Why::NotASnapshot([a, rest.first().copied().unwrap_or(0)])))
        }
    }
}

fn in_form(mut snapshot: Snapshot, form: Form) -> Snapshot {
    snapshot.facts.form = Some(form);
    snapshot
}

/// Reads the first bytes of an input. Returns these bytes, and an input that still includes them.
fn peek<const N: usize, R: Read>(mut input: R) -> io::Result<(Vec<u8>, impl Read)> {
    let mut head = Vec::with_capacity(N);
    input.by_ref().take(N as u64).read_to_end(&mut head)?;
    Ok((head.clone(), io::Cursor::new(head).chain(input)))
}

/// The frames of a zstd file, one after the other.
struct ZstdFrames<R> {
    input: R,
    decoder: FrameDecoder,
}

impl<R: BufRead> ZstdFrames<R> {
    fn new(mut input: R) -> io::Result<Self> {
        let mut decoder = FrameDecoder::new();
        decoder.reset(&mut input).map_err(|why| damaged(&why))?;
        Ok(Self { input, decoder })
    }
}

impl<R: BufRead> Read for ZstdFrames<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.decoder.can_collect() == 0 {
            if !self.decoder.is_finished() {
                let some = BlockDecodingStrategy::UptoBytes(CHUNK_BYTES);
                self.decoder.decode_blocks(&mut self.input, some).map_err(|why| damaged(&why))?;
            } else if self.input.fill_buf()?.is_empty() {
                return Ok(0);
            } else {
                self.decoder.reset(&mut self.input).map_err(|why| damaged(&why))?;
            }
        }
        self.decoder.read(buffer)
    }
}

fn damaged(why: &FrameDecoderError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_log_is_no_failed_dump() {
        for (name, is_snapshot) in
            [("-", false), ("run/train.log", false), ("s.pickle.gz", true), ("S.PKL", true)]
        {
            assert_eq!(is_named_as_snapshot(Path::new(name)), is_snapshot, "{name}");
        }
        assert!(matches!(read_any(" \n\n".as_bytes()).expect_err("nothing").why, Why::EmptyText));
        assert!(matches!(read_any(io::empty()).expect_err("nothing").why, Why::Empty));
    }
}
