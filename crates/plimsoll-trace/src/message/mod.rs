//! Reads the texts that users have instead of a snapshot: a log with out-of-memory messages ([`Log`]), the
//! allocator's counters ([`Counters`]), or a trace of torch.profiler ([`Profile`]). [`read`] recognises which one a
//! text is.
//!
//! A figure that is not in the text is `None`, and stays unknown in every result.
//!
//! | file | contents |
//! |---|---|
//! | `size.rs` | sizes as PyTorch writes them |
//! | `text.rs` | a log without colours, returns and escapes; ranks |
//! | `wording.rs` | [`OutOfMemory`]: one message, in all wordings since PyTorch 1.0 |
//! | `wrap.rs` | messages that were broken at a column |
//! | `frames.rs` | lines of a traceback |
//! | `tracing.rs` | a traceback while it is read; [`Ended`]: an error after a message |
//! | `log.rs` | [`Log`]: the messages of a log, each with its traceback |
//! | `absent.rs` | the contents of a text without a message |
//! | `processes.rs` | which of the listed processes are not this one |
//! | `cause.rs` | [`Shortage`]: capacity or fragmentation, and by how much |
//! | `counters.rs` | [`Counters`]: `memory_stats()` and `memory_summary()` |
//! | `profile.rs` | [`Profile`]: memory events of torch.profiler |

mod absent;
mod cause;
mod counters;
mod frames;
mod log;
mod processes;
mod profile;
mod size;
mod text;
mod tracing;
mod wording;
mod wrap;

use std::io::{self, BufReader, Read};

pub use cause::Shortage;
pub use counters::{Counter, Counters};
pub use frames::{Frame, Traceback};
pub use log::{Failed, Log, Process};
pub use profile::{Profile, ProfiledDevice};
pub use tracing::Ended;
pub use wording::{OutOfMemory, Source};

use crate::error::Absent;

/// The maximum number of bytes read from a log.
const MOST_BYTES: u64 = 512 << 20;
/// How many bytes at the start are searched for counters and for the signs of a trace.
const HEAD_BYTES: u64 = 1 << 20;
/// The maximum number of bytes of UTF-16 that are read; they are decoded all at once.
const MOST_WIDE_BYTES: u64 = 64 << 20;

/// A recognised text.
#[derive(Debug, Clone, PartialEq)]
pub enum Pasted {
    /// A message, or a log with at least one message.
    Log(Log),
    /// The allocator's counters.
    Counters(Counters),
    /// Memory events from torch.profiler.
    Profile(Profile),
}

/// Reads a text. Returns `None` if it is not recognised.
///
/// ```
/// use plimsoll_trace::message::{Pasted, read};
///
/// let text = "CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 8.00 GiB total capacity; 6.00 GiB already allocated; \
///             1.00 GiB free; 6.50 GiB reserved in total by PyTorch)";
/// let Some(Pasted::Log(log)) = read(text.as_bytes())? else { panic!("a message") };
/// assert_eq!(log.failed[0].message.shortage().cause.short_bytes(), Some(512 << 20));
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// I/O errors.
pub fn read(input: impl Read) -> io::Result<Option<Pasted>> {
    Ok(understood(input)?.ok())
}

/// Does the same as [`read`], but for an unrecognised text, returns the signs that it contains.
///
/// # Errors
/// I/O errors.
pub(crate) fn understood(mut input: impl Read) -> io::Result<Result<Pasted, Absent>> {
    let mut head = Vec::new();
    input.by_ref().take(HEAD_BYTES).read_to_end(&mut head)?;
    if text::is_wide(&head) {
        input.take(MOST_WIDE_BYTES).read_to_end(&mut head)?;
        let text = text::from_wide(&head);
        return parse(text.as_bytes(), io::empty());
    }
    parse(&head, input)
}

fn parse(head: &[u8], rest: impl Read) -> io::Result<Result<Pasted, Absent>> {
    let whole = BufReader::with_capacity(CHUNK_BYTES, head.chain(rest.take(MOST_BYTES)));
    if contains(head, "\"traceEvents\"") {
        return Ok(Profile::read(whole).map(Pasted::Profile).ok_or(Absent::Nothing));
    }
    // A log may contain both a message and counters. The message has more information.
    let absent = match Log::read(whole)? {
        Ok(log) => return Ok(Ok(Pasted::Log(log))),
        Err(absent) => absent,
    };
    Ok(Counters::read(&String::from_utf8_lossy(head)).map(Pasted::Counters).ok_or(absent))
}

/// The number of bytes read at once.
const CHUNK_BYTES: usize = 64 << 10;

fn contains(bytes: &[u8], words: &str) -> bool {
    bytes.windows(words.len()).any(|part| part == words.as_bytes())
}

/// Whether a text that begins like this may be one that [`read`] recognises, rather than a snapshot in JSON.
pub(crate) fn is_likely(head: &[u8]) -> bool {
    let is_json = matches!(head.trim_ascii_start().first(), Some(b'{' | b'['));
    let keys = ["\"segments\"", "\"device_traces\"", "\"total_size\"", "\"blocks\""];
    let is_snapshot = is_json && keys.iter().any(|key| contains(head, key));
    text::is_wide(head) || !is_snapshot && !head.contains(&0)
}

/// Whether bytes are human-readable text in UTF-8, UTF-16 with a byte order mark, or Latin-1, so any byte of 0x80 or
/// more is allowed. JSON does not count, because it may be a damaged snapshot.
pub(crate) fn is_prose(head: &[u8]) -> bool {
    if text::is_wide(head) {
        return is_prose(text::from_wide(head).as_bytes());
    }
    let mut begins = head.iter().copied().filter(|byte| !byte.is_ascii_whitespace());
    // A log may begin with `[rank0]` or `[2024-`. JSON that begins with `[` is a list of segments.
    let is_json = match (begins.next(), begins.next()) {
        (Some(b'{'), _) => true,
        (Some(b'['), second) => matches!(second, None | Some(b'{' | b'[' | b']')),
        _ => false,
    };
    // Also allows the bell, backspace, form feed and escape characters, which terminal logs contain.
    let is_text = |byte: &u8| !byte.is_ascii_control() || matches!(byte, 0x07..=0x0d | 0x1b);
    !is_json && head.iter().all(is_text)
}

#[cfg(test)]
mod tests;
