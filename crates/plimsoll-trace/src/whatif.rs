//! The memory that the recorded requests would have needed under other settings: [`WhatIf`].
//!
//! Our allocator serves the same requests (order, bytes, streams, pools, lifetimes) on a simulated device. Time is not
//! simulated, and neither is the behaviour of a program that waits for memory or gives up. Blocks from before the
//! recording are requested first, in address order. This is an approximation, because their true order is unknown. The
//! first simulated row shows how accurate the simulation is: it uses the recorded settings, so its peak should equal
//! the recorded peak. The device has no more memory than the recording shows (`capacity.rs`). `advice.rs` decides which
//! row to recommend.

mod advice;
mod capacity;
mod policy;
mod program;
mod simulate;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use plimsoll_alloc::Config;

use crate::failure::Failure;
use crate::pressure::Pressure;
use crate::snapshot::{Action, EventIndex, Snapshot};
use crate::still_needed::StillNeeded;
use crate::timeline::Timeline;
pub use advice::Advice;
pub use capacity::CapacitySource;
use capacity::{Capacity, within_fraction};
use program::Program;
use simulate::{serves_rest, simulate, simulate_packed};

/// Settings to try, in the format of `PYTORCH_ALLOC_CONF`.
pub const SETTINGS: [&str; 9] = [
    "",
    "expandable_segments:True",
    "max_split_size_mb:64",
    "max_split_size_mb:128",
    "max_split_size_mb:256",
    "max_split_size_mb:512",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:8",
    // The allocator collects garbage only if there is a limit.
    "garbage_collection_threshold:0.8,per_process_memory_fraction:0.95",
];

/// One device's recording under several settings.
///
/// ```
/// use plimsoll_alloc::{Addr, StreamId};
/// use plimsoll_trace::snapshot::{Action, Event, Snapshot};
/// use plimsoll_trace::timeline::Timeline;
/// use plimsoll_trace::whatif::WhatIf;
///
/// let event = |action, addr, bytes| Event::new(action, Addr(addr), bytes, StreamId(0));
/// let trace = vec![
///     event(Action::SegmentAlloc, 0x700_0000_0000, 20 << 20),
///     event(Action::Alloc, 0x700_0000_0000, 3 << 20),
/// ];
/// let snapshot = Snapshot { traces: vec![trace], ..Snapshot::default() };
/// let timeline = Timeline::of(&snapshot, 0);
/// let answer = WhatIf::of(&snapshot, &timeline, &["expandable_segments:True"]);
/// assert_eq!(answer.recorded.peak_reserved_bytes, 20 << 20);
/// assert_eq!(answer.rows[0].outcome, answer.recorded); // simulated
/// assert_eq!(answer.rows[1].export(), "PYTORCH_ALLOC_CONF=expandable_segments:True");
/// assert_eq!((answer.rows[1].outcome.maps, answer.packed_bytes), (1, 3 << 20));
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct WhatIf {
    /// The outcome in the recording.
    pub recorded: Outcome,
    /// First the simulation of the recorded settings, then the settings to try. A setting that cannot be combined with
    /// the recorded settings, or has no effect because the capacity is unknown, has no row.
    pub rows: Vec<Row>,
    /// The outcome under the packed policy of `plimsoll-alloc`, which is not a PyTorch setting.
    pub packed: PackedPolicy,
    /// The number of recorded requests. If it is 0, there is nothing to replay.
    pub requests: usize,
    /// The most bytes in use at one time, with each request rounded to 512 bytes. No placement of blocks needs fewer
    /// bytes.
    pub packed_bytes: u64,
    /// Bytes available to the process; `None` if unknown. The simulated device is then unlimited, and no request fails.
    pub capacity_bytes: Option<u64>,
    /// The source of the capacity.
    pub capacity_from: Option<CapacitySource>,
    /// The requests that failed in the recording.
    pub failures: Vec<Failure>,
}

/// The outcome of a recording's requests under one setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// The settings, in the format of `PYTORCH_ALLOC_CONF`; empty for PyTorch's defaults.
    pub setting: String,
    /// The outcome.
    pub outcome: Outcome,
}

