//! Turns Python's values into the rows of a snapshot, one container at a time: [`Objects`].
//!
//! A dictionary becomes a record at the first key that shows its kind: with the key `action` it becomes a trace entry,
//! with `state` a block, and so on ([`Objects::set`]). Before such a key, and for settings, the dictionary is stored as
//! pairs. A list becomes a stack, or a range of the most recent records ([`Objects::append`]). `fields.rs` has the
//! fields of each record, and `assemble.rs` builds the snapshot.

use std::ops::Range;

use hashbrown::HashMap;
use plimsoll_alloc::PoolId;

use super::value::Value;
use crate::error::Why;
use crate::grant::Grant;
use crate::pickle::{Builder, Scalar, Slot};
use crate::snapshot::{
    Action, Annotation, Block, CategoryId, Event, Frame, FrameId, Key, KeySet, Kind, Segment, Snapshot,
    StackId, TextId,
};

/// The records made so far, and the open containers.
pub(crate) struct Objects {
    /// The limit on the memory for reading.
    grant: Grant,
    /// The snapshot being built: strings, stacks, pools and facts.
    pub(super) snapshot: Snapshot,
    pub(super) segments: Vec<Segment>,
    pub(super) blocks: Vec<Block>,
    /// Which blocks are already part of a segment.
    pub(super) taken_blocks: Vec<bool>,
    pub(super) histories: Vec<History>,
    pub(super) events: Vec<Event>,
    pub(super) annotations: Vec<Annotation>,
    pub(super) lists: Vec<List>,
    pub(super) dicts: Vec<Vec<(TextId, Value)>>,
    pub(super) growing: Vec<Growing>,
    pub(super) incomplete: Vec<Incomplete>,
    /// The id of the first action's name. The ids of the other actions' names follow.
    pub(super) first_action: TextId,
    /// The categories that events name, with the indices assigned so far.
    pub(super) named_categories: HashMap<TextId, CategoryId>,
    /// The frames parsed from the strings in `forward_frames`.
    pub(super) forward_frames: HashMap<TextId, Option<FrameId>>,
}

/// A record that is incomplete so far, because its dictionary is written in several parts.
pub(super) struct Incomplete {
    pub(super) kind: Kind,
    pub(super) at: u32,
    pub(super) missing: KeySet,
}

/// An entry of a block's history. Old files have this instead of the block's own stack.
#[derive(Clone, Copy)]
pub(super) struct History {
    pub(super) real_size: u64,
    pub(super) stack: Option<StackId>,
}

/// A list that is not a stack.
#[derive(Clone)]
pub(super) enum List {
    Segments(Range<u32>),
    Blocks(Range<u32>),
    Events(Range<u32>),
    Annotations(Range<u32>),
    /// The entries of a block's history, given by the number of the first.
    Histories(u32),
    Lists(Vec<Value>),
    Texts(Vec<TextId>),
    /// Strings that were already converted to the stack of a forward operator.
    Forward(Option<StackId>),
    /// A list whose entries were moved into a record, and cannot be moved again.
    Taken,
}

/// A stack written in several parts: its frames, and its id once it is used.
#[derive(Default)]
pub(super) struct Growing {
    frames: Vec<FrameId>,
    id: Option<StackId>,
}

/// Converts a record's index to 32 bits. A trace with 2^32 entries would be an 80 GB file.
pub(super) fn number(index: usize, what: &'static str) -> Result<u32, Why> {
    u32::try_from(index).map_err(|_| Why::TooMany { what, most: u64::from(u32::MAX) })
}

pub(super) fn ids_ran_out(what: &'static str) -> Why {
    Why::TooMany { what, most: u64::from(u32::MAX) }
}

pub(super) fn too_many_categories() -> Why {
    Why::TooMany { what: "categories", most: u64::from(u16::MAX) }
}

impl Objects {
    /// Creates an empty set of records. `grant` limits the memory for the records.
    pub(crate) fn new(grant: &Grant) -> Result<Self, Why> {
        let mut snapshot = Snapshot::default();
        let mut first = None;
        for action in Action::ALL {
            let id = snapshot.texts.intern(action.name()).ok_or_else(|| ids_ran_out("texts"))?;
            first.get_or_insert(id);
        }
        Ok(Self {
            grant: grant.clone(),
            snapshot,
            segments: Vec::new(),
            blocks: Vec::new(),
            taken_blocks: Vec::new(),
            histories: Vec::new(),
            events: Vec::new(),
            annotations: Vec::new(),
            lists: Vec::new(),
            dicts: Vec::new(),
            growing: Vec::new(),
            incomplete: Vec::new(),
            first_action: first.ok_or_else(|| ids_ran_out("texts"))?,
            named_categories: HashMap::new(),
            forward_frames: HashMap::new(),
        })
    }
}

