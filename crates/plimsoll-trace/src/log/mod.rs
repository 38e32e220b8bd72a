//! The log of a long run, written during the run in bounded memory and readable after a crash: [`Writer`], [`read`].
//!
//! Note [The log's format]. Version 1; integers of the frame are little-endian, all others LEB128 varints.
//!
//! ```text
//! file    = "PLIMSOLL" version:u32 frame*
//! frame   = kind:u8 length:u32 crc:u32 payload       length of the payload, CRC-32 of kind and payload
//! payload = deflate of the following, by kind
//!   0 facts    settings:text device:text capacity limit+1 (0: none); the first frame, once
//!   1 entries  lost, n label:(id text), n stack:(id n place:(filename:text name:text line)), then n and
//!              twelve columns of n numbers: action, time, address, bytes, stream, pool, pool, category, label,
//!              stack+1, and two that only some actions have; time and address as zigzag differences
//!   2 end      nothing: the run ended as it should
//! text    = length UTF-8
//! ```
//!
//! Each frame of entries is self-contained: it contains the names that it uses, and its differences begin at 0. If a
//! frame is cut off or damaged, this frame and all frames after it are lost, and [`End`] reports this. Entries are
//! stored by column because most columns change little from entry to entry.
//!
//! `entries.rs` has the columns, `read.rs` reads a log, and `state.rs` derives segments and blocks from the entries.
//! This file contains the encoding of frames, and the writer.

mod entries;
mod read;
mod state;

use std::io::{self, Write};

use flate2::Compression;
use flate2::write::DeflateEncoder;
use plimsoll_alloc::{Config, Entry};

pub use read::{End, Logged, read};

use crate::own::Names;

const MAGIC: &[u8; 8] = b"PLIMSOLL";
const VERSION: u32 = 1;
const FACTS: u8 = 0;
const ENTRIES: u8 = 1;
const END: u8 = 2;
/// The most entries of a frame.
const MOST_ENTRIES: usize = 8192;
/// The most bytes of a payload, packed or not: much more than the names of 8192 entries take.
const MOST_PAYLOAD_BYTES: u64 = 8 << 20;
/// The maximum number of different labels and stacks in a log. A log with more of them counts as damaged.
const MOST_NAMES: usize = 1 << 17;
/// A log's first bytes.
pub(crate) const HEAD: &[u8; 4] = b"PLIM";

/// A log's header.
#[derive(Debug, Clone, PartialEq)]
pub struct Facts {
    /// The allocator's options, as far as their string states them.
    pub config: Config,
    /// The device's name.
    pub device: String,
    /// The device's memory, bytes.
    pub capacity_bytes: u64,
    /// The limit on reserved bytes; `None` if there is no limit.
    pub limit_bytes: Option<u64>,
}

/// Writes a log. It buffers no entries: each call writes frames.
///
/// ```
/// use plimsoll_alloc::{Callers, Config, DeviceMemory, HistoryOptions, LabelId, Request, SimDriver, StackId};
/// use plimsoll_trace::log::{self, End, Facts};
/// use plimsoll_trace::own::{Names, Place};
///
/// struct Nameless;
/// impl Names for Nameless {
///     fn label(&self, _: LabelId) -> String {
///         String::new()
///     }
///     fn places(&self, _: StackId) -> Vec<Place> {
///         Vec::new()
///     }
///     fn device(&self) -> String {
///         "sim".to_owned()
///     }
/// }
///
/// let memory = DeviceMemory::new(Config::default(), SimDriver::with_capacity(64 << 20));
/// memory.record_history(HistoryOptions::default(), Callers::AsGiven, Box::new(|| 7));
/// let x = memory.alloc(Request::of(3 << 20))?;
/// let config = Config::default();
/// let facts = Facts { config, device: "sim".to_owned(), capacity_bytes: 64 << 20, limit_bytes: None };
/// let mut writer = log::Writer::new(Vec::new(), &facts)?;
/// let (entries, lost) = memory.take_history();
/// writer.append(&entries, lost, &Nameless)?;
/// let file = writer.end()?;
/// let logged = log::read(file.as_slice(), usize::MAX)?;
/// assert_eq!((logged.end, logged.entries), (End::Whole, 2));
/// assert_eq!(logged.snapshot.segments[0].blocks[0].size, 3 << 20);
/// # memory.free(x);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Writer<W> {
    out: W,
}

impl<W: Write> Writer<W> {
    /// Begins a log.
    ///
    /// # Errors
    /// I/O errors.
    pub fn new(mut out: W, facts: &Facts) -> io::Result<Self> {
        out.write_all(MAGIC)?;
        out.write_all(&VERSION.to_le_bytes())?;
        let mut payload = Vec::new();
        entries::text(&mut payload, &facts.config.to_string());
        entries::text(&mut payload, &facts.device);
        entries::varint(&mut payload, facts.capacity_bytes);
        entries::varint(&mut payload, facts.limit_bytes.map_or(0, |limit| limit.saturating_add(1)));
        let mut writer = Self { out };
        writer.frame(FACTS, &payload)?;
        Ok(writer)
    }

    /// Writes the entries since the last call and passes them to the operating system, so that no entry is lost if the
    /// program crashes. `lost` is the number of entries that were dropped before these entries.
    ///
    /// # Errors
    /// I/O errors.
    pub fn append(&mut self, entries: &[Entry], lost: u64, names: &dyn Names) -> io::Result<()> {
        for (nth, some) in entries.chunks(MOST_ENTRIES).enumerate() {
            let lost = if nth == 0 { lost } else { 0 };
            self.frame(ENTRIES, &entries::encode(some, lost, names))?;
        }
        self.out.flush()
    }

    /// Ends the log and returns its destination.
    ///
    /// # Errors
    /// I/O errors.
    pub fn end(mut self) -> io::Result<W> {
        self.frame(END, &[])?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn frame(&mut self, kind: u8, plain: &[u8]) -> io::Result<()> {
        if plain.len() as u64 > MOST_PAYLOAD_BYTES {
            return Err(io::Error::other("names too long for a log"));
        }
        let mut packed = DeflateEncoder::new(Vec::new(), Compression::fast());
        packed.write_all(plain)?;
        let packed = packed.finish()?;
        let length = u32::try_from(packed.len()).map_err(io::Error::other)?;
        // Written in one call, so that a crash in the middle of a frame is rare.
        let mut frame = Vec::with_capacity(packed.len() + 9);
        frame.push(kind);
        frame.extend(length.to_le_bytes());
        frame.extend(checksum(kind, &packed).to_le_bytes());
        frame.extend(packed);
        self.out.write_all(&frame)
    }
}

fn checksum(kind: u8, payload: &[u8]) -> u32 {
    let mut crc = flate2::Crc::new();
    crc.update(&[kind]);
    crc.update(payload);
    crc.sum()
}
