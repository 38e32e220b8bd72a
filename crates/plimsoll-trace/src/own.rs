//! Makes a snapshot in PyTorch's format from a recording of our own allocator: [`snapshot`].
//!
//! Segments, blocks, the trace and the settings are stored where PyTorch's format has a place for them.
//! Note [Where our own stands]: data that only our allocator has is stored where PyTorch's viewer and tools show it.
//!
//! | our data | in the snapshot |
//! |---|---|
//! | the place that made a request | the innermost frames of an event or block: [`Names::places`] (an operation) |
//! | its label | the next frame, in the file `<label>` |
//! | its category | the outermost frame, in the file `<category>` |
//! | the last category of a block's life | the event's `category`, which the viewer colours, and its outermost frame |
//! | the tag that a block was allocated with | `user_metadata` of its `alloc`: `category=temporary label=conv1` |
//! | a retag | an `annotate` of the block's address with the new tag as `user_metadata`, as `torch` attaches texts to tensors |
//! | a step mark | a scope `ProfilerStep#7` of the annotations, up to the next mark or the end of the trace |
//! | the device | an entry `plimsoll` of the settings: version, device, capacity, limit |
//! | entries that were dropped for later ones | `trace_alloc_overflowed` of the settings |
//!
//! A category has PyTorch's name if PyTorch's profiler has the same category (`optimizer_state`). Events that belong to
//! no block have the category `unknown`. PyTorch's viewer fails on files that have categories but no category
//! `unknown`. So each trace here ends with a `snapshot` event, of category `unknown`, for the snapshot that contains
//! the trace; PyTorch adds that event only after it has taken a snapshot.

use hashbrown::HashMap;
use plimsoll_alloc::{self as alloc, Addr, BlockState, Category, Entry, LabelId, PoolKind, Recording, Tag};

use crate::snapshot::{
    Action, Annotation, Block, CategoryId, Event, Frame, FrameId, Key, KeySet, Kind, Segment, SegmentType,
    Setting, Snapshot, StackId, Stage, TextId,
};

/// Resolves the allocator's numbers to texts.
pub trait Names {
    /// The text of a label; empty if the label has no text.
    fn label(&self, id: LabelId) -> String;
    /// The places in the program that a stack number represents, innermost first.
    fn places(&self, id: alloc::StackId) -> Vec<Place>;
    /// The device's name.
    fn device(&self) -> String;
}

/// A place in a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The source file, or a word in angle brackets if there is no file.
    pub filename: String,
    /// The function or operation.
    pub name: String,
    /// The line; 0 if there is no line.
    pub line: i64,
}

/// The snapshot of a recording, as device 0.
///
/// ```
/// use plimsoll_alloc::{Callers, Config, DeviceMemory, HistoryOptions, LabelId, Request, SimDriver, StackId};
/// use plimsoll_trace::own::{self, Names, Place};
///
/// struct Layers;
/// impl Names for Layers {
///     fn label(&self, id: LabelId) -> String {
///         format!("layer{}", id.0)
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
/// let x = memory.alloc(Request { label: LabelId(3), ..Request::of(1000) })?;
/// let snapshot = own::snapshot(&memory.recording(), &Layers);
/// let alloc = snapshot.traces[0][1];
/// assert_eq!((alloc.size, alloc.addr(), alloc.time_us.get()), (1000, Some(x.addr()), Some(7)));
/// assert_eq!(snapshot.texts.get(alloc.user_metadata.expect("a tag")), "category=temporary label=layer3");
/// # memory.free(x);
/// # Ok::<(), plimsoll_alloc::Error>(())
/// ```
pub fn snapshot(recording: &Recording, names: &dyn Names) -> Snapshot {
    let mut maker = Maker::new(names);
    let categories = last_categories(recording);
    let mut trace: Vec<Event> = recording
        .entries
        .iter()
        .zip(categories)
        .filter_map(|(entry, last)| maker.event(entry, last))
        .collect();
    trace.extend(maker.end(recording));
    maker.snapshot.traces = vec![trace];
    maker.snapshot.segments = recording.segments.iter().map(|segment| maker.segment(segment)).collect();
    maker.steps(&recording.entries);
    maker.snapshot.settings = settings(recording, &names.device());
    // Lists are present even if empty, as in PyTorch's files: readers recognise the version of the format by these keys.
    let keys = [Key::AllocatorSettings, Key::ExternalAnnotations, Key::HostSegments, Key::HostTraces];
    maker.snapshot.facts.see(Kind::Snapshot, KeySet::of(&keys));
    maker.snapshot
}

