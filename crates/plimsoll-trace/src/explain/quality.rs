//! How complete a recording is, and what to record next time: [`DataQuality`].
//!
//! If a block has no stack, then PyTorch was not set to record the stack, or could not. Other data in the file shows
//! which of these causes applies.

use super::fragmentation::DeviceAnalysis;
use super::origin::is_python;
use super::passes::Passes;
use crate::snapshot::{Action, Event, FrameId, Key, Kind, Snapshot, StackId, Vendor};
use crate::timeline::{Life, Quality};

/// The contents of one device's recording, and what is missing.
#[derive(Debug, Clone, PartialEq)]
pub struct DataQuality {
    /// Contradictions found while following the events, and whether the ring buffer overflowed.
    pub replay: Quality,
    /// Bytes in live blocks at the peak.
    pub peak_bytes: u64,
    /// Bytes in live blocks without a stack at the peak, by cause; causes without bytes are left out.
    pub stackless: Vec<Stackless>,
    /// Bytes at the peak in blocks whose stack has no line of Python.
    pub no_python_bytes: u64,
    /// The data that the file lacks entirely.
    pub missing: Vec<Missing>,
    /// Whether C++ frames were recorded in addition to Python's.
    pub has_native_frames: bool,
    /// The vendor of the devices, if there is evidence that it is not NVIDIA.
    pub vendor: Option<Vendor>,
    /// Whether our own runtime made the recording.
    pub is_own: bool,
    /// Whether this version of PyTorch can record scopes as annotations.
    can_annotate: bool,
}

/// Blocks without a stack, for one cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stackless {
    /// The cause.
    pub why: NoStack,
    /// The bytes of these blocks.
    pub bytes: u64,
    /// The number of these blocks.
    pub blocks: u64,
}

/// Why a block has no stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NoStack {
    /// Recording was never started.
    NeverRecorded,
    /// The block was allocated before recording started.
    BeforeRecording,
    /// The block was freed during the recording, but requested before the oldest event in the ring buffer.
    RingOverflowed,
    /// Stacks were not recorded.
    ContextOff,
    /// Stacks were recorded for live blocks only, and this block was freed.
    LiveOnly,
    /// The backward pass requested the block on a thread without Python, and only Python frames were recorded.
    BackwardThread,
    /// Another thread without Python requested the block, and only Python frames were recorded.
    NativeThread,
    /// Python and C++ stacks were recorded, but not at the time of this request.
    Elsewhen,
}

impl NoStack {
    const ALL: [Self; 8] = [
        Self::NeverRecorded,
        Self::BeforeRecording,
        Self::RingOverflowed,
        Self::ContextOff,
        Self::LiveOnly,
        Self::BackwardThread,
        Self::NativeThread,
        Self::Elsewhen,
    ];

    /// The reason, as the end of the sentence "these have no stack: …".
    pub fn reason(self) -> &'static str {
        match self {
            Self::NeverRecorded => "recording was not on",
            Self::BeforeRecording => "allocated before recording started",
            Self::RingOverflowed => "allocated before the oldest recorded event",
            Self::ContextOff => "recorded without stacks (context=None)",
            Self::LiveOnly => "freed, and stacks were kept only for live blocks (context=\"state\")",
            Self::BackwardThread => {
                "allocated by the backward pass, on a thread without Python frames (stacks=\"python\")"
            }
            Self::NativeThread => "allocated on a thread without Python frames (stacks=\"python\")",
            Self::Elsewhen => "allocated while stacks were not recorded",
        }
    }

    /// The advice for the next recording.
    pub fn remedy(self) -> &'static str {
        match self {
            Self::NeverRecorded | Self::BeforeRecording => "start recording before the model is built",
            Self::RingOverflowed => "raise max_entries, or dump earlier",
            Self::ContextOff | Self::LiveOnly | Self::Elsewhen => "record with context=\"all\" throughout",
            Self::BackwardThread | Self::NativeThread => "record with stacks=\"all\"",
        }
    }
}

