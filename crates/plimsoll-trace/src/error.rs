//! Why a snapshot cannot be read: [`SnapshotError`].

use std::fmt;
use std::io;

use crate::pickle::{self, Malformed};
use crate::snapshot::{Key, Kind};

/// Why a snapshot cannot be read: where in the (unpacked) bytes, and what stood there.
#[derive(Debug)]
pub struct SnapshotError {
    /// Bytes from the beginning of the unpacked file, where it is known.
    pub at: Option<u64>,
    /// What stood there.
    pub why: Why,
}

/// What stood there.
#[derive(Debug)]
pub enum Why {
    /// The system's own error, or that of gzip or zstd.
    Io(io::Error),
    /// The file ends in the middle.
    Ends,
    /// The file has no byte.
    Empty,
    /// A text, such as a log, has no letter.
    EmptyText,
    /// Neither a pickle nor JSON, by its first bytes.
    NotASnapshot([u8; 2]),
    /// A named pipe or a device.
    NotAFile,
    /// A text without an out-of-memory message, and what it has instead.
    NoMessage(Absent),
    /// A protocol of pickle that is not 2 to 5.
    Protocol(u8),
    /// A pickle that asks for a Python object by name: what could run code.
    Global(String),
    /// An operation of pickle that no snapshot needs.
    Opcode {
        /// Its byte.
        byte: u8,
        /// Its name in Python's `pickletools`, where it has one.
        name: &'static str,
    },
    /// An operation that takes from an empty stack, or a memo that was never written.
    Broken(&'static str),
    /// A value that cannot stand under a key.
    WrongType {
        /// The key.
        key: Key,
        /// What belongs there.
        expected: &'static str,
        /// What stands there.
        found: &'static str,
    },
    /// A list whose entries are of two kinds.
    Mixed {
        /// What the list began with.
        list: &'static str,
        /// What came then.
        found: &'static str,
    },
    /// An entry without a key that it cannot be understood without.
    Missing {
        /// What kind of entry.
        kind: Kind,
        /// The key.
        key: Key,
    },
    /// A word that PyTorch does not write under this key.
    Word {
        /// The key.
        key: Key,
        /// The word.
        found: String,
    },
    /// A list that stands in two places, so that its entries would be counted twice.
    Twice(&'static str),
    /// The whole is not a snapshot.
    Top(&'static str),
    /// More of something than any snapshot has.
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many are read.
        most: u64,
    },
    /// It unpacks to more memory than a file of its length can be worth.
    TooLarge {
        /// Bytes that reading took.
        heap_bytes: u64,
        /// Bytes that it may take.
        most_bytes: u64,
    },
    /// Text that is not JSON.
    Json(serde_json::Error),
    /// JSON that is not a snapshot's.
    InJson {
        /// The line, from 1.
        line: usize,
        /// The column, from 1.
        column: usize,
        /// What stood there.
        why: Box<Why>,
    },
}

/// What a text has instead of an out-of-memory message of PyTorch's. If it has two of these, the answer names the later one in this list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Absent {
    /// Nothing that is known.
    #[default]
    Nothing,
    /// The system killed a program: `Killed`, or the kernel's or Slurm's line about it.
    Killed,
    /// JAX's message, or another one of XLA's.
    Jax,
}

impl SnapshotError {
    pub(crate) fn at(at: u64, why: Why) -> Self {
        Self { at: Some(at), why }
    }
}

impl From<io::Error> for SnapshotError {
    fn from(why: io::Error) -> Self {
        Self { at: None, why: Why::Io(why) }
    }
}

impl From<Malformed> for Why {
    fn from(why: Malformed) -> Self {
        match why {
            Malformed::Io(why) => Self::Io(why),
            Malformed::Ends => Self::Ends,
            Malformed::Protocol(version) => Self::Protocol(version),
            Malformed::Opcode(byte) => Self::Opcode { byte, name: pickle::opcode_name(byte) },
            Malformed::Broken(how) => Self::Broken(how),
            Malformed::LongText { most } => Self::TooMany { what: "bytes in one text", most },
        }
    }
}

impl std::error::Error for SnapshotError {}

impl std::error::Error for Why {}

impl fmt::Display for SnapshotError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(at) = self.at {
            write!(f, "byte {at}: ")?;
        }
        self.why.fmt(f)
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(why) => why.fmt(f),
            Self::Ends => f.write_str("the file ends in the middle: copy it again, or dump it again"),
            Self::Empty => f.write_str(
                "the file is empty: the dump failed; dump again, with stacks=\"python\" if it crashed",
            ),
            Self::EmptyText => f.write_str(
                "the file is empty: Python writes its errors to standard error, so a log needs both streams, as in \
                 python train.py > train.log 2>&1",
            ),
            Self::NotASnapshot([a, b]) => write!(
                f,
                "not a memory snapshot: it begins with {a:#04x} {b:#04x}, neither a pickle of protocol 2 to 5 \
                 nor JSON; give a file of torch.cuda.memory._dump_snapshot"
            ),
            Self::NotAFile => f.write_str(
                "not a file but a pipe or a device: give its contents on standard input, with `-`",
            ),
            Self::NoMessage(absent) => {
                f.write_str("no out-of-memory message of PyTorch's in this text")?;
                f.write_str(match absent {
                    Absent::Nothing => {
                        ": paste the whole message, which begins with \"CUDA out of memory\", with the traceback above it"
                    }
                    Absent::Killed => {
                        ", but the system killed a program: likely the host ran out of memory, not the GPU. Load data in \
                         smaller pieces, use fewer workers, or give the job more memory; the kernel's log says which \
                         process it was (dmesg)"
                    }
                    Absent::Jax => {
                        ", but RESOURCE_EXHAUSTED, which is JAX's (XLA's): plimsoll does not read JAX's messages, only \
                         PyTorch's"
                    }
                })
            }
            Self::Protocol(version) => write!(
                f,
                "a pickle of protocol {version}; 2 to 5 are read: dump again with a protocol among these"
            ),
            Self::Global(name) => write!(
                f,
                "the pickle asks for the Python object `{name}`, which could run code; a snapshot holds only \
                 dicts, lists, texts and numbers. Nothing was run"
            ),
            Self::Opcode { byte, name } => write!(
                f,
                "the pickle has the operation {name} ({byte:#04x}), which no snapshot needs; is it one of \
                 torch.cuda.memory._dump_snapshot?"
            ),
            Self::Broken(how) => write!(f, "the pickle is damaged: {how}"),
            Self::WrongType { key, expected, found } => {
                write!(f, "`{}` should be {expected}, and is {found}", key.name())
            }
            Self::Mixed { list, found } => write!(f, "{list} goes on with {found}"),
            Self::Missing { kind, key } => write!(f, "a {} without `{}`", kind.name(), key.name()),
            Self::Word { key, found } => write!(f, "`{}` is {found:?}, a word that is not known", key.name()),
            Self::Twice(what) => write!(f, "{what} stands in two places of the file"),
            Self::Top(found) => {
                write!(f, "a snapshot is a dict with `segments` or a list of segments, and this is {found}")
            }
            Self::TooMany { what, most } => write!(f, "more than {most} {what}"),
            Self::TooLarge { heap_bytes, most_bytes } => write!(
                f,
                "the file unpacks to {heap_bytes} bytes of memory and more; for its length {most_bytes} are \
                 granted. If you trust it, unpack it first"
            ),
            Self::Json(why) => write!(f, "not the JSON of a snapshot: {why}"),
            Self::InJson { line, column, why } => write!(f, "line {line}, column {column}: {why}"),
        }
    }
}