/// A snapshot names no Python objects, so no object is known.
impl Builder for Objects {
    type Value = Value;
    type Error = Why;

    /// `fx_original_trace` is the longest string that PyTorch writes.
    const LONGEST_TEXT_BYTES: u64 = 16 << 20;

    #[inline]
    fn scalar(&mut self, scalar: Scalar) -> Value {
        match scalar {
            Scalar::None => Value::None,
            Scalar::Bool(on) => Value::Bool(on),
            Scalar::Int(number) => Value::Int(number),
            Scalar::Big(number) => Value::Big(number),
            Scalar::Float(number) => Value::Float(number),
            Scalar::Opaque => Value::Opaque,
        }
    }

    fn text(&mut self, bytes: &[u8]) -> Result<Value, Why> {
        self.snapshot.texts.intern_bytes(bytes).map(Value::Text).ok_or_else(|| ids_ran_out("texts"))
    }

    /// The only tuples that are used are pools, which are pairs of integers.
    fn tuple(&mut self, items: &[Value]) -> Result<Value, Why> {
        let [first, second] = items else { return Ok(Value::Opaque) };
        let (Some(first), Some(second)) = (natural(*first), natural(*second)) else {
            return Ok(Value::Opaque);
        };
        let pool = self.snapshot.pools.intern(PoolId(first, second));
        pool.map(Value::Pool).ok_or_else(|| ids_ran_out("pools"))
    }

    #[inline]
    fn list(&mut self) -> Value {
        Value::EmptyList(Slot::NONE)
    }

    #[inline]
    fn dict(&mut self) -> Value {
        Value::EmptyDict(Slot::NONE)
    }

    fn append(&mut self, list: Value, items: &[Value]) -> Result<Value, Why> {
        let Some(&first) = items.first() else { return Ok(list) };
        match list {
            Value::EmptyList(slot) => self.begin_list(slot, first, items),
            Value::Stack(id, slot) => {
                let at = number(self.growing.len(), "stacks in pieces")?;
                let frames = self.snapshot.stacks.frame_ids(id).collect();
                self.growing.push(Growing { frames, id: None });
                self.grow(at, items)?;
                Ok(Value::Growing(at, slot))
            }
            Value::Growing(at, _) => {
                self.grow(at, items)?;
                Ok(list)
            }
            Value::List(at, _) => {
                self.extend_list(at, items)?;
                Ok(list)
            }
            Value::Opaque => Ok(list),
            other => Err(Why::Mixed { list: "the list that entries are added to", found: other.what() }),
        }
    }

    fn set(&mut self, dict: Value, items: &[Value]) -> Result<Value, Why> {
        match dict {
            Value::EmptyDict(slot) => match deciding(items) {
                Some(Kind::Frame) => match self.whole_frame(items)? {
                    Some(frame) => Ok(Value::Frame(frame, slot)),
                    None => self.keep(slot, items),
                },
                Some(kind) => self.record(kind, items),
                None => self.keep(slot, items),
            },
            Value::Dict(at, slot) => self.keep_more(at, slot, items),
            Value::Frame(id, slot) => {
                let mut frame = *self.snapshot.stacks.get_frame(id);
                for pair in items.chunks_exact(2) {
                    self.set_frame(&mut frame, pair[0], pair[1])?;
                }
                Ok(Value::Frame(self.frame(frame)?, slot))
            }
            record @ (Value::Segment(_)
            | Value::Block(_)
            | Value::History(_)
            | Value::Event(_)
            | Value::Annotation(_)) => {
                self.set_more(record, items)?;
                Ok(record)
            }
            Value::Opaque => Ok(dict),
            other => Err(Why::Mixed { list: "the dict that keys are set in", found: other.what() }),
        }
    }

    fn text_of(&self, value: Value) -> Option<String> {
        match value {
            Value::Text(text) => Some(self.word(text).chars().take(200).collect()),
            _ => None,
        }
    }

    fn global(&mut self, module: &str, name: &str) -> Result<Value, Why> {
        Err(Why::Global(format!("{module}.{name}")))
    }

    #[inline]
    fn slot(value: Value) -> Slot {
        value.slot()
    }

    #[inline]
    fn kept(value: Value, slot: Slot) -> Value {
        value.kept(slot)
    }

    fn account(&mut self, reader_bytes: usize) -> Result<(), Why> {
        self.grant.check((reader_bytes + self.heap_bytes()) as u64)
    }
}