/// For each allocation, the last category that its block had before it was freed; for all other entries, the entry's
/// own category.
fn last_categories(recording: &Recording) -> Vec<Category> {
    let blocks = recording.segments.iter().flat_map(|segment| &segment.blocks);
    let live = blocks.filter(|block| block.state != BlockState::Cached);
    let mut last: HashMap<Addr, Category> = live.map(|block| (block.addr, block.tag.category)).collect();
    let category = |entry: &Entry| match entry.action {
        alloc::Action::Alloc => last.remove(&entry.addr).unwrap_or(entry.tag.category),
        alloc::Action::FreeRequested | alloc::Action::FreeCompleted => {
            last.insert(entry.addr, entry.tag.category);
            entry.tag.category
        }
        alloc::Action::Retag { .. } => {
            // The entry of a retag keeps its own category. If the recording does not contain the free of a block, the
            // block's last retag decides.
            last.entry(entry.addr).or_insert(entry.tag.category);
            entry.tag.category
        }
        _ => entry.tag.category,
    };
    let mut categories: Vec<Category> = recording.entries.iter().rev().map(category).collect();
    categories.reverse();
    categories
}

/// The name of a category, in the form of PyTorch's profiler.
fn category_name(category: Category) -> String {
    category.name().replace(' ', "_")
}

fn settings(recording: &Recording, device: &str) -> Vec<(String, Setting)> {
    let config = &recording.config;
    let known = config.allocator_settings(&config.to_string()).into_iter().map(|(name, setting)| {
        let setting = match setting {
            alloc::Setting::Text(text) => Setting::Text(text),
            alloc::Setting::Integer(number) => Setting::Int(number),
            alloc::Setting::Real(number) => Setting::Float(number),
            alloc::Setting::Switch(on) => Setting::Bool(on),
            alloc::Setting::BySize(sizes) => {
                Setting::Map(sizes.into_iter().map(|(size, number)| (size, Setting::Int(number))).collect())
            }
        };
        (name, setting)
    });
    let bytes = |bytes: u64| Setting::Int(i64::try_from(bytes).unwrap_or(i64::MAX));
    let ours = [
        ("version", Setting::Text(env!("CARGO_PKG_VERSION").to_owned())),
        ("device", Setting::Text(device.to_owned())),
        ("capacity_bytes", bytes(recording.memory.total_bytes)),
        ("limit_bytes", recording.limit_bytes.map_or(Setting::None, bytes)),
    ];
    let own = |(name, setting): (&str, Setting)| (name.to_owned(), setting);
    known
        .chain([
            ("trace_alloc_overflowed", Setting::Bool(recording.lost > 0)),
            ("plimsoll", Setting::Map(ours.map(own).to_vec())),
        ])
        .map(own)
        .collect()
}

/// The tag and stack of an event or a block.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Origin {
    /// `None` if the event belongs to no block.
    tag: Option<Tag>,
    stack: Option<alloc::StackId>,
}

/// A snapshot that is being made. Each text, stack and category is stored once.
///
/// If ids run out (at 2^32), texts, stacks and categories without an id are left out.
struct Maker<'a> {
    names: &'a dyn Names,
    snapshot: Snapshot,
    stacks: HashMap<Origin, Option<StackId>>,
    tags: HashMap<Tag, Option<TextId>>,
    empty: Option<TextId>,
    no_context: Option<TextId>,
    unknown: Option<CategoryId>,
}