/// Data that a file may lack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Missing {
    /// The file has no events.
    Events,
    /// The file has no segments.
    Segments,
    /// Events have no `time_us`.
    Times,
    /// Blocks have no `requested_size`.
    RequestedSizes,
    /// Segments and events have no pool.
    Pools,
    /// The file has no `allocator_settings`.
    Settings,
    /// The file has no `external_annotations`.
    Annotations,
    /// A request failed, and the device's free memory was not recorded.
    DeviceFree,
}

impl Missing {
    /// What is unknown because the data is missing.
    pub fn costs(self) -> &'static str {
        match self {
            Self::Events => "no events: only the moment of the snapshot is known",
            Self::Segments => "no segments: the final state and blocks live throughout are unknown",
            Self::Times => "no times: moments are event numbers",
            Self::RequestedSizes => {
                "no requested sizes: the rounding of blocks from before the recording is unknown"
            }
            Self::Pools => "no pools: private pools cannot be distinguished from the default pool",
            Self::Settings => "no settings: PyTorch's defaults are assumed",
            Self::Annotations => "no annotations: steps are inferred from repetition",
            Self::DeviceFree => "no record of free device memory at the failure: the shortfall is unknown",
        }
    }
}

impl DataQuality {
    /// Checks one device of a recording; `passes` are those of its trace.
    pub fn of(analysis: DeviceAnalysis<'_>, passes: &Passes) -> Self {
        let (snapshot, timeline) = (analysis.snapshot, analysis.timeline);
        let file = File::of(snapshot, timeline.device);
        let mut sums = NoStack::ALL.map(|why| Stackless { why, bytes: 0, blocks: 0 });
        let (mut peak_bytes, mut no_python_bytes) = (0_u64, 0_u64);
        for life in timeline.held_after(timeline.peak_allocated.after) {
            peak_bytes = peak_bytes.saturating_add(life.bytes);
            if life.stack.is_some_and(is_recorded) {
                if analysis.origins.get(life.stack).line.is_none() {
                    no_python_bytes = no_python_bytes.saturating_add(life.bytes);
                }
                continue;
            }
            let sum = &mut sums[file.why(life, &timeline.quality, passes) as usize];
            sum.bytes = sum.bytes.saturating_add(life.bytes);
            sum.blocks += 1;
        }
        let stackless = sums.into_iter().filter(|sum| sum.blocks > 0).collect();
        let can_annotate = snapshot.facts.seen(Kind::Event).contains(Key::UserMetadata);
        let missing = missing(snapshot, timeline.device);
        Self {
            replay: timeline.quality,
            peak_bytes,
            stackless,
            no_python_bytes,
            missing,
            has_native_frames: !file.python_only,
            vendor: snapshot.vendor(),
            is_own: snapshot.is_own(),
            can_annotate,
        }
    }

    /// Bytes at the peak in blocks without a stack.
    pub fn stackless_bytes(&self) -> u64 {
        self.stackless.iter().fold(0, |sum, part| sum.saturating_add(part.bytes))
    }

    /// Bytes at the peak in blocks without a stack, in percent of the peak's bytes.
    pub fn stackless_percent(&self) -> f64 {
        if self.peak_bytes == 0 {
            0.0
        } else {
            100.0 * self.stackless_bytes() as f64 / self.peak_bytes as f64
        }
    }

    /// Whether nothing is missing: no contradictions, no lost events, a stack for every byte of the peak.
    pub fn is_complete(&self) -> bool {
        self.replay.conflicts() == 0
            && !self.replay.is_cut
            && !self.replay.is_restarted
            && self.stackless.is_empty()
            && self.missing.is_empty()
    }

