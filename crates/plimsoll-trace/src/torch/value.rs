//! A value on the reader's stack and in its memo: [`Value`], 16 bytes.

use crate::error::Why;
use crate::pickle::Slot;
use crate::snapshot::{FrameId, Key, PoolIndex, StackId, TextId};

/// A value in a snapshot that is still being read. A container is turned into a record of the snapshot as soon as its keys show
/// its kind, so a value is either an integer, or the index of a record.
#[derive(Clone, Copy)]
pub(crate) enum Value {
    None,
    Bool(bool),
    Int(i64),
    /// An integer above the range of `i64`.
    Big(u64),
    Float(f64),
    Text(TextId),
    Pool(PoolIndex),
    /// A value that no key uses: bytes, sets, tuples, integers beyond 64 bits, lists of any of these.
    Opaque,
    EmptyList(Slot),
    EmptyDict(Slot),
    Frame(FrameId, Slot),
    Stack(StackId, Slot),
    /// A stack that is written in several parts.
    Growing(u32, Slot),
    /// Another kind of list, in `Objects::lists`.
    List(u32, Slot),
    /// A dictionary whose kind is not known (yet), in `Objects::dicts`.
    Dict(u32, Slot),
    Segment(u32),
    Block(u32),
    History(u32),
    Event(u32),
    Annotation(u32),
}

const _: () = assert!(size_of::<Value>() == 16, "a value is copied often");

impl Value {
    /// The memo index of this container.
    pub(crate) fn slot(self) -> Slot {
        match self {
            Self::EmptyList(slot)
            | Self::EmptyDict(slot)
            | Self::Frame(_, slot)
            | Self::Stack(_, slot)
            | Self::Growing(_, slot)
            | Self::List(_, slot)
            | Self::Dict(_, slot) => slot,
            _ => Slot::NONE,
        }
    }

    /// The value with a memo index.
    pub(crate) fn kept(self, slot: Slot) -> Self {
        match self {
            Self::EmptyList(_) => Self::EmptyList(slot),
            Self::EmptyDict(_) => Self::EmptyDict(slot),
            Self::Frame(id, _) => Self::Frame(id, slot),
            Self::Stack(id, _) => Self::Stack(id, slot),
            Self::Growing(at, _) => Self::Growing(at, slot),
            Self::List(at, _) => Self::List(at, slot),
            Self::Dict(at, _) => Self::Dict(at, slot),
            other => other,
        }
    }

    /// The name of the kind of value, for an error.
    pub(crate) fn what(self) -> &'static str {
        match self {
            Self::None => "None",
            Self::Bool(_) => "a bool",
            Self::Int(_) => "an integer",
            Self::Big(_) => "an integer past 63 bits",
            Self::Float(_) => "a float",
            Self::Text(_) => "a text",
            Self::Pool(_) => "a pair of integers",
            Self::Opaque => "an unexpected value",
            Self::EmptyList(_) => "an empty list",
            Self::EmptyDict(_) => "an empty dict",
            Self::Frame(..) => "a frame",
            Self::Stack(..) | Self::Growing(..) => "a list of frames",
            Self::List(..) => "a list",
            Self::Dict(..) => "a dict",
            Self::Segment(_) => "a segment",
            Self::Block(_) => "a block",
            Self::History(_) => "a history entry",
            Self::Event(_) => "a trace entry",
            Self::Annotation(_) => "an annotation",
        }
    }
}

/// The error for a value whose type is wrong for its key.
pub(super) fn wrong(key: Key, expected: &'static str, found: Value) -> Why {
    Why::WrongType { key, expected, found: found.what() }
}