impl<'a> Maker<'a> {
    fn new(names: &'a dyn Names) -> Self {
        let mut snapshot = Snapshot::default();
        let texts = &mut snapshot.texts;
        // PyTorch writes these texts if the program has set no metadata.
        let (empty, no_context) = (texts.intern(""), texts.intern("N/A"));
        let all = Category::ALL.map(category_name).into_iter().chain(["unknown".to_owned()]);
        snapshot.categories = all.filter_map(|name| texts.intern(&name)).collect();
        let unknown = CategoryId::new(Category::ALL.len());
        let (stacks, tags) = Default::default();
        Self { names, snapshot, stacks, tags, empty, no_context, unknown }
    }

    /// The event of an entry; `None` for a step mark. `last` is the category of Note [Where our own stands].
    fn event(&mut self, entry: &Entry, last: Category) -> Option<Event> {
        let (tag, stack) = (Tag { category: last, ..entry.tag }, entry.stack);
        let (of_block, nowhere) = (Origin { tag: Some(tag), stack }, Origin { tag: None, stack });
        let (action, origin) = match entry.action {
            alloc::Action::StepMark { .. } => return None,
            alloc::Action::Alloc => (Action::Alloc, of_block),
            alloc::Action::FreeRequested => (Action::FreeRequested, of_block),
            alloc::Action::FreeCompleted => (Action::FreeCompleted, of_block),
            alloc::Action::Retag { .. } => (Action::Annotate, of_block),
            alloc::Action::Oom { .. } => (Action::Oom, of_block),
            alloc::Action::SegmentAlloc => (Action::SegmentAlloc, nowhere),
            alloc::Action::SegmentFree => (Action::SegmentFree, nowhere),
            alloc::Action::SegmentMap => (Action::SegmentMap, nowhere),
            alloc::Action::SegmentUnmap => (Action::SegmentUnmap, nowhere),
            alloc::Action::Snapshot => (Action::Snapshot, nowhere),
        };
        let mut event = match entry.action {
            alloc::Action::Oom { device_free_bytes } => {
                Event::oom(entry.bytes, Some(device_free_bytes), entry.stream)
            }
            _ => Event::new(action, entry.addr, entry.bytes, entry.stream),
        };
        event.time_us = entry.time_us.into();
        event.stack = self.stack(origin);
        event.compile_context = self.no_context;
        event.user_metadata = match action {
            Action::Alloc | Action::Annotate => self.tag(entry.tag),
            _ => self.empty,
        };
        event.pool = self.snapshot.pools.intern(entry.pool);
        event.category = match origin.tag {
            Some(tag) => CategoryId::new(tag.category as usize),
            None => self.unknown,
        };
        Some(event)
    }

    /// The event that records the snapshot itself, if there is a history.
    fn end(&mut self, recording: &Recording) -> Option<Event> {
        let last = recording.entries.last()?;
        let blocks = recording.segments.iter().flat_map(|segment| &segment.blocks);
        let bytes = blocks.filter(|block| block.state != BlockState::Cached).map(|block| block.bytes).sum();
        let (tag, addr, stream, pool): (Tag, _, _, _) = Default::default();
        let (action, stack, time_us) = (alloc::Action::Snapshot, None, last.time_us);
        self.event(&Entry { time_us, action, addr, bytes, stream, pool, tag, stack }, tag.category)
    }

    fn segment(&mut self, segment: &alloc::Segment) -> Segment {
        let sum =
            |wanted: &dyn Fn(&alloc::SegmentBlock) -> u64| segment.blocks.iter().map(wanted).sum::<u64>();
        let in_use = |block: &alloc::SegmentBlock| u64::from(block.state != BlockState::Cached);
        Segment {
            device: Some(0),
            address: segment.addr,
            total_size: segment.bytes,
            allocated_size: segment.allocated_bytes().into(),
            active_size: sum(&|block| in_use(block) * block.bytes).into(),
            requested_size: sum(&|block| in_use(block) * block.requested_bytes).into(),
            stream: segment.stream,
            segment_type: match segment.pool {
                PoolKind::Small => SegmentType::Small,
                PoolKind::Large => SegmentType::Large,
            },
            pool: self.snapshot.pools.intern(segment.pool_id),
            is_expandable: Some(segment.is_expandable),
            stack: Some(StackId::EMPTY),
            blocks: segment.blocks.iter().map(|block| self.block(block)).collect(),
        }
    }

