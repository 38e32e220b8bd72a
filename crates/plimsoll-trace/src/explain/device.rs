//! The explanation of one device: [`DeviceExplanation`].

use plimsoll_alloc::Category;

use super::backward::ForwardLines;
use super::fragmentation::{DeviceAnalysis, Fragmentation};
use super::leaks::Leaks;
use super::ledger::Ledger;
use super::needed::still_needed;
use super::origin::Origins;
use super::owners::{Owners, held};
use super::passes::{PassKind, Passes};
use super::peaks::{Peaks, Phase};
use super::purposes::Purposes;
use super::shapes::{FailedRequest, Guess};
use super::steps::Steps;
use super::unused::UnusedGraph;
use crate::failure::{Cause, Failure};
use crate::pressure::Pressure;
use crate::replay::Replay;
use crate::snapshot::{EventIndex, FrameId, Snapshot};
use crate::still_needed::StillNeeded;
use crate::timeline::{Life, Moment, Timeline};
use crate::whatif::{Known, SETTINGS, WhatIf};

/// The explanation of one device in a snapshot.
#[derive(Debug, Clone)]
pub struct DeviceExplanation {
    /// Whether our own runtime recorded the snapshot, not PyTorch.
    pub is_own: bool,
    /// Every block's lifetime, and the byte counts over time.
    pub timeline: Timeline,
    /// How exactly our allocator reproduces the recording. The block sizes that the replay found are in the timeline.
    pub replay: Replay,
    /// The passes of the program.
    pub passes: Passes,
    /// The purpose of each block.
    pub purposes: Purposes,
    /// The request that failed, if one did.
    pub failure: Option<Failure>,
    /// Requests that were rejected at first and served after the cache was released.
    pub pressure: Pressure,
    /// The forward lines of the failed request and of live blocks, if the backward pass allocated them without a line
    /// of Python.
    pub forward_lines: ForwardLines,
    /// Shapes that the failed request may have had, the best guess first; often empty.
    pub shapes: Vec<Guess>,
    /// The memory that the program still needed after the failed request, a lower bound; `None` if the recording does not
    /// show this.
    pub still_needed: Option<StillNeeded>,
    /// The owners of live memory at [`DeviceExplanation::moment`].
    pub owners: Owners,
    /// How the device's bytes are used at [`DeviceExplanation::moment`].
    pub ledger: Ledger,
    /// The holes at [`DeviceExplanation::moment`].
    pub fragmentation: Fragmentation,
    /// The steps of the program.
    pub steps: Steps,
    /// The peaks of the program's phases and steps.
    pub peaks: Peaks,
    /// Growth from step to step.
    pub leaks: Leaks,
    /// The memory that forward passes keep at [`DeviceExplanation::moment`] for a backward pass that never runs.
    pub unused_graph: Option<UnusedGraph>,
    /// The simulation of other settings. It runs only if they may matter: memory ran out although the blocks might
    /// fit, or requests were retried.
    pub what_if: Option<WhatIf>,
}

/// The maximum device memory that a program's own CUDA context and libraries take, in bytes. On an H200 with PyTorch
/// 2.11, cuBLAS, cuDNN, cuSOLVER and cuFFT together took 845 MB.
pub const OWN_CONTEXT_BYTES: u64 = 1 << 30;

/// Options of an explanation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Whether to infer the purpose of blocks.
    pub infer: bool,
    /// The device's total memory in bytes. With `None`, the total that the recorder wrote is used, if there is one.
    pub device_total_bytes: Option<u64>,
}

impl Default for Options {
    fn default() -> Self {
        Self { infer: true, device_total_bytes: None }
    }
}

