//! A log with messages: [`Log`]. Each is read together with the traceback that its rank wrote before it.

use std::collections::BTreeMap;
use std::io::{self, BufRead};

use super::frames::{Frame, Traceback};
use super::text;
use super::wording::OutOfMemory;

/// The most lines that a message was broken into by whoever pasted it.
const MOST_LINES: usize = 12;
/// The most messages that are kept.
const MOST_MESSAGES: usize = 256;
/// The most messages that are read at a time.
const MOST_OPEN: usize = 64;
/// The most frames of a traceback; Python's own recursion ends at 1,000.
const MOST_FRAMES: usize = 4096;

/// One message, with what its rank was doing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failed {
    /// The message.
    pub message: OutOfMemory,
    /// The rank, if the launcher names it.
    pub rank: Option<u32>,
    /// The lines that were running; without frames if the text has none.
    pub traceback: Traceback,
}

/// The messages of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Log {
    /// In the order of the text; at least one. One that a rank repeats is there once.
    pub failed: Vec<Failed>,
}

impl Log {
    /// All messages; `None` if there is none.
    pub(super) fn read(input: impl BufRead) -> io::Result<Option<Log>> {
        let mut reader = Reader::default();
        text::each_line(input, |line| reader.take(line))?;
        Ok(reader.finish())
    }

    /// The message that says most: the first with a traceback and figures.
    pub fn first(&self) -> Option<&Failed> {
        let says = |it: &&Failed| (it.message.requested_bytes.is_some(), !it.traceback.frames.is_empty());
        let best = self.failed.iter().map(|it| says(&it)).max()?;
        self.failed.iter().find(|it| says(it) == best)
    }
}

/// What is known up to a line.
#[derive(Default)]
struct Reader {
    tracebacks: BTreeMap<Option<u32>, Tracing>,
    /// Messages whose later lines may still come: somebody may have broken them.
    open: Vec<Open>,
    failed: Vec<Failed>,
}

/// A message that may go on.
struct Open {
    rank: Option<u32>,
    text: String,
    lines: usize,
}

impl Reader {
    fn take(&mut self, line: &str) {
        let rank = text::rank(line);
        let begins = OutOfMemory::begins(line).is_some();
        let frame = Frame::parse(line);
        let ends = begins || frame.is_some() || line.trim().is_empty() || line.contains(TRACEBACK);
        if let Some(nth) = self.open.iter().position(|open| open.rank == rank) {
            let open = &mut self.open[nth];
            open.lines += 1;
            if ends || open.lines > MOST_LINES {
                let open = self.open.remove(nth);
                self.close(open);
            } else {
                open.text.push(' ');
                open.text.push_str(source(line));
                return;
            }
        }
        if begins {
            if self.open.len() >= MOST_OPEN {
                let oldest = self.open.remove(0);
                self.close(oldest);
            }
            self.open.push(Open { rank, text: line.to_owned(), lines: 1 });
            return;
        }
        let is_trace = frame.is_some() || line.contains(TRACEBACK);
        if is_trace && self.tracebacks.len() < MOST_MESSAGES {
            self.tracebacks.entry(rank).or_default().take(line, frame);
        } else if let Some(tracing) = self.tracebacks.get_mut(&rank) {
            tracing.take(line, frame);
        }
    }

    fn close(&mut self, Open { rank, text, .. }: Open) {
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let Some(message) = OutOfMemory::parse(&text) else { return };
        let tracing = self.tracebacks.get_mut(&rank);
        let traceback = tracing.map(|tracing| std::mem::take(&mut tracing.traceback)).unwrap_or_default();
        let same = |it: &Failed| it.rank == rank && it.message == message;
        match self.failed.iter().position(same) {
            Some(known) if self.failed[known].traceback.frames.is_empty() => {
                self.failed[known].traceback = traceback;
            }
            Some(_) => {}
            None if self.failed.len() < MOST_MESSAGES => {
                self.failed.push(Failed { message, rank, traceback });
            }
            None => {}
        }
    }

    fn finish(mut self) -> Option<Log> {
        for open in std::mem::take(&mut self.open) {
            self.close(open);
        }
        // A message above its traceback, as reports on the web have it.
        if let [one] = self.failed.as_mut_slice()
            && one.traceback.frames.is_empty()
            && let Some(tracing) = self.tracebacks.get_mut(&one.rank)
        {
            one.traceback = std::mem::take(&mut tracing.traceback);
        }
        (!self.failed.is_empty()).then_some(Log { failed: self.failed })
    }
}

/// How Python begins.
const TRACEBACK: &str = "Traceback (most recent call last)";

/// A traceback in the making.
#[derive(Default)]
struct Tracing {
    traceback: Traceback,
    /// Whether the line before was a frame, so that this one is its source.
    after_frame: bool,
}

impl Tracing {
    fn take(&mut self, line: &str, frame: Option<Frame>) {
        if line.contains(TRACEBACK) {
            self.traceback.frames.clear();
            self.after_frame = false;
            return;
        }
        let frames = &mut self.traceback.frames;
        if let Some(frame) = frame {
            if frames.len() < MOST_FRAMES {
                frames.push(frame);
            }
            self.after_frame = true;
            return;
        }
        if std::mem::take(&mut self.after_frame)
            && let Some(frame) = frames.last_mut()
        {
            frame.source = source(line).to_owned();
        }
    }
}

/// A line of source without what a launcher put before it.
fn source(line: &str) -> &str {
    let line =
        line.split_once("]: ").filter(|(ahead, _)| ahead.starts_with('[')).map_or(line, |(_, rest)| rest);
    line.trim()
}
