//! The fields of each record: which values are allowed, and which are required.

use plimsoll_alloc::{Addr, StreamId};

use super::objects::{
    History, Incomplete, List, Objects, ids_ran_out, natural, number, required, too_many_categories,
};
use super::value::{Value, wrong};
use crate::error::Why;
use crate::snapshot::{
    Action, Annotation, Block, BlockState, CategoryId, Event, Frame, FrameId, Fx, Key, KeySet, Kind,
    MaybeU64, PoolIndex, Segment, SegmentType, StackId, Stage, TextId,
};

/// The maximum number of incomplete records, which is the nesting depth of dictionaries; a snapshot has four levels.
const MOST_INCOMPLETE: usize = 64;

fn whole(key: Key, value: Value) -> Result<u64, Why> {
    natural(value).ok_or_else(|| wrong(key, "a non-negative integer", value))
}

fn optional(key: Key, value: Value) -> Result<MaybeU64, Why> {
    if matches!(value, Value::None) { Ok(MaybeU64::ABSENT) } else { whole(key, value).map(MaybeU64::from) }
}

fn device(value: Value) -> Result<Option<i32>, Why> {
    match value {
        Value::Int(device) if (-1..=i64::from(i16::MAX)).contains(&device) => Ok(Some(device as i32)),
        _ => Err(wrong(Key::Device, "a device's number", value)),
    }
}

fn text(key: Key, value: Value) -> Result<Option<TextId>, Why> {
    match value {
        Value::Text(text) => Ok(Some(text)),
        Value::None => Ok(None),
        _ => Err(wrong(key, "a text", value)),
    }
}

fn pool(key: Key, value: Value) -> Result<Option<PoolIndex>, Why> {
    match value {
        Value::Pool(pool) => Ok(Some(pool)),
        _ => Err(wrong(key, "a pair of integers", value)),
    }
}

impl Objects {
    /// Makes an empty record of this kind.
    pub(super) fn begin_record(&mut self, kind: Kind) -> Result<Value, Why> {
        let (addr, stream) = (Addr(0), StreamId(0));
        Ok(match kind {
            Kind::Event => {
                self.events.push(Event::new(Action::Snapshot, addr, 0, stream));
                Value::Event(number(self.events.len() - 1, "trace entries")?)
            }
            Kind::Block => {
                self.blocks.push(Block {
                    address: Addr(u64::MAX),
                    size: 0,
                    requested_size: MaybeU64::ABSENT,
                    state: BlockState::Inactive,
                    stack: None,
                });
                Value::Block(number(self.blocks.len() - 1, "blocks")?)
            }
            Kind::Segment => {
                self.segments.push(Segment {
                    device: None,
                    address: addr,
                    total_size: 0,
                    allocated_size: MaybeU64::ABSENT,
                    active_size: MaybeU64::ABSENT,
                    requested_size: MaybeU64::ABSENT,
                    stream,
                    segment_type: SegmentType::Small,
                    pool: None,
                    is_expandable: None,
                    stack: None,
                    blocks: Vec::new(),
                });
                Value::Segment(number(self.segments.len() - 1, "segments")?)
            }
            Kind::History => {
                self.histories.push(History { real_size: 0, stack: None });
                Value::History(number(self.histories.len() - 1, "history entries")?)
            }
            Kind::Annotation | Kind::Frame | Kind::Snapshot => {
                self.annotations.push(Annotation {
                    name: self.first_action,
                    stage: Stage::Start,
                    device: None,
                    time_us: MaybeU64::ABSENT,
                });
                Value::Annotation(number(self.annotations.len() - 1, "annotations")?)
            }
        })
    }

    /// Makes a record of this kind with these fields.
    pub(super) fn record(&mut self, kind: Kind, items: &[Value]) -> Result<Value, Why> {
        let record = self.begin_record(kind)?;
        let (kind, at, set) = self.set_fields(record, items)?;
        self.complete(kind, at, required(kind), set)?;
        Ok(record)
    }

    /// Sets more fields of a record.
    pub(super) fn set_more(&mut self, record: Value, items: &[Value]) -> Result<(), Why> {
        let (kind, at, set) = self.set_fields(record, items)?;
        let waiting = self.incomplete.iter().rposition(|waiting| waiting.kind == kind && waiting.at == at);
        let missing = waiting.map(|waiting| self.incomplete.swap_remove(waiting).missing);
        self.complete(kind, at, missing.unwrap_or_default(), set)
    }

