//! A log with out-of-memory messages: [`Log`]. Each message is read together with the traceback that it ends.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io::{self, BufRead};

use super::absent;
use super::frames::{Frame, Traceback};
use super::text;
use super::tracing::{Ended, Tracing, is_of_traceback, source};
use super::wording::OutOfMemory;
use super::wrap;
use crate::error::Absent;

/// The maximum number of lines into which a message may be broken, for example by pasting.
const MOST_LINES: usize = 12;
/// The maximum number of messages that are kept.
const MOST_MESSAGES: usize = 256;
/// The maximum number of messages that are read concurrently.
const MOST_OPEN: usize = 64;

/// One message, with its rank and traceback.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failed {
    /// The message.
    pub message: OutOfMemory,
    /// The rank, if the launcher names it.
    pub rank: Option<u32>,
    /// The traceback; it has no frames if the text contains no traceback.
    pub traceback: Traceback,
    /// For a message without a traceback: the error that ended the program later. `None` if no error did, so that
    /// memory may be the cause of the end.
    pub ended_with: Option<Ended>,
}

/// The messages of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Log {
    /// The messages in the order of the text; at least one. If a process immediately repeats a message, it is listed once.
    pub failed: Vec<Failed>,
    /// The number of messages that were left out because the text has too many. Only earlier messages of a process are
    /// left out.
    pub left_out: usize,
}

/// The messages of one process: of one rank or, if no launcher names the rank, of one GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process<'a> {
    /// The messages in the order of the text; at least one.
    pub failed: Vec<&'a Failed>,
    device: Option<u32>,
}

impl<'a> Process<'a> {
    /// The message that ended the process, as far as the text shows: the last message. A message with neither figures
    /// nor a traceback is skipped, because it was printed additionally by a program or a library.
    pub fn last(&self) -> Option<&'a Failed> {
        let says = |it: &&Failed| it.says() != (false, false);
        self.failed.iter().copied().rev().find(says).or(self.failed.last().copied())
    }

    fn kinship(&self, new: &Failed) -> Kinship {
        let is_of_rank = self.failed.first().is_some_and(|it| it.rank == new.rank);
        match (is_of_rank, new.rank.is_some() || self.device == new.message.device) {
            (false, _) => Kinship::None,
            (true, true) => Kinship::Sure,
            (true, false) if self.device.is_none() || new.message.device.is_none() => Kinship::Possible,
            (true, false) => Kinship::None,
        }
    }
}

/// How well a message matches a process.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kinship {
    None,
    /// The two may match: one of them does not name its GPU.
    Possible,
    Sure,
}

impl Failed {
    /// Whether the message has figures, and whether it has a traceback.
    fn says(&self) -> (bool, bool) {
        (self.message.requested_bytes.is_some(), !self.traceback.frames.is_empty())
    }
}

impl Log {
    /// Reads all messages; if there are none, the other signs of a failure in the text.
    pub(super) fn read(input: impl BufRead) -> io::Result<Result<Log, Absent>> {
        let mut reader = Reader::default();
        let mut absent = Absent::default();
        text::each_line(input, |line| {
            absent = absent::after(absent, line);
            reader.take(line);
        })?;
        Ok(reader.finish().ok_or(absent))
    }

    /// The processes that ran out of memory, in the order of their first messages.
    pub fn processes(&self) -> Vec<Process<'_>> {
        let mut processes: Vec<Process<'_>> = Vec::new();
        for failed in &self.failed {
            let sure = processes.iter().position(|it| it.kinship(failed) == Kinship::Sure);
            let mut possible =
                (0..processes.len()).filter(|nth| processes[*nth].kinship(failed) == Kinship::Possible);
            let of = sure.or(possible.next().filter(|_| possible.next().is_none()));
            let device = failed.message.device;
            match of {
                Some(nth) => {
                    let process = &mut processes[nth];
                    process.device = process.device.or(device);
                    process.failed.push(failed);
                }
                None => processes.push(Process { failed: vec![failed], device }),
            }
        }
        processes
    }

    /// The process whose last message has the most information, preferably figures and a traceback. In a tie, the first
    /// process counts.
    pub fn process(&self) -> Option<Process<'_>> {
        let says = |it: &Process<'_>| it.last().map(Failed::says);
        let processes = self.processes();
        let best = processes.iter().map(says).max()?;
        processes.into_iter().find(|it| says(it) == best)
    }
}