    fn block(&mut self, block: &alloc::SegmentBlock) -> Block {
        let (state, stack) = match block.state {
            BlockState::Active => (crate::snapshot::BlockState::ActiveAllocated, self.stack_of_block(block)),
            BlockState::Pending => {
                (crate::snapshot::BlockState::ActivePendingFree, self.stack_of_block(block))
            }
            BlockState::Cached => (crate::snapshot::BlockState::Inactive, Some(StackId::EMPTY)),
        };
        Block {
            address: block.addr,
            size: block.bytes,
            requested_size: block.requested_bytes.into(),
            state,
            stack,
        }
    }

    fn stack_of_block(&mut self, block: &alloc::SegmentBlock) -> Option<StackId> {
        self.stack(Origin { tag: Some(block.tag), stack: block.stack })
    }

    /// Adds the scopes of the steps.
    fn steps(&mut self, entries: &[Entry]) {
        let Some(end) = entries.last() else { return };
        let marks = entries.iter().filter_map(|entry| match entry.action {
            alloc::Action::StepMark { number } => Some((number, entry.time_us)),
            _ => None,
        });
        let mut open = None;
        for (number, time_us) in marks {
            let Some(name) = self.snapshot.texts.intern(&format!("ProfilerStep#{number}")) else { return };
            self.close(open.replace(name), time_us);
            self.annotate(name, Stage::Start, time_us);
        }
        self.close(open, end.time_us);
    }

    fn close(&mut self, open: Option<TextId>, time_us: u64) {
        if let Some(name) = open {
            self.annotate(name, Stage::End, time_us);
        }
    }

    fn annotate(&mut self, name: TextId, stage: Stage, time_us: u64) {
        self.snapshot.annotations.push(Annotation { name, stage, device: Some(0), time_us: time_us.into() });
    }

    /// Formats a tag as text.
    fn tag(&mut self, tag: Tag) -> Option<TextId> {
        if let Some(&known) = self.tags.get(&tag) {
            return known;
        }
        let label = self.names.label(tag.label);
        let space = if label.is_empty() { "" } else { " label=" };
        let text = format!("category={}{space}{label}", category_name(tag.category));
        let id = self.snapshot.texts.intern(&text);
        self.tags.insert(tag, id);
        id
    }

    fn stack(&mut self, origin: Origin) -> Option<StackId> {
        if let Some(&known) = self.stacks.get(&origin) {
            return known;
        }
        let id = self.new_stack(origin);
        self.stacks.insert(origin, id);
        id
    }

    fn new_stack(&mut self, origin: Origin) -> Option<StackId> {
        let mut places = origin.stack.map(|stack| self.names.places(stack)).unwrap_or_default();
        if let Some(Tag { category, label }) = origin.tag {
            let label = self.names.label(label);
            // The label of a block without a name is its operation, which is already among the places.
            if !label.is_empty() && places.iter().all(|place| place.name != label) {
                places.push(Place { filename: "<label>".to_owned(), name: label, line: 0 });
            }
            places.push(Place { filename: "<category>".to_owned(), name: category_name(category), line: 0 });
        }
        let frames: Option<Vec<FrameId>> = places.iter().map(|place| self.frame(place)).collect();
        self.snapshot.stacks.stack(&frames?)
    }

    fn frame(&mut self, place: &Place) -> Option<FrameId> {
        let texts = &mut self.snapshot.texts;
        let (filename, name) = (texts.intern(&place.filename)?, texts.intern(&place.name)?);
        self.snapshot.stacks.frame(Frame { filename, name, line: place.line, fx: None })
    }
}
