//! Replays recorded requests, and compares every result and statistic of our allocator with PyTorch's.
//!
//! A recording is text. It is either a stream of requests in CSV (`corpus.rs`, replayed by `stream.rs` on the device in
//! `recorded.rs`), or programs, one per line as JSON (`program.rs`, on the device in `first_fit.rs`). The result is a
//! [`Report`].
//!
//! ```
//! use plimsoll_trace::conformance;
//! let text = "#config,backend:native\n#device_bytes,4000000000\n\
//!     op,id,bytes,stream,address,allocated,reserved,active,inactive_split,requested,allocations,segments,\
//!     active_blocks,inactive_split_blocks,alloc_retries,ooms,device_allocs,device_frees,peak_allocated,\
//!     peak_reserved\n\
//!     #malloc,500000000000,2097152\n\
//!     alloc,0,3328,0,500000000000,3584,2097152,3584,2093568,3328,1,1,1,1,0,0,1,0,3584,2097152\n";
//! let report = conformance::compare(text)?;
//! assert!(report.rows == 1 && report.divergence.is_none(), "{report}");
//! # Ok::<(), conformance::Unreadable>(())
//! ```

mod corpus;
mod first_fit;
mod program;
mod recorded;
mod report;
mod stream;

use std::fmt;
use std::io::{self, Read};
use std::path::Path;

use flate2::read::MultiGzDecoder;

pub use report::{Answer, Choice, Difference, Divergence, Report};

use corpus::Corpus;
use program::Program;

/// The error for text that is not a recording: the line that cannot be read, and the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unreadable(String);

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unreadable {}

/// The text of a file, plain or gzip.
///
/// # Errors
/// I/O errors, or if the text is not UTF-8.
pub fn read(path: &Path) -> io::Result<String> {
    let bytes = std::fs::read(path)?;
    let mut text = String::new();
    if bytes.starts_with(&[0x1f, 0x8b]) {
        MultiGzDecoder::new(bytes.as_slice()).read_to_string(&mut text)?;
    } else {
        bytes.as_slice().read_to_string(&mut text)?;
    }
    Ok(text)
}

/// Replays a recording, either a stream or programs, up to the first difference.
///
/// # Errors
/// If the text is not a recording, or a recording without rows.
pub fn compare(text: &str) -> Result<Report, Unreadable> {
    let report = if text.starts_with('{') {
        programs(text)?
    } else {
        stream::replay(&Corpus::parse(text).map_err(Unreadable)?)
    };
    if report.rows == 0 {
        return Err(Unreadable("no requests found: expected a CSV stream or JSON programs".to_owned()));
    }
    Ok(report)
}

fn programs(text: &str) -> Result<Report, Unreadable> {
    let mut rows = 0;
    for (number, line) in text.lines().enumerate() {
        let program =
            Program::parse(line).map_err(|why| Unreadable(format!("line {}: {why}", number + 1)))?;
        let report = program.replay();
        rows += report.rows;
        if let Some(divergence) = report.divergence {
            let asked = format!("program {}: {}", program.name(), divergence.asked);
            return Ok(Report { rows, divergence: Some(Divergence { asked, ..divergence }) });
        }
    }
    Ok(Report { rows, divergence: None })
}