/// The state of the reader after a line.
#[derive(Default)]
struct Reader {
    tracebacks: BTreeMap<Option<u32>, Tracing>,
    /// Messages that may continue on later lines, if they were wrapped.
    open: Vec<Open>,
    failed: Vec<Failed>,
    left_out: usize,
    /// The previous line and its rank, if a message may begin at the end of that line.
    begun: Option<(Option<u32>, String)>,
}

/// A message that may continue.
struct Open {
    rank: Option<u32>,
    text: String,
    lines: usize,
    traceback: Traceback,
}

impl Reader {
    fn take(&mut self, line: &str) {
        let rank = text::rank(line);
        let begun = self.begun.take().filter(|(of, _)| *of == rank);
        if let Some(whole) = begun.and_then(|(_, begun)| wrap::whole_start(begun, source(line))) {
            return self.take(&whole);
        }
        if wrap::is_start(line) {
            self.begun = Some((rank, line.to_owned()));
        }
        let begins = OutOfMemory::begins(line).is_some();
        let frame = Frame::parse(line);
        let is_trace = frame.is_some() || is_of_traceback(line);
        let ends = begins || is_trace || line.trim().is_empty();
        if let Some(nth) = self.open.iter().position(|open| open.rank == rank) {
            let open = &mut self.open[nth];
            open.lines += 1;
            if ends || open.lines > MOST_LINES {
                let open = self.open.remove(nth);
                self.close(open);
            } else {
                wrap::join(&mut open.text, source(line));
                return;
            }
        }
        if begins {
            if self.open.len() >= MOST_OPEN {
                let oldest = self.open.remove(0);
                self.close(oldest);
            }
            let tracing = self.tracing(rank);
            let traceback = tracing.map(|tracing| tracing.of_message(line)).unwrap_or_default();
            self.open.push(Open { rank, text: line.to_owned(), lines: 1, traceback });
            return;
        }
        let tracing = if is_trace { self.tracing(rank) } else { self.tracebacks.get_mut(&rank) };
        if let Some(tracing) = tracing {
            tracing.take(line, frame);
        }
    }

    /// The traceback of a rank; `None` if there are too many ranks.
    fn tracing(&mut self, rank: Option<u32>) -> Option<&mut Tracing> {
        let has_room = self.tracebacks.len() < MOST_MESSAGES;
        match self.tracebacks.entry(rank) {
            Entry::Occupied(entry) => Some(entry.into_mut()),
            Entry::Vacant(entry) => has_room.then(|| entry.insert(Tracing::default())),
        }
    }

    fn close(&mut self, Open { rank, text, traceback, .. }: Open) {
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let Some(message) = OutOfMemory::parse(&text) else { return };
        let device = message.device;
        let is_of_it = |it: &Failed| it.rank == rank && (device.is_none() || it.message.device == device);
        let before = self.failed.iter().rposition(is_of_it);
        match before {
            Some(nth) if message.repeats(&self.failed[nth].message) => {
                let known = &mut self.failed[nth];
                if known.traceback.frames.is_empty() {
                    known.traceback = traceback;
                }
            }
            _ if self.failed.len() < MOST_MESSAGES => {
                self.failed.push(Failed { message, rank, traceback, ended_with: None });
            }
            // Otherwise, an earlier message is left out, because for each process, the last message counts.
            _ => {
                self.left_out += 1;
                if let Some(nth) = before {
                    self.failed[nth] = Failed { message, rank, traceback, ended_with: None };
                }
            }
        }
    }

    fn finish(mut self) -> Option<Log> {
        for open in std::mem::take(&mut self.open) {
            self.close(open);
        }
        // The traceback may follow its message, as in reports on the web.
        if let [one] = self.failed.as_mut_slice()
            && one.traceback.frames.is_empty()
            && let Some(traceback) = self.tracebacks.get_mut(&one.rank).and_then(Tracing::below)
        {
            one.traceback = traceback;
        }
        for (rank, tracing) in &mut self.tracebacks {
            let last = self.failed.iter_mut().rfind(|it| it.rank == *rank);
            if let Some(last) = last.filter(|it| it.traceback.frames.is_empty()) {
                last.ended_with = tracing.ended();
            }
        }
        let Reader { failed, left_out, .. } = self;
        (!failed.is_empty()).then_some(Log { failed, left_out })
    }
}