    /// Sets fields. Returns the kind and number of the record, and the keys that were set.
    fn set_fields(&mut self, record: Value, items: &[Value]) -> Result<(Kind, u32, KeySet), Why> {
        let (kind, at) = match record {
            Value::Event(at) => (Kind::Event, at),
            Value::Block(at) => (Kind::Block, at),
            Value::Segment(at) => (Kind::Segment, at),
            Value::History(at) => (Kind::History, at),
            Value::Annotation(at) => (Kind::Annotation, at),
            _ => return Err(Why::Broken("keys are set on a value that is not a record")),
        };
        let mut set = KeySet::EMPTY;
        for pair in items.chunks_exact(2) {
            let Value::Text(text) = pair[0] else {
                return Err(Why::Broken("a dict has a key that is not a string"));
            };
            let known = match Key::of(text) {
                Some(key) => self.set_field(kind, at as usize, key, pair[1])?.then_some(key),
                None => None,
            };
            match known {
                Some(key) => set.insert(key),
                None => self.snapshot.facts.ignore(kind, text),
            }
        }
        self.snapshot.facts.see(kind, set);
        Ok((kind, at, set))
    }

    /// Records which required keys a record still lacks, so that [`Self::all_complete`] can report them.
    fn complete(&mut self, kind: Kind, at: u32, needed: KeySet, set: KeySet) -> Result<(), Why> {
        let mut missing = needed.without(set);
        if kind == Kind::Event && self.events[at as usize].action == Action::Oom {
            missing = missing.without(KeySet::of(&[Key::Addr]));
        }
        if !missing.is_empty() {
            self.incomplete.push(Incomplete { kind, at, missing });
            if self.incomplete.len() > MOST_INCOMPLETE {
                return self.all_complete();
            }
        }
        Ok(())
    }

    /// Returns an error with the first missing key, if a key is missing.
    pub(super) fn all_complete(&self) -> Result<(), Why> {
        match self.incomplete.first().and_then(|record| Some((record.kind, record.missing.iter().next()?))) {
            Some((kind, key)) => Err(Why::Missing { kind, key }),
            None => Ok(()),
        }
    }

    /// Sets one field. Returns `false` if this kind of record has no such key.
    fn set_field(&mut self, kind: Kind, at: usize, key: Key, value: Value) -> Result<bool, Why> {
        match kind {
            Kind::Event => self.set_event(at, key, value),
            Kind::Block => self.set_block(at, key, value),
            Kind::Segment => self.set_segment(at, key, value),
            Kind::History => self.set_history(at, key, value),
            Kind::Annotation => self.set_annotation(at, key, value),
            Kind::Frame | Kind::Snapshot => Ok(false),
        }
    }