impl DeviceExplanation {
    /// Explains a device. A second thread finds the passes and steps while the calling thread replays the requests.
    pub fn of(snapshot: &Snapshot, device: i32, origins: &Origins, options: Options) -> Self {
        let trace = snapshot.trace(device);
        let (timeline, replay, passes, steps) = std::thread::scope(|scope| {
            let rhythm = scope.spawn(|| {
                let passes = Passes::of(snapshot, trace, origins);
                let steps = Steps::of(snapshot, device, origins, &passes);
                (passes, steps)
            });
            let mut timeline = Timeline::of(snapshot, device);
            let replay = Replay::of(snapshot, &mut timeline);
            let (passes, steps) = rhythm.join().expect("reading a trace does not panic");
            (timeline, replay, passes, steps)
        });
        let (peaks, purposes) = std::thread::scope(|scope| {
            let peaks = scope.spawn(|| Peaks::of(snapshot, &timeline, origins, &passes, &steps));
            let purposes = Purposes::of(snapshot, &timeline, origins, &passes, options.infer);
            (peaks.join().expect("reading a trace does not panic"), purposes)
        });
        let failure = Failure::last(snapshot, &timeline);
        let moment = failure.map_or(timeline.peak_allocated.after, |failure| Some(failure.at));
        let analysis = DeviceAnalysis { snapshot, timeline: &timeline, origins, purposes: &purposes };
        let forward_lines = if options.infer {
            let bare = held(&timeline, moment).filter(|(_, life)| origins.get(life.stack).line.is_none());
            let wanted = bare.filter_map(|(_, life)| life.born).chain(failure.map(|failure| failure.at));
            ForwardLines::of(analysis, &passes, wanted)
        } else {
            ForwardLines::default()
        };
        let owners = Owners::with_forward_lines(&timeline, origins, &purposes, &forward_lines, moment);
        let total = options.device_total_bytes.or_else(|| snapshot.recorder().device_total_bytes(device));
        let ledger = Ledger::of(snapshot, &timeline, moment, total);
        let begins: Vec<EventIndex> =
            steps.boundaries.iter().filter_map(|end| EventIndex::new(end.index() + 1)).collect();
        let fragmentation = Fragmentation::of(analysis, &begins, moment);
        let leaks = Leaks::of(snapshot, &timeline, origins, &purposes, &steps);
        let inferring = options.infer.then(|| UnusedGraph::of(snapshot, &timeline, &passes, moment));
        let request = failure.filter(|_| options.infer).map(|failure| FailedRequest {
            analysis,
            failure,
            step_began: steps.boundaries.iter().rfind(|&&end| end < failure.at).copied(),
            is_pass: matches!(
                peaks.failed_in,
                Some(Phase::Evaluation | Phase::Pass(PassKind::Forward | PassKind::Backward))
            ),
        });
        let inferred = failure.filter(|_| options.infer);
        let still_needed = inferred.and_then(|failure| still_needed(analysis, &passes, &failure));
        let shapes = request.map_or_else(Vec::new, |request| request.guesses());
        let cause = failure.map(|failure| failure.cause());
        let may_fit = matches!(cause, Some(Cause::Fragmentation { .. } | Cause::Limit { .. }));
        let pressure = Pressure::of(snapshot, &timeline);
        let is_tight = may_fit || failure.is_none() && !pressure.retries.is_empty();
        let known = Known {
            device_total_bytes: total,
            still_needed: still_needed.as_ref(),
            step_ends: &steps.boundaries,
        };
        let simulated = || WhatIf::knowing(snapshot, &timeline, &SETTINGS, known);
        let what_if = is_tight.then(simulated);
        Self {
            is_own: snapshot.is_own(),
            timeline,
            replay,
            passes,
            purposes,
            failure,
            pressure,
            forward_lines,
            shapes,
            still_needed,
            owners,
            ledger,
            fragmentation,
            steps,
            peaks,
            leaks,
            unused_graph: inferring.flatten(),
            what_if,
        }
    }

    /// Simulates the device's requests under other settings. A setting fits if it also serves what the program still
    /// needed.
    pub fn simulated(
        &self,
        snapshot: &Snapshot,
        settings: &[&str],
        device_total_bytes: Option<u64>,
    ) -> WhatIf {
        let (still_needed, step_ends) = (self.still_needed.as_ref(), self.steps.boundaries.as_slice());
        WhatIf::knowing(
            snapshot,
            &self.timeline,
            settings,
            Known { device_total_bytes, still_needed, step_ends },
        )
    }

    /// This device with its snapshot and origins, as the input of comparisons.
    pub fn analysis<'a>(&'a self, snapshot: &'a Snapshot, origins: &'a Origins) -> DeviceAnalysis<'a> {
        DeviceAnalysis { snapshot, timeline: &self.timeline, origins, purposes: &self.purposes }
    }

    /// The forward lines of requests that backward passes made without a line of Python, by their events. Costs a
    /// walk over each of these passes and over the passes before.
    pub fn forward_lines_of(
        &self,
        analysis: DeviceAnalysis<'_>,
        requests: impl Iterator<Item = EventIndex>,
    ) -> ForwardLines {
        ForwardLines::of(analysis, &self.passes, requests)
    }

    /// The moment that is explained: the failure if memory ran out, or else the peak of allocated bytes.
    pub fn moment(&self) -> Option<EventIndex> {
        self.owners.after
    }

    /// The step that a moment belongs to, counted from one; `None` after the last step.
    pub fn step_at(&self, moment: Moment) -> Option<usize> {
        let step = self.steps.step_of(moment.after?);
        (step < self.steps.len()).then_some(step + 1)
    }

    /// The line that requested the block of the event at a moment.
    pub fn asker_at(&self, snapshot: &Snapshot, origins: &Origins, moment: Moment) -> Option<FrameId> {
        let event = snapshot.trace(self.timeline.device).get(moment.after?.index())?;
        origins.get(event.stack).line
    }

    /// Device memory that other processes used when a request failed because of the capacity. `None` if this is
    /// unknown, or if the request would not have fit even without them. The program's own context and libraries do not
    /// count, because every program has them.
    pub fn held_by_others(&self) -> Option<u64> {
        let failure = self.failure.filter(|failure| failure.limit.is_none())?;
        let Cause::Capacity { short_bytes } = failure.cause() else { return None };
        self.ledger.device.outside.filter(|&outside| outside > OWN_CONTEXT_BYTES.saturating_add(short_bytes))
    }

    /// The live blocks at the explained moment ([`Self::moment`]), each with its category.
    pub fn held(&self) -> impl Iterator<Item = (&Life, Option<Category>)> {
        let held = held(&self.timeline, self.moment());
        held.map(|(index, life)| (life, self.purposes.get(index).category))
    }
}
