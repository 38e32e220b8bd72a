//! Why a snapshot cannot be read: [`SnapshotError`].

use std::fmt;
use std::io;

use crate::pickle::{self, Malformed};
use crate::snapshot::{Key, Kind};

/// Why a snapshot cannot be read: the position in the (unpacked) bytes, and the problem there.
#[derive(Debug)]
pub struct SnapshotError {
    /// The offset in the unpacked file, if known.
    pub at: Option<u64>,
    /// The problem.
    pub why: Why,
}

/// The problem with a file.
#[derive(Debug)]
pub enum Why {
    /// An I/O error, or an error from gzip or zstd.
    Io(io::Error),
    /// The file ends too early.
    Ends,
    /// The file is empty.
    Empty,
    /// A text file, such as a log, that contains no letter.
    EmptyText,
    /// Neither a pickle nor JSON, according to its first bytes.
    NotASnapshot([u8; 2]),
    /// A named pipe or a device.
    NotAFile,
    /// A text without an out-of-memory message. Contains the signs of another failure that were found in the text.
    NoMessage(Absent),
    /// A pickle protocol other than 2 to 5.
    Protocol(u8),
    /// A pickle that names a Python object: loading the object could run code.
    Global(String),
    /// A pickle operation that no snapshot needs.
    Opcode {
        /// The byte of the operation.
        byte: u8,
        /// The name of the operation in Python's `pickletools`; empty if it has no name.
        name: &'static str,
    },
    /// An operation that pops from an empty stack, or reads a memo entry that was never written.
    Broken(&'static str),
    /// A value of the wrong type for its key.
    WrongType {
        /// The key.
        key: Key,
        /// The expected type.
        expected: &'static str,
        /// The type found.
        found: &'static str,
    },
    /// A list whose entries are of two kinds.
    Mixed {
        /// The kind of the first entries.
        list: &'static str,
        /// The kind of the entry that differs.
        found: &'static str,
    },
    /// An entry that lacks a required key.
    Missing {
        /// The kind of entry.
        kind: Kind,
        /// The key.
        key: Key,
    },
    /// A word that PyTorch never writes under this key.
    Word {
        /// The key.
        key: Key,
        /// The word.
        found: String,
    },
    /// A list that is used in two places, so that its entries would be counted twice.
    Twice(&'static str),
    /// The outermost value is not a snapshot.
    Top(&'static str),
    /// More items of one kind than any snapshot has.
    TooMany {
        /// The kind of item.
        what: &'static str,
        /// The maximum number of items that are read.
        most: u64,
    },
    /// The file unpacks to more memory than is allowed for a file of its length.
    TooLarge {
        /// The bytes that were needed for reading.
        heap_bytes: u64,
        /// The bytes that are allowed for reading.
        most_bytes: u64,
    },
    /// Text that is not JSON.
    Json(serde_json::Error),
    /// JSON that is not a snapshot.
    InJson {
        /// The line, from 1.
        line: usize,
        /// The column, from 1.
        column: usize,
        /// The problem there.
        why: Box<Why>,
    },
}

/// The sign of a failure in a text that has no out-of-memory message from PyTorch. If a text contains several of these
/// signs, the last in this list counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Absent {
    /// Nothing that we recognise.
    #[default]
    Nothing,
    /// NCCL's watchdog ended a rank.
    Watchdog,
    /// The system killed a program: `Killed`, or a line of Linux or Slurm about this.
    Killed,
    /// A `DataLoader`'s worker found no room in shared memory.
    SharedMemory,
    /// The GPU or its context was lost.
    Lost,
    /// A GPU kernel accessed memory that does not belong to it.
    Illegal,
    /// An assertion in a GPU kernel failed.
    Assert,
    /// A message from JAX, or another message from XLA.
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
            Malformed::LongText { most } => Self::TooMany { what: "bytes in one string", most },
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
            Self::Ends => f.write_str("the file is truncated: copy it again, or dump it again"),
            Self::Empty => f.write_str(
                "the file is empty: the dump failed; dump again, and if the program crashed in the dump, record with \
                 stacks=\"python\"",
            ),
            Self::EmptyText => f.write_str(
                "the file is empty: Python writes its errors to standard error, so a log needs both streams, as in \
                 python train.py > train.log 2>&1",
            ),
            Self::NotASnapshot([a, b]) => write!(
                f,
                "not a memory snapshot: it begins with {a:#04x} {b:#04x}, neither a pickle of protocol 2 to 5 \
                 nor JSON; pass a file that torch.cuda.memory._dump_snapshot wrote"
            ),
            Self::NotAFile => f.write_str(
                "not a file but a pipe or a device: pass its contents on standard input, with `-`",
            ),
            Self::NoMessage(absent) => {
                f.write_str("no PyTorch out-of-memory message in this text")?;
                f.write_str(match absent {
                    Absent::Nothing => {
                        ": paste the whole message, which begins with \"CUDA out of memory\", with the traceback above it"
                    }
                    Absent::Killed => {
                        ", but the system killed a program: likely the host ran out of memory, not the GPU. Load data in \
                         smaller pieces, use fewer workers, or give the job more memory; the kernel's log says which \
                         process it was (dmesg)"
                    }
                    Absent::SharedMemory => {
                        ", but shared memory (/dev/shm) of the host is used up: DataLoader workers pass their batches through it. \
                         In a container give it more: docker run --shm-size=16g or --ipc=host, in Compose shm_size or \
                         ipc: host, in Kubernetes an emptyDir with medium: Memory at /dev/shm. Or use fewer workers \
                         (num_workers=0 needs none); df -h /dev/shm shows its size"
                    }
                    Absent::Watchdog => {
                        ", but NCCL's watchdog ended a rank: a collective waited too long. Look at the first rank that \
                         failed: memory is the cause only if that rank ran out. If none failed, a rank hung or called \
                         a different collective: TORCH_NCCL_TRACE_BUFFER_SIZE=2000 records the calls"
                    }
                    Absent::Lost => {
                        ", but the GPU's context was lost; a lack of memory was not the cause: restart the process; \
                         the kernel's log (dmesg | grep Xid) says whether the hardware failed"
                    }
                    Absent::Illegal => {
                        ", but a kernel accessed memory that is not its own (illegal memory access); a lack of memory \
                         was not the cause: CUDA_LAUNCH_BLOCKING=1 names the call, and compute-sanitizer names the kernel"
                    }
                    Absent::Assert => {
                        ", but an assertion in a kernel failed (device-side assert); a lack of memory was not the \
                         cause: most often an index or a label is out of range; CUDA_LAUNCH_BLOCKING=1 names the line"
                    }
                    Absent::Jax => {
                        ", but RESOURCE_EXHAUSTED, which is JAX's (XLA's): plimsoll does not read JAX's messages, only \
                         PyTorch's"
                    }
                })
            }
            Self::Protocol(version) => write!(
                f,
                "pickle protocol {version} is not supported: dump again with protocol 2 to 5"
            ),
            Self::Global(name) => write!(
                f,
                "the pickle asks for the Python object `{name}`, which could run code; a snapshot holds only \
                 dicts, lists, strings and numbers. Nothing was run"
            ),
            Self::Opcode { byte, name } => write!(
                f,
                "the pickle has the operation {name} ({byte:#04x}), which no snapshot needs; did \
                 torch.cuda.memory._dump_snapshot write it?"
            ),
            Self::Broken(how) => write!(f, "the pickle is damaged: {how}"),
            Self::WrongType { key, expected, found } => {
                write!(f, "`{}` should be {expected}, but is {found}", key.name())
            }
            Self::Mixed { list, found } => write!(f, "{list} also contains {found}"),
            Self::Missing { kind, key } => write!(f, "a {} without `{}`", kind.name(), key.name()),
            Self::Word { key, found } => write!(f, "`{}` has the unknown value {found:?}", key.name()),
            Self::Twice(what) => write!(f, "{what} appears twice in the file"),
            Self::Top(found) => {
                write!(f, "a snapshot is a dict with `segments` or a list of segments, but this is {found}")
            }
            Self::TooMany { what, most } => write!(f, "more than {most} {what}"),
            Self::TooLarge { heap_bytes, most_bytes } => write!(
                f,
                "unpacking the file takes more than {heap_bytes} bytes of memory; for a file of this length {most_bytes} are \
                 allowed. If you trust it, unpack it first"
            ),
            Self::Json(why) => write!(f, "not the JSON of a snapshot: {why}"),
            Self::InJson { line, column, why } => write!(f, "line {line}, column {column}: {why}"),
        }
    }
}