impl Objects {
    /// Begins a list. Its first entry decides the kind of list.
    fn begin_list(&mut self, slot: Slot, first: Value, items: &[Value]) -> Result<Value, Why> {
        let list = match first {
            Value::Frame(..) => {
                let id = self.snapshot.stacks.stack_of(items, |&item| match item {
                    Value::Frame(frame, _) => Some(frame),
                    _ => None,
                });
                let id = id.map_err(|item| Why::Mixed { list: "a list of frames", found: item.what() })?;
                let id = id.ok_or_else(|| ids_ran_out("stacks"))?;
                return Ok(Value::Stack(id, slot));
            }
            Value::Int(_) | Value::Big(_) if items.len() == 2 => return self.tuple(items),
            Value::Segment(at) => List::Segments(at..at),
            Value::Block(at) => List::Blocks(at..at),
            Value::Event(at) => List::Events(at..at),
            Value::Annotation(at) => List::Annotations(at..at),
            Value::History(at) => List::Histories(at),
            Value::Text(_) => List::Texts(Vec::new()),
            Value::EmptyList(_) | Value::List(..) => List::Lists(Vec::new()),
            _ => return Ok(Value::Opaque),
        };
        let at = number(self.lists.len(), "lists")?;
        self.lists.push(list);
        self.extend_list(at, items)?;
        Ok(Value::List(at, slot))
    }

    fn grow(&mut self, at: u32, items: &[Value]) -> Result<(), Why> {
        let Some(growing) = self.growing.get_mut(at as usize).filter(|growing| growing.id.is_none()) else {
            return Err(Why::Broken("a list of frames grows after it was used"));
        };
        for &item in items {
            let Value::Frame(frame, _) = item else {
                return Err(Why::Mixed { list: "a list of frames", found: item.what() });
            };
            growing.frames.push(frame);
        }
        Ok(())
    }

    /// The id of a stack that was written in parts. After this, it cannot grow.
    pub(super) fn settle(&mut self, at: u32) -> Result<StackId, Why> {
        let growing = &mut self.growing[at as usize];
        if let Some(id) = growing.id {
            return Ok(id);
        }
        let frames = std::mem::take(&mut growing.frames);
        let id = self.snapshot.stacks.stack(&frames).ok_or_else(|| ids_ran_out("stacks"))?;
        growing.id = Some(id);
        Ok(id)
    }

    fn extend_list(&mut self, at: u32, items: &[Value]) -> Result<(), Why> {
        let Self { lists, segments, blocks, events, annotations, .. } = self;
        let list = &mut lists[at as usize];
        for &item in items {
            match (&mut *list, item) {
                (List::Segments(range), Value::Segment(at)) => extend_once(range, segments, at, "a segment")?,
                (List::Blocks(range), Value::Block(at)) => extend_once(range, blocks, at, "a block")?,
                (List::Events(range), Value::Event(at)) => extend(range, events, at)?,
                (List::Annotations(range), Value::Annotation(at)) => extend(range, annotations, at)?,
                (List::Histories(_), Value::History(_)) => {}
                (List::Lists(lists), Value::EmptyList(_) | Value::List(..)) => lists.push(item),
                (List::Texts(texts), Value::Text(text)) => texts.push(text),
                (list, _) => return Err(Why::Mixed { list: list.what(), found: item.what() }),
            }
        }
        Ok(())
    }

    pub(super) fn frame(&mut self, frame: Frame) -> Result<FrameId, Why> {
        self.snapshot.stacks.frame(frame).ok_or_else(|| ids_ran_out("frames"))
    }

    /// Stores a dictionary as pairs.
    fn keep(&mut self, slot: Slot, items: &[Value]) -> Result<Value, Why> {
        let at = number(self.dicts.len(), "dicts")?;
        let mut pairs = Vec::with_capacity(items.len() / 2);
        push_pairs(&mut pairs, items)?;
        self.dicts.push(pairs);
        Ok(Value::Dict(at, slot))
    }

    /// Adds pairs to a dictionary. The pairs become a record once a key shows its kind.
    fn keep_more(&mut self, at: u32, slot: Slot, items: &[Value]) -> Result<Value, Why> {
        let decided = deciding(items);
        let pairs = &mut self.dicts[at as usize];
        push_pairs(pairs, items)?;
        let is_frame = |pairs: &[(TextId, Value)]| {
            [Key::Filename, Key::Name, Key::Line]
                .iter()
                .all(|&key| pairs.iter().any(|(text, _)| Key::of(*text) == Some(key)))
        };
        let kind = match decided {
            Some(kind) if kind != Kind::Frame => kind,
            // A frame is complete once it has its three keys. There are few pairs, so this check is cheap.
            _ if pairs.len() < 16 && is_frame(pairs) => Kind::Frame,
            _ => return Ok(Value::Dict(at, slot)),
        };
        let pairs = std::mem::take(pairs);
        let items: Vec<Value> =
            pairs.into_iter().flat_map(|(key, value)| [Value::Text(key), value]).collect();
        let made = self.set(Value::EmptyDict(slot), &items)?;
        debug_assert!(kind == Kind::Frame || !matches!(made, Value::Dict(..)));
        Ok(made)
    }

