//! Reads a log as a snapshot, completely or up to the point where the log breaks off: [`read`].

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io::{self, Read};

use flate2::read::DeflateDecoder;
use plimsoll_alloc::{Config, Entry, LabelId, MemoryInfo, Recording, StackId};

use super::entries::{self, Frame, Input};
use super::state::LogState;
use super::{END, ENTRIES, FACTS, Facts, MAGIC, MOST_NAMES, MOST_PAYLOAD_BYTES, VERSION, checksum};
use crate::own::{self, Names, Place};
use crate::snapshot::{Setting, Snapshot};

/// A log's content.
#[derive(Debug)]
pub struct Logged {
    /// The state at the end of the log, and the latest entries.
    pub snapshot: Snapshot,
    /// The log's header.
    pub facts: Facts,
    /// The number of entries in the log.
    pub entries: u64,
    /// The number of entries that were dropped before they were written, because more came at once than the buffer holds.
    pub lost: u64,
    /// How the log ends.
    pub end: End,
}

/// The kind of end of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Complete: the run ended.
    Whole,
    /// The last frame is complete, but there is no end mark after it: the run is still going, or it crashed.
    Open,
    /// A frame is incomplete or damaged. This frame and everything after it are left out.
    Broken {
        /// The offset in the file, bytes.
        at: u64,
    },
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole => f.write_str("whole"),
            Self::Open => f.write_str("no end mark: the run is still going, or it crashed"),
            Self::Broken { at } => write!(f, "damaged at byte {at}: the rest is ignored"),
        }
    }
}

/// Reads a log. The snapshot contains only the latest `most_entries` entries, but its state is derived from all
/// entries.
///
/// # Errors
/// I/O errors, or if the files are not a log of this version. A log that breaks off is not an error: [`End`] reports
/// it, and so does `plimsoll_log` among the snapshot's settings.
pub fn read(mut input: impl Read, most_entries: usize) -> io::Result<Logged> {
    let mut head = [0; 12];
    input.read_exact(&mut head).map_err(|_| invalid("not a Plimsoll log: shorter than its header"))?;
    let (magic, version) = head.split_at(8);
    if magic != MAGIC {
        return Err(invalid("not a Plimsoll log: its first bytes differ"));
    }
    if version != VERSION.to_le_bytes() {
        return Err(invalid("a log written by another version of Plimsoll: read it with that version"));
    }
    let mut at = head.len() as u64;
    let facts = match frame(&mut input, &mut at)? {
        Next::Frame(FACTS, payload) => facts(&payload),
        _ => None,
    };
    let facts = facts.ok_or_else(|| invalid("the log ends within its header"))?;
    let mut run = Run {
        state: LogState::new(facts.config.clone()),
        known: NameTable { device: facts.device.clone(), ..NameTable::default() },
        latest: VecDeque::new(),
        entries: 0,
        lost: 0,
    };
    let end = loop {
        let begin = at;
        match frame(&mut input, &mut at)? {
            Next::Frame(ENTRIES, payload) => match entries::decode(&payload) {
                Some(frame) if run.known.has_room_for(&frame) => run.add(frame, most_entries),
                _ => break End::Broken { at: begin },
            },
            Next::Frame(END, _) => break End::Whole,
            Next::Nothing => break End::Open,
            Next::Frame(..) | Next::Broken => break End::Broken { at: begin },
        }
    };
    Ok(run.logged(facts, end))
}

fn invalid(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

enum Next {
    /// A frame: its kind and its decompressed payload.
    Frame(u8, Vec<u8>),
    Nothing,
    Broken,
}

/// Reads the next frame. `at` is the frame's offset; if the frame is complete, `at` becomes the offset of the frame's
/// end.
fn frame(input: &mut impl Read, at: &mut u64) -> io::Result<Next> {
    let mut head = Vec::new();
    input.by_ref().take(9).read_to_end(&mut head)?;
    let [kind, a, b, c, d, crc @ ..] = head.as_slice() else {
        return Ok(if head.is_empty() { Next::Nothing } else { Next::Broken });
    };
    let length = u64::from(u32::from_le_bytes([*a, *b, *c, *d]));
    if length > MOST_PAYLOAD_BYTES {
        return Ok(Next::Broken);
    }
    let mut packed = Vec::new();
    input.by_ref().take(length).read_to_end(&mut packed)?;
    if packed.len() as u64 != length || *crc != checksum(*kind, &packed).to_le_bytes() {
        return Ok(Next::Broken);
    }
    let mut payload = Vec::new();
    let unpacked = DeflateDecoder::new(packed.as_slice()).take(MOST_PAYLOAD_BYTES).read_to_end(&mut payload);
    if unpacked.is_err() {
        return Ok(Next::Broken);
    }
    *at += 9 + length;
    Ok(Next::Frame(*kind, payload))
}

fn facts(payload: &[u8]) -> Option<Facts> {
    let mut input = Input(payload);
    Some(Facts {
        config: Config::parse(&input.text()?).ok()?.config,
        device: input.text()?,
        capacity_bytes: input.varint()?,
        limit_bytes: input.varint()?.checked_sub(1),
    })
}

/// The names from the frames.
#[derive(Default)]
struct NameTable {
    device: String,
    labels: BTreeMap<LabelId, String>,
    stacks: BTreeMap<StackId, Vec<Place>>,
}

impl NameTable {
    fn has_room_for(&self, frame: &Frame) -> bool {
        let known = self.labels.len() + self.stacks.len();
        known + frame.labels.len() + frame.stacks.len() <= MOST_NAMES
    }
}

impl Names for NameTable {
    fn label(&self, id: LabelId) -> String {
        self.labels.get(&id).cloned().unwrap_or_default()
    }

    fn places(&self, id: StackId) -> Vec<Place> {
        self.stacks.get(&id).cloned().unwrap_or_default()
    }

    fn device(&self) -> String {
        self.device.clone()
    }
}

/// The content read so far.
struct Run {
    state: LogState,
    known: NameTable,
    latest: VecDeque<Entry>,
    entries: u64,
    lost: u64,
}

impl Run {
    fn add(&mut self, frame: Frame, most_entries: usize) {
        let Frame { lost, labels, stacks, entries } = frame;
        self.known.labels.extend(labels);
        self.known.stacks.extend(stacks);
        self.lost = self.lost.saturating_add(lost);
        self.entries += entries.len() as u64;
        for entry in entries {
            self.state.apply(&entry);
            if self.latest.len() == most_entries {
                self.latest.pop_front();
            }
            if most_entries > 0 {
                self.latest.push_back(entry);
            }
        }
    }

    fn logged(self, facts: Facts, end: End) -> Logged {
        let Run { state, known, latest, entries, lost } = self;
        let dropped = entries - latest.len() as u64;
        let total_bytes = facts.capacity_bytes;
        let recording = Recording {
            segments: state.segments(),
            entries: latest.into(),
            lost: lost.saturating_add(dropped),
            config: facts.config.clone(),
            memory: MemoryInfo { free_bytes: 0, total_bytes },
            limit_bytes: facts.limit_bytes,
        };
        let mut snapshot = own::snapshot(&recording, &known);
        snapshot.settings.push(("plimsoll_log".to_owned(), Setting::Text(end.to_string())));
        Logged { snapshot, facts, entries, lost, end }
    }
}