impl Row {
    /// The shell assignment with this setting.
    pub fn export(&self) -> String {
        format!("PYTORCH_ALLOC_CONF={}", self.setting)
    }

    /// The name of the setting, for a sentence.
    pub fn name(&self) -> String {
        if self.setting.is_empty() { "PyTorch's own settings".to_owned() } else { self.export() }
    }
}

/// The outcome of a recording's requests under the packed policy ([`PackedAllocator`](plimsoll_alloc::PackedAllocator)).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PackedPolicy {
    /// The outcome. A range of memory that the packed allocator maps together from pages counts as one mapped range.
    pub outcome: Outcome,
    /// Driver calls in the last step; `None` if the steps are unknown.
    pub last_step_calls: Option<u64>,
}

/// What is known about a program besides its recording: [`WhatIf::knowing`].
#[derive(Debug, Clone, Copy, Default)]
pub struct Known<'a> {
    /// The device's total memory, in bytes. With `None`, the total that the recorder wrote is used, if it wrote a
    /// total.
    pub device_total_bytes: Option<u64>,
    /// The memory that the program still needed after its last failed request. A setting fits only if it also serves
    /// these requests.
    pub still_needed: Option<&'a StillNeeded>,
    /// The last event of each step, in ascending order.
    pub step_ends: &'a [EventIndex],
}

/// The results of serving the requests.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Outcome {
    /// The peak of allocated memory, in bytes.
    pub peak_allocated_bytes: u64,
    /// The peak of reserved memory, in bytes.
    pub peak_reserved_bytes: u64,
    /// The number of requests that failed here, but not in the recording. After 1,000, the rest is not simulated.
    pub new_failures: usize,
    /// The first of these requests.
    pub first_new_failure: Option<EventIndex>,
    /// For each request that failed in the recording, whether it is served.
    pub serves: Vec<bool>,
    /// Whether the setting also serves what the program still needed after the last failed request ([`StillNeeded`]).
    /// `None` if a request fails, or if it is not known that the program needed more.
    pub serves_rest: Option<bool>,
    /// How often a request was retried after the cache was released.
    pub retries: usize,
    /// Calls of `cudaMalloc`.
    pub segment_allocs: usize,
    /// Calls of `cudaFree`.
    pub segment_frees: usize,
    /// Ranges of pages that were mapped.
    pub maps: usize,
    /// Ranges of pages that were unmapped.
    pub unmaps: usize,
}

impl Outcome {
    /// Whether any request failed.
    pub fn runs_out(&self) -> bool {
        self.new_failures > 0 || self.serves.contains(&false)
    }

    /// Whether every request is served, including those that the program still needed, as far as they are known.
    pub fn fits(&self) -> bool {
        !self.runs_out() && self.serves_rest != Some(false)
    }

    /// The number of driver calls that allocate, free, map or unmap memory.
    pub fn driver_calls(&self) -> usize {
        self.segment_allocs + self.segment_frees + self.maps + self.unmaps
    }
}

impl WhatIf {
    /// Simulates a recording under its own settings and under each of `settings`. Replay the timeline first
    /// ([`Replay`](crate::replay::Replay)), so that the recorded sums are exact. Runs on several threads; the result
    /// does not depend on their number.
    pub fn of(snapshot: &Snapshot, timeline: &Timeline, settings: &[&str]) -> Self {
        Self::within(snapshot, timeline, settings, None)
    }

    /// The packed policy's peak of reserved memory, divided by the peak in use; `None` if nothing was in use.
    pub fn packed_ratio(&self) -> Option<f64> {
        let reserved_bytes = self.packed.outcome.peak_reserved_bytes;
        (self.packed_bytes > 0).then(|| reserved_bytes as f64 / self.packed_bytes as f64)
    }

    /// Like [`of`](Self::of), but given the device's total memory in bytes.
    pub fn within(
        snapshot: &Snapshot,
        timeline: &Timeline,
        settings: &[&str],
        device_total_bytes: Option<u64>,
    ) -> Self {
        Self::knowing(snapshot, timeline, settings, Known { device_total_bytes, ..Known::default() })
    }