    /// The heap memory that the records use, in bytes.
    fn heap_bytes(&self) -> usize {
        let Self { snapshot, segments, blocks, histories, events, annotations, .. } = self;
        snapshot.texts.heap_bytes()
            + snapshot.stacks.heap_bytes()
            + segments.capacity() * size_of::<Segment>()
            // Blocks are counted twice, because each segment has its own copy of its blocks.
            + blocks.capacity() * 2 * size_of::<Block>()
            + self.taken_blocks.capacity()
            + histories.capacity() * size_of::<History>()
            + events.capacity() * size_of::<Event>()
            + annotations.capacity() * size_of::<Annotation>()
            + self.lists.capacity() * size_of::<List>()
            // Usually, each dictionary has one or two pairs; incomplete records are short-lived.
            + self.dicts.capacity() * 4 * size_of::<(TextId, Value)>()
            + self.growing.capacity() * size_of::<Growing>()
            + self.forward_frames.capacity() * 16
    }
}

impl List {
    fn what(&self) -> &'static str {
        match self {
            Self::Segments(_) => "a list of segments",
            Self::Blocks(_) => "a list of blocks",
            Self::Events(_) => "a list of trace entries",
            Self::Annotations(_) => "a list of annotations",
            Self::Histories(_) => "a history",
            Self::Lists(_) => "a list of lists",
            Self::Texts(_) | Self::Forward(_) => "a list of texts",
            Self::Taken => "a list that was used already",
        }
    }
}

/// Appends a record to a list, which is stored as a range: the record must have been created right after the last
/// record of the list. Rejects a record that is in a list twice. Otherwise a two-byte pickle memo reference would be
/// enough to copy the record with all its blocks.
fn extend_once<T>(range: &mut Range<u32>, records: &[T], at: u32, what: &'static str) -> Result<(), Why> {
    if at != range.end || at as usize >= records.len() {
        return Err(Why::Twice(what));
    }
    range.end = number(range.end as usize + 1, "records")?;
    Ok(())
}

/// Appends a record to a list, which is stored as a range. Records are created in the order of their list; a record
/// that is in a list twice is copied.
fn extend<T: Clone>(range: &mut Range<u32>, records: &mut Vec<T>, at: u32) -> Result<(), Why> {
    if at != range.end {
        let Some(record) = records.get(at as usize).filter(|_| range.end as usize == records.len()) else {
            return Err(Why::Twice("an entry of a list"));
        };
        records.push(record.clone());
    }
    range.end = number(range.end as usize + 1, "records")?;
    Ok(())
}

/// The kind of record, judged by the first key that shows a kind.
fn deciding(items: &[Value]) -> Option<Kind> {
    items.iter().step_by(2).find_map(|&key| match key {
        Value::Text(text) => match Key::of(text)? {
            Key::Action => Some(Kind::Event),
            Key::TotalSize | Key::Blocks => Some(Kind::Segment),
            Key::State => Some(Kind::Block),
            Key::RealSize => Some(Kind::History),
            Key::Stage => Some(Kind::Annotation),
            Key::Filename => Some(Kind::Frame),
            _ => None,
        },
        _ => None,
    })
}

fn push_pairs(pairs: &mut Vec<(TextId, Value)>, items: &[Value]) -> Result<(), Why> {
    for pair in items.chunks_exact(2) {
        let Value::Text(key) = pair[0] else {
            return Err(Why::Broken("a dict has a key that is not a string"));
        };
        pairs.push((key, pair[1]));
    }
    Ok(())
}

/// A non-negative integer.
pub(super) fn natural(value: Value) -> Option<u64> {
    match value {
        Value::Int(number) => u64::try_from(number).ok(),
        Value::Big(number) => Some(number),
        _ => None,
    }
}

/// The keys that a record of this kind must have; an `oom` has no `addr`.
pub(super) const fn required(kind: Kind) -> KeySet {
    match kind {
        Kind::Segment => {
            KeySet::of(&[Key::Address, Key::TotalSize, Key::Stream, Key::SegmentType, Key::Blocks])
        }
        Kind::Block => KeySet::of(&[Key::Size, Key::State]),
        Kind::History => KeySet::of(&[Key::RealSize]),
        Kind::Event => KeySet::of(&[Key::Action, Key::Addr, Key::Size, Key::Stream]),
        Kind::Annotation => KeySet::of(&[Key::Name, Key::Stage]),
        Kind::Frame | Kind::Snapshot => KeySet::EMPTY,
    }
}