    /// The lines of Python, or of Rust for our own runtime, that record what is missing. The first line goes before the
    /// model is built, the last one after some steps, or after memory ran out.
    pub fn record_with(&self) -> Vec<String> {
        if self.is_own {
            return vec![
                "plimsoll::memory::record_history(&device, HistoryOptions::default());".to_owned(),
                "plimsoll::memory::save_snapshot(&device, \"snapshot.pickle\")?;".to_owned(),
            ];
        }
        let has = |wanted: &[NoStack]| self.stackless.iter().any(|part| wanted.contains(&part.why));
        let is_short = self.replay.is_cut || has(&[NoStack::RingOverflowed]);
        let entries = if is_short { self.replay.events.saturating_mul(4) } else { self.replay.events };
        let native = self.has_native_frames || has(&[NoStack::BackwardThread, NoStack::NativeThread]);
        let stacks = if native { "all" } else { "python" };
        let annotations = if self.can_annotate { ", global_record_annotations=True" } else { "" };
        vec![
            format!(
                "torch.cuda.memory._record_memory_history(context=\"all\", stacks=\"{stacks}\", max_entries={}{annotations})",
                entries.max(1_000_000),
            ),
            "torch.cuda.memory._dump_snapshot(\"snapshot.pickle\")".to_owned(),
        ]
    }
}

fn is_recorded(stack: StackId) -> bool {
    stack != StackId::EMPTY
}

/// Which kinds of stacks the file contains.
struct File {
    in_events: bool,
    in_blocks: bool,
    python_only: bool,
}

impl File {
    fn of(snapshot: &Snapshot, device: i32) -> Self {
        let is_request = |event: &&Event| event.action == Action::Alloc;
        let blocks = snapshot.segments_of(device).flat_map(|segment| &segment.blocks);
        let mut frames = (0..snapshot.stacks.frame_count()).filter_map(FrameId::new);
        let file = |id: FrameId| snapshot.texts.get(snapshot.stacks.get_frame(id).filename);
        Self {
            in_events: snapshot
                .trace(device)
                .iter()
                .filter(is_request)
                .any(|it| it.stack.is_some_and(is_recorded)),
            in_blocks: blocks.filter_map(|block| block.stack).any(is_recorded),
            python_only: frames.all(|id| is_python(file(id))),
        }
    }

    fn why(&self, life: &Life, quality: &Quality, passes: &Passes) -> NoStack {
        let Some(born) = life.born else {
            return match life.freed {
                _ if quality.events == 0 && !self.in_blocks => NoStack::NeverRecorded,
                Some(_) if quality.is_cut => NoStack::RingOverflowed,
                _ => NoStack::BeforeRecording,
            };
        };
        match (self.in_events, self.in_blocks) {
            (false, true) => NoStack::LiveOnly,
            (false, false) => NoStack::ContextOff,
            _ if !self.python_only => NoStack::Elsewhen,
            _ if passes.is_backward(born) => NoStack::BackwardThread,
            _ => NoStack::NativeThread,
        }
    }
}

fn missing(snapshot: &Snapshot, device: i32) -> Vec<Missing> {
    let seen = |kind, key| snapshot.facts.seen(kind).contains(key);
    let trace = snapshot.trace(device);
    let (has_events, has_segments) = (!trace.is_empty(), snapshot.segments_of(device).next().is_some());
    let no_free = |event: &Event| event.action == Action::Oom && event.device_free().is_none();
    let no_pools = !seen(Kind::Segment, Key::SegmentPoolId) && !seen(Kind::Event, Key::PoolId);
    let all = [
        (Missing::Events, !has_events),
        (Missing::Segments, !has_segments),
        (Missing::Times, has_events && !seen(Kind::Event, Key::TimeUs)),
        (Missing::RequestedSizes, has_segments && !seen(Kind::Block, Key::RequestedSize)),
        (Missing::Pools, (has_events || has_segments) && no_pools),
        (Missing::Settings, !seen(Kind::Snapshot, Key::AllocatorSettings)),
        (Missing::Annotations, has_events && snapshot.annotations.is_empty()),
        (Missing::DeviceFree, trace.iter().any(no_free)),
    ];
    all.into_iter().filter(|(_, is_missing)| *is_missing).map(|(missing, _)| missing).collect()
}
