//! A PyTorch memory snapshot as values: [`Snapshot`].
//!
//! Segments and traces are rows of numbers. Texts, frames, stacks and pools are stored once and referred to by id
//! (`ids.rs`). A value that a file lacks is `None`, never a default; [`Facts`] lists the keys that the file has.
//! [`crate::input`] reads files, and [`crate::output`] writes them.

mod annotation;
mod config;
mod event;
mod facts;
mod ids;
mod key;
mod pools;
mod recorder;
mod segment;
mod settings;
mod stacks;
mod texts;
mod vendor;

pub use annotation::{Annotation, Stage};
pub use event::{Action, Event};
pub use facts::{Facts, Form, Ignored, Kind};
pub use ids::{CategoryId, EventIndex, FrameId, FxId, LifeIndex, MaybeU64, PoolIndex, StackId, TextId};
pub use key::{Key, KeySet};
pub use pools::Pools;
pub use recorder::Recorder;
pub use segment::{Block, BlockState, Segment, SegmentType};
pub use settings::Setting;
pub use stacks::{Frame, Fx, Stacks};
pub use texts::Texts;
pub use vendor::Vendor;

/// The device number of pinned host memory in [`Segment::device`].
pub const HOST_DEVICE: i32 = -1;

/// The state of PyTorch's allocator, and the events that led to it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Snapshot {
    /// Device memory, in the order of the file: device by device, each in address order.
    pub segments: Vec<Segment>,
    /// Events, oldest first: one list for each device, by device number. A device may have segments but no events, and
    /// the list of lists may be empty or missing ([`Facts`] says which of the two).
    pub traces: Vec<Vec<Event>>,
    /// Pinned host memory, if recorded (PyTorch 2.13 and newer).
    pub host_segments: Vec<Segment>,
    /// Events of pinned host memory, oldest first.
    pub host_trace: Vec<Event>,
    /// Scopes of `torch.profiler.record_function`; only their times relate them to events.
    pub annotations: Vec<Annotation>,
    /// `allocator_settings`, in the order of the file.
    pub settings: Vec<(String, Setting)>,
    /// The names of [`Event::category`], indexed by [`CategoryId::index`]: first those that the file lists, then those
    /// that only events name.
    pub categories: Vec<TextId>,
    /// What `plimsoll predict` found out about the program beyond this recording, as JSON.
    pub prediction: Option<TextId>,
    /// Every text by id.
    pub texts: Texts,
    /// Every frame and stack by id.
    pub stacks: Stacks,
    /// Every pool by id.
    pub pools: Pools,
    /// The keys of the file, and the keys that were skipped.
    pub facts: Facts,
}

impl Snapshot {
    /// The numbers of the devices that have a segment or an event, ascending, without pinned host memory. The
    /// `snapshot` event does not count, because it is in every device's trace.
    pub fn devices(&self) -> Vec<i32> {
        let is_own = |event: &Event| event.action != Action::Snapshot;
        let traced =
            (0..).zip(&self.traces).filter(|(_, trace)| trace.iter().any(is_own)).map(|(device, _)| device);
        let mut devices: Vec<i32> = self.segments.iter().map(Segment::device).chain(traced).collect();
        devices.sort_unstable();
        devices.dedup();
        devices
    }

    /// The segments of one device, or of pinned host memory ([`HOST_DEVICE`]), in the order of the file.
    pub fn segments_of(&self, device: i32) -> impl Iterator<Item = &Segment> {
        let is_host = device == HOST_DEVICE;
        let segments = if is_host { &self.host_segments } else { &self.segments };
        segments.iter().filter(move |segment| is_host || segment.device() == device)
    }

    /// The events of one device, or of pinned host memory ([`HOST_DEVICE`]), oldest first; empty if there are none.
    pub fn trace(&self, device: i32) -> &[Event] {
        if device == HOST_DEVICE {
            return &self.host_trace;
        }
        usize::try_from(device).ok().and_then(|device| self.traces.get(device)).map_or(&[], Vec::as_slice)
    }

    /// For each stack, by its id, whether `is_wanted` is true for the file and function of one of its frames.
    pub fn stacks_with(&self, is_wanted: impl Fn(&str, &str) -> bool) -> Vec<bool> {
        let frames = (0..self.stacks.frame_count()).filter_map(FrameId::new);
        let is_wanted = |id| {
            let frame = self.stacks.get_frame(id);
            is_wanted(self.texts.get(frame.filename), self.texts.get(frame.name))
        };
        let wanted: Vec<bool> = frames.map(is_wanted).collect();
        let has_one = |id| self.stacks.frame_ids(id).any(|frame| wanted[frame.index()]);
        (0..self.stacks.len()).filter_map(StackId::new).map(has_one).collect()
    }

    /// Whether our own runtime recorded the snapshot, not PyTorch.
    pub fn is_own(&self) -> bool {
        self.setting("plimsoll").is_some()
    }

    /// The writer of the file, in words: our own runtime, or the versions of PyTorch that write its keys.
    pub fn written_by(&self) -> &'static str {
        if self.is_own() { "Plimsoll's runtime" } else { self.facts.written_by() }
    }

    /// The value of a setting, by its name in `allocator_settings`.
    pub fn setting(&self, name: &str) -> Option<&Setting> {
        self.settings.iter().find(|(known, _)| known == name).map(|(_, setting)| setting)
    }
}