    /// Like [`of`](Self::of), but also uses other information about the program.
    pub fn knowing(snapshot: &Snapshot, timeline: &Timeline, settings: &[&str], known: Known<'_>) -> Self {
        let recorded_config = snapshot.config();
        let failures = Failure::all(snapshot, timeline);
        let pressure = Pressure::of(snapshot, timeline);
        let total =
            known.device_total_bytes.or_else(|| snapshot.recorder().device_total_bytes(timeline.device));
        let capacity = Capacity::of(timeline, &failures, &pressure, total);
        let fraction = recorded_config.per_process_memory_fraction();
        let program = Program::of(snapshot, timeline);
        let mut configs = vec![(recorded_config.to_string(), recorded_config.clone())];
        for &setting in settings {
            if let Ok(parsed) = Config::parse(setting) {
                let needs_capacity = parsed.config.garbage_collection_threshold() > 0.0;
                if capacity.is_some() || !needs_capacity {
                    let config = parsed.config.with_tie_order(recorded_config.tie_order());
                    configs.push((setting.to_owned(), within_fraction(config, fraction)));
                }
            }
        }
        let device_bytes = capacity.map(|capacity| capacity.device_bytes(fraction));
        Self {
            recorded: recorded(snapshot, timeline, &program, failures.len()),
            rows: simulated(&program, &configs, device_bytes, known.still_needed),
            packed: simulate_packed(
                &program,
                fraction,
                device_bytes,
                last_step(known.step_ends),
                known.still_needed,
            ),
            requests: program.requests,
            packed_bytes: program.packed_bytes,
            capacity_bytes: capacity.map(|capacity| capacity.bytes),
            capacity_from: capacity.map(|capacity| capacity.source),
            failures,
        }
    }
}

/// The last event before the last step, and the last event in the last step.
fn last_step(step_ends: &[EventIndex]) -> Option<(EventIndex, EventIndex)> {
    match step_ends {
        [.., before, end] => Some((*before, *end)),
        _ => None,
    }
}

/// If more blocks are live at once, simulations run one after another, because each has a copy of all blocks.
const MANY_PLACES: usize = 1 << 16;

/// Simulates the program under each of the configurations, in order.
fn simulated(
    program: &Program,
    configs: &[(String, Config)],
    device_bytes: Option<u64>,
    still_needed: Option<&StillNeeded>,
) -> Vec<Row> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let workers = if program.places > MANY_PLACES { 1 } else { cores.min(configs.len()) };
    let (next, rows) = (AtomicUsize::new(0), Mutex::new(Vec::with_capacity(configs.len())));
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let nth = next.fetch_add(1, Ordering::Relaxed)
                    && let Some((setting, config)) = configs.get(nth)
                {
                    let mut outcome = simulate(program, config, device_bytes);
                    let rest = still_needed.filter(|_| !outcome.serves.is_empty() && !outcome.runs_out());
                    outcome.serves_rest = rest.map(|rest| serves_rest(program, config, device_bytes, rest));
                    let row = Row { setting: setting.clone(), outcome };
                    rows.lock().expect("a simulation does not panic").push((nth, row));
                }
            });
        }
    });
    let mut rows = rows.into_inner().expect("a simulation does not panic");
    rows.sort_by_key(|&(nth, _)| nth);
    rows.into_iter().map(|(_, row)| row).collect()
}

/// The outcome as the trace itself shows it.
fn recorded(snapshot: &Snapshot, timeline: &Timeline, program: &Program, failures: usize) -> Outcome {
    let trace = snapshot.trace(timeline.device);
    let count = |action| trace.iter().filter(|event| event.action == action).count();
    Outcome {
        peak_allocated_bytes: timeline.peak_allocated.level.allocated_bytes,
        peak_reserved_bytes: timeline.peak_reserved.level.reserved_bytes,
        new_failures: 0,
        first_new_failure: None,
        serves: vec![false; failures],
        serves_rest: None,
        retries: program.retries,
        segment_allocs: count(Action::SegmentAlloc),
        segment_frees: count(Action::SegmentFree),
        maps: count(Action::SegmentMap),
        unmaps: count(Action::SegmentUnmap),
    }
}