    fn set_event(&mut self, at: usize, key: Key, value: Value) -> Result<bool, Why> {
        let stack = self.stack_field(self.events[at].stack, key, value)?;
        let category = if key == Key::Category { Some(self.category(key, value)?) } else { None };
        let event = &mut self.events[at];
        match key {
            Key::Action => {
                let Value::Text(text) = value else { return Err(wrong(key, "a text", value)) };
                let nth = text.index().wrapping_sub(self.first_action.index());
                let Some(&action) = Action::ALL.get(nth) else {
                    return Err(Why::Word { key, found: self.snapshot.texts.get(text).to_owned() });
                };
                event.action = action;
            }
            Key::Addr | Key::DeviceFree => event.set_place(whole(key, value)?),
            Key::Size => event.size = whole(key, value)?,
            Key::Stream => event.stream = StreamId(whole(key, value)?),
            Key::TimeUs => event.time_us = optional(key, value)?,
            Key::Frames | Key::ForwardFrames => event.stack = stack,
            Key::CompileContext => event.compile_context = text(key, value)?,
            Key::UserMetadata => event.user_metadata = text(key, value)?,
            Key::InternalMetadata => event.internal_metadata = text(key, value)?,
            Key::PoolId => event.pool = pool(key, value)?,
            Key::Category => event.category = category,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Parses a category: a name, as PyTorch's profiler writes it, or an index into the list of categories.
    fn category(&mut self, key: Key, value: Value) -> Result<CategoryId, Why> {
        let Value::Text(name) = value else {
            let category = usize::try_from(whole(key, value)?).ok().and_then(CategoryId::new);
            return category.ok_or_else(|| wrong(key, "a category's name or number", value));
        };
        if let Some(&known) = self.named_categories.get(&name) {
            return Ok(known);
        }
        let id = CategoryId::new(self.snapshot.categories.len()).ok_or_else(too_many_categories)?;
        self.snapshot.categories.push(name);
        self.named_categories.insert(name, id);
        Ok(id)
    }

    fn set_block(&mut self, at: usize, key: Key, value: Value) -> Result<bool, Why> {
        let stack = self.stack_field(self.blocks[at].stack, key, value)?;
        let block = &mut self.blocks[at];
        match key {
            Key::Address => block.address = Addr(whole(key, value)?),
            Key::Size => block.size = whole(key, value)?,
            Key::RequestedSize => block.requested_size = optional(key, value)?,
            Key::Frames | Key::ForwardFrames => block.stack = stack,
            Key::State => {
                let Value::Text(text) = value else { return Err(wrong(key, "a text", value)) };
                block.state = match self.snapshot.texts.get(text) {
                    "active_allocated" => BlockState::ActiveAllocated,
                    "active_pending_free" | "active_awaiting_free" => BlockState::ActivePendingFree,
                    "inactive" => BlockState::Inactive,
                    other => return Err(Why::Word { key, found: other.to_owned() }),
                };
            }
            Key::History => {
                let history = match value {
                    Value::EmptyList(_) => return Ok(true),
                    Value::List(list, _) => match self.lists[list as usize] {
                        List::Histories(first) => self.histories[first as usize],
                        _ => return Err(wrong(key, "a list of history entries", value)),
                    },
                    _ => return Err(wrong(key, "a list of history entries", value)),
                };
                block.stack = history.stack;
                if block.requested_size == MaybeU64::ABSENT {
                    block.requested_size = history.real_size.into();
                }
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn set_segment(&mut self, at: usize, key: Key, value: Value) -> Result<bool, Why> {
        let stack = self.stack_field(self.segments[at].stack, key, value)?;
        let blocks = if key == Key::Blocks { self.take_blocks(value)? } else { Vec::new() };
        let segment = &mut self.segments[at];
        match key {
            Key::Device => segment.device = device(value)?,
            Key::Address => segment.address = Addr(whole(key, value)?),
            Key::TotalSize => segment.total_size = whole(key, value)?,
            Key::AllocatedSize => segment.allocated_size = optional(key, value)?,
            Key::ActiveSize => segment.active_size = optional(key, value)?,
            Key::RequestedSize => segment.requested_size = optional(key, value)?,
            Key::Stream => segment.stream = StreamId(whole(key, value)?),
            Key::SegmentType => {
                let Value::Text(text) = value else { return Err(wrong(key, "a text", value)) };
                segment.segment_type = match self.snapshot.texts.get(text) {
                    "small" => SegmentType::Small,
                    "large" => SegmentType::Large,
                    other => return Err(Why::Word { key, found: other.to_owned() }),
                };
            }
            Key::SegmentPoolId => segment.pool = pool(key, value)?,
            Key::IsExpandable => match value {
                Value::Bool(expandable) => segment.is_expandable = Some(expandable),
                _ => return Err(wrong(key, "a bool", value)),
            },
            Key::Frames | Key::ForwardFrames => segment.stack = stack,
            Key::Blocks => segment.blocks = blocks,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn take_blocks(&mut self, value: Value) -> Result<Vec<Block>, Why> {
        match value {
            Value::EmptyList(_) => Ok(Vec::new()),
            Value::List(at, _) => match std::mem::replace(&mut self.lists[at as usize], List::Taken) {
                List::Blocks(range) => {
                    let range = range.start as usize..range.end as usize;
                    self.taken_blocks.resize(self.blocks.len(), false);
                    if self.taken_blocks[range.clone()].contains(&true) {
                        return Err(Why::Twice("a block"));
                    }
                    self.taken_blocks[range.clone()].fill(true);
                    Ok(self.blocks[range].to_vec())
                }
                List::Taken => Err(Why::Twice("a list of blocks")),
                _ => Err(wrong(Key::Blocks, "a list of blocks", value)),
            },
            _ => Err(wrong(Key::Blocks, "a list of blocks", value)),
        }
    }

    fn set_history(&mut self, at: usize, key: Key, value: Value) -> Result<bool, Why> {
        match key {
            Key::RealSize => self.histories[at].real_size = whole(key, value)?,
            Key::Frames => self.histories[at].stack = Some(self.stack(key, value)?),
            // The block's own address is ignored, because it also follows from the block's position in the segment.
            Key::Addr => {}
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn set_annotation(&mut self, at: usize, key: Key, value: Value) -> Result<bool, Why> {
        let annotation = &mut self.annotations[at];
        match key {
            Key::Name => {
                annotation.name = text(key, value)?.ok_or_else(|| wrong(key, "a text", value))?;
            }
            Key::Stage => {
                let Value::Text(text) = value else { return Err(wrong(key, "a text", value)) };
                annotation.stage = match self.snapshot.texts.get(text) {
                    "START" => Stage::Start,
                    "END" => Stage::End,
                    other => return Err(Why::Word { key, found: other.to_owned() }),
                };
            }
            Key::Device => annotation.device = device(value)?,
            Key::TimeUs => annotation.time_us = optional(key, value)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    pub(super) fn stack(&mut self, key: Key, value: Value) -> Result<StackId, Why> {
        match value {
            Value::Stack(id, _) => Ok(id),
            Value::EmptyList(_) => Ok(StackId::EMPTY),
            Value::Growing(at, _) => self.settle(at),
            _ => Err(wrong(key, "a list of frames", value)),
        }
    }

    /// The id of a frame whose keys are all in `items`; `None` if a key is still missing.
    pub(super) fn whole_frame(&mut self, items: &[Value]) -> Result<Option<FrameId>, Why> {
        let has = |wanted| {
            items
                .iter()
                .step_by(2)
                .any(|&key| matches!(key, Value::Text(text) if Key::of(text) == Some(wanted)))
        };
        if ![Key::Filename, Key::Name, Key::Line].into_iter().all(has) {
            return Ok(None);
        }
        let mut frame = Frame { filename: self.first_action, name: self.first_action, line: 0, fx: None };
        for pair in items.chunks_exact(2) {
            self.set_frame(&mut frame, pair[0], pair[1])?;
        }
        self.frame(frame).map(Some)
    }

    pub(super) fn set_frame(&mut self, frame: &mut Frame, key: Value, value: Value) -> Result<(), Why> {
        let Value::Text(name) = key else { return Err(Why::Broken("a dict has a key that is not a string")) };
        let Some(key) = Key::of(name) else {
            self.snapshot.facts.ignore(Kind::Frame, name);
            return Ok(());
        };
        let needed = |value| text(key, value)?.ok_or_else(|| wrong(key, "a text", value));
        let mut fx = frame.fx.map(|fx| *self.snapshot.stacks.get_fx(fx)).unwrap_or_default();
        match key {
            Key::Filename => frame.filename = needed(value)?,
            Key::Name => frame.name = needed(value)?,
            // C++ frames without symbols may have -1 or an offset. Code without line numbers also has -1, which PyTorch
            // writes as an unsigned number.
            Key::Line => match value {
                Value::Int(line) => frame.line = line,
                Value::Big(line) => frame.line = line.cast_signed(),
                _ => return Err(wrong(key, "a line number", value)),
            },
            Key::FxNodeOp => fx.node_op = text(key, value)?,
            Key::FxNodeName => fx.node_name = text(key, value)?,
            Key::FxOriginalTrace => fx.original_trace = text(key, value)?,
            Key::FxNodeInfo if matches!(value, Value::Text(_)) => fx.node_info = text(key, value)?,
            _ => {
                self.snapshot.facts.ignore(Kind::Frame, name);
                return Ok(());
            }
        }
        if fx != Fx::default() {
            frame.fx = Some(self.snapshot.stacks.fx(fx).ok_or_else(|| ids_ran_out("fx nodes"))?);
        }
        self.snapshot.facts.see(Kind::Frame, KeySet::of(&[key]));
        Ok(())
    }
}
