//! Memory that was still growing when the run was cut short: from step to step, or from batch to batch of a loop
//! after the steps ([`Growth`]). The growth in the rest of the program is extrapolated.

use std::collections::{BTreeMap, BTreeSet};

use plimsoll_alloc::Addr;
use plimsoll_trace::snapshot::{Action, EventIndex, FrameId};

use super::judged::Judged;
use crate::predict::gpu::Target;
use crate::predict::recording::read::place;
use crate::protocol::{CutLoop, GrowingBatches, GrowingSteps, Unit};

/// The unit in which memory grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Each {
    Step,
    Batch,
    Epoch,
    /// An iteration of an outer loop.
    Round,
}

impl Each {
    /// The unit's name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Each::Step => "step",
            Each::Batch => "batch",
            Each::Epoch => "epoch",
            Each::Round => "round",
        }
    }
}

/// Memory that grows, and the reserved bytes that are expected at the end of the program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Growth {
    pub(crate) each: Each,
    /// The bytes that are added in each step or batch in which memory grows.
    pub(crate) bytes: u64,
    /// The number of steps or batches in which memory grows once.
    pub(crate) every: u64,
    /// How many steps or batches ran.
    pub(crate) seen: u64,
    /// The number of steps or batches of the program, or of one iteration of the outer loop if that loop frees the
    /// memory; `None` if unknown.
    pub(crate) total: Option<u64>,
    /// Whether the memory is freed after `total` steps.
    pub(crate) resets: bool,
    /// Whether gradients and optimizer states grow, which all parameters have after `total` steps.
    pub(crate) is_states: bool,
    /// The line of a statement that may end the loop before `total` steps, depending on an unknown value.
    pub(crate) breaks: Option<String>,
    /// Whether only the peak grows, and not the memory that remains after a step.
    pub(crate) is_peak: bool,
    /// The responsible line: for growth by step, the line that allocates the kept blocks; for growth by
    /// batch, the loop's line.
    pub(crate) line: Option<String>,
    /// The reserved bytes at the end; `None` if the end is unknown.
    pub(crate) end_bytes: Option<u64>,
    /// The step or batch in which memory runs out; `None` if it does not run out.
    pub(crate) out_at: Option<u64>,
    /// The GPU memory that is left at the end, if the end is known and any is left.
    pub(crate) spare_bytes: u64,
}

impl Growth {
    /// Of all growth that was found, returns the growth that reaches the highest level. The verdict depends on this
    /// growth.
    pub(crate) fn of(judged: &Judged, target: &Target) -> Option<Growth> {
        let capacity_bytes = target.capacity_bytes();
        let steps = judged.report.growth.iter().filter(|it| it.device == judged.peaks.device);
        let steps = steps.filter_map(|it| of_steps(judged, it, capacity_bytes));
        let all = steps.chain(of_batches(judged, capacity_bytes));
        all.max_by_key(|it| (it.out_at.is_some(), it.end_bytes.unwrap_or(u64::MAX)))
    }

    /// Whether the program is known to reach its end without running out of memory.
    pub(crate) fn ends_well(&self) -> bool {
        self.out_at.is_none() && self.end_bytes.is_some()
    }
}

fn of_steps(judged: &Judged, growing: &GrowingSteps, capacity_bytes: u64) -> Option<Growth> {
    // A program that ended by itself makes no more steps, even if its loops have iterations left: it may have broken out of
    // a loop. If it did so because of an unknown value, it may make more steps on a GPU.
    let breaks = judged.report.breaks.as_ref();
    if !judged.report.cut && !breaks.is_some_and(|it| it.is_early) {
        return None;
    }
    let GrowingSteps { bytes, every, times, steps, total, resets, quickens, climbs, states, .. } = *growing;
    let every = every.max(1);
    // A tensor that grows by `cat` exists twice for a moment, so the peak rises by more than the memory that remains.
    let more_each = bytes.max(growing.peak_bytes);
    let needed_bytes = if climbs { judged.peaks.allocated_bytes } else { needed(judged, steps) };
    // The first step whose peak exceeds the capacity.
    let out_at =
        steps + (times_until(capacity_bytes.saturating_sub(needed_bytes), more_each, quickens) + 1) * every;
    let more_bytes = |total: u64| {
        let times = total.saturating_sub(steps) / every;
        let quicker = quickens.saturating_mul(times).saturating_mul(times) / 2;
        more_each.saturating_mul(times).saturating_add(quicker)
    };
    // Growth is not reported if it adds little memory even by the end of the program.
    if total.is_some_and(|total| more_bytes(total) < capacity_bytes / 50) {
        return None;
    }
    let end_bytes = total.map(|total| needed_bytes.saturating_add(more_bytes(total)));
    let out_at = Some(out_at).filter(|&step| total.is_none_or(|total| step <= total));
    Some(Growth {
        each: match growing.unit {
            Unit::Step => Each::Step,
            Unit::Epoch => Each::Epoch,
            Unit::Round => Each::Round,
        },
        bytes,
        every,
        seen: steps,
        total,
        resets,
        is_states: states,
        breaks: breaks.map(|it| place(&it.file, it.line)),
        is_peak: climbs,
        line: if climbs { None } else { kept_line(judged, times, every, bytes) },
        end_bytes,
        out_at,
        spare_bytes: capacity_bytes.saturating_sub(end_bytes.unwrap_or(u64::MAX)),
    })
}

/// The reserved bytes that the program needs at its peak. If memory is short, the allocator frees cached segments, so they
/// are not needed. What remains are gaps in segments that live blocks keep, unless these blocks are all from the last of
/// the `steps`: the next step replaces them.
fn needed(judged: &Judged, steps: u64) -> u64 {
    let Some(analysis) = judged.analysis.as_ref() else { return judged.peaks.reserved_bytes };
    let (snapshot, timeline) = (&analysis.explained.snapshot, &analysis.device().timeline);
    let events = snapshot.trace(timeline.device).len();
    let of_a_step = events / usize::try_from(steps).unwrap_or(usize::MAX).max(1);
    let last_step = EventIndex::new(events.saturating_sub(of_a_step));
    let old = timeline.held_at_end().filter(|life| life.born < last_step);
    let old: BTreeSet<Addr> = old.map(|life| life.addr).collect();
    let gaps = snapshot.segments_of(judged.peaks.device).filter(|it| it.is_expandable != Some(true));
    let gaps = gaps.filter(|it| old.range(it.address..it.end()).next().is_some());
    let gaps = gaps.map(|it| it.total_size.saturating_sub(it.active_size.get().unwrap_or(it.total_size)));
    let gap_bytes = gaps.fold(0, u64::saturating_add);
    judged.peaks.allocated_bytes.saturating_add(gap_bytes).min(judged.peaks.reserved_bytes)
}

/// How often memory can grow before `room` bytes are used up, if the first increase is `bytes`, and each later increase
/// is larger than the previous one by `quickens`.
fn times_until(room: u64, bytes: u64, quickens: u64) -> u64 {
    if quickens == 0 {
        return room / bytes.max(1);
    }
    // The positive root of quickens / 2 x^2 + bytes x = room.
    let (room, bytes, quickens) = (room as f64, bytes as f64, quickens as f64);
    (((bytes * bytes + 2.0 * quickens * room).sqrt() - bytes) / quickens) as u64
}

/// The line whose blocks the program keeps: several blocks that this line allocated in the later part of the recording are
/// live at the end, or the line replaces one block by a larger one. Memory grew `times` times by `bytes`.
fn kept_line(judged: &Judged, times: u64, every: u64, bytes: u64) -> Option<String> {
    let analysis = judged.analysis.as_ref()?;
    let (explained, timeline) = (&analysis.explained, &analysis.device().timeline);
    let events = explained.snapshot.trace(timeline.device).len();
    // If growth is rare, a longer part of the recording is needed.
    let later = EventIndex::new(if every > 1 { events / 4 } else { events / 2 });
    let mut lines = BTreeMap::new();
    for life in timeline.lives.iter().filter(|life| life.freed.is_none() && life.born >= later) {
        if let Some(frame) = explained.origins.get(life.stack).line {
            let (blocks, bytes) = lines.entry(frame).or_insert((0_u64, 0_u64));
            (*blocks, *bytes) = (*blocks + 1, *bytes + life.bytes);
        }
    }
    // One block that the latest step allocated does not prove that blocks are kept, unless it is as large as the growth.
    let is_kept = |&(_, &(blocks, live)): &(&FrameId, &(u64, u64))| {
        blocks >= (times / 4).max(2) || live >= bytes.saturating_mul(times) / 2
    };
    let (&frame, _) = lines.iter().filter(is_kept).max_by_key(|(_, (_, live))| *live)?;
    let frame = explained.snapshot.stacks.get_frame(frame);
    Some(place(explained.snapshot.texts.get(frame.filename), u64::try_from(frame.line).unwrap_or(0)))
}

fn of_batches(judged: &Judged, capacity_bytes: u64) -> Option<Growth> {
    let device = judged.peaks.device;
    let of = |cut: &CutLoop| cut.grows.iter().find(|it| it.device == device).cloned();
    let cut: Vec<_> = judged.report.loops.iter().filter_map(|cut| Some((cut, of(cut)?))).collect();
    let mut highest: Option<Growth> = None;
    for (nth, (cut, growing)) in cut.iter().enumerate() {
        let GrowingBatches { bytes, first_bytes, last_bytes, .. } = *growing;
        let line = cut.file.as_ref().zip(cut.line).map(|(file, line)| place(file, line));
        let (end_bytes, out_at) = match cut.total {
            None => {
                (None, cut.given + capacity_bytes.saturating_sub(judged.peaks.reserved_bytes) / bytes.max(1))
            }
            Some(total) => {
                let (rest, times) = (bytes * cut.left, total as f64 / cut.given.max(1) as f64);
                let scaled = |more: u64| (more as f64 * times) as u64;
                // Results that an earlier execution of the same loop left allocated.
                let before = cut_before(&judged.report.loops, cut, device).unwrap_or(first_bytes);
                let kept = first_bytes.saturating_sub(before);
                let kept = if kept * 2 > bytes * cut.given { scaled(kept) - kept } else { 0 };
                // After the loop, the program may copy the loop's results into one tensor, which doubles their memory.
                let behind = peak_after(judged, cut.ended_us).unwrap_or(0).saturating_sub(last_bytes);
                let behind = if behind * 2 > bytes * cut.given { scaled(behind) } else { behind };
                let end = (last_bytes + rest + kept + behind).max(judged.peaks.reserved_bytes);
                let room = capacity_bytes.saturating_sub(last_bytes + kept + behind);
                (Some(end), cut.given + room / bytes.max(1) + 1)
            }
        };
        let is_out = end_bytes.is_none_or(|end| end > capacity_bytes);
        let growth = Growth {
            each: Each::Batch,
            bytes,
            every: 1,
            seen: cut.given,
            total: cut.total,
            resets: false,
            is_states: false,
            breaks: None,
            is_peak: false,
            line,
            end_bytes,
            out_at: is_out.then_some(out_at.min(cut.total.unwrap_or(u64::MAX))),
            spare_bytes: capacity_bytes.saturating_sub(end_bytes.unwrap_or(u64::MAX)),
        };
        let is_higher = highest.as_ref().is_none_or(|it| it.end_bytes < growth.end_bytes);
        if nth == 0 || is_higher || growth.end_bytes.is_none() {
            highest = Some(growth);
        }
    }
    highest
}

/// Allocated bytes when the first loop at this line began.
fn cut_before(loops: &[CutLoop], cut: &CutLoop, device: i32) -> Option<u64> {
    let same = loops.iter().find(|it| (&it.file, it.line) == (&cut.file, cut.line))?;
    same.grows.iter().find(|it| it.device == device).map(|it| it.first_bytes)
}

/// The highest allocated bytes after this time.
fn peak_after(judged: &Judged, time_us: u64) -> Option<u64> {
    let analysis = judged.analysis.as_ref()?;
    let trace = analysis.explained.snapshot.trace(analysis.device().timeline.device);
    let (mut live, mut peak) = (i128::from(analysis.device().timeline.start.allocated_bytes), 0);
    for event in trace {
        live += match event.action {
            Action::Alloc => i128::from(event.size),
            Action::FreeCompleted => -i128::from(event.size),
            _ => 0,
        };
        if event.time_us.get().is_some_and(|time| time >= time_us) {
            peak = peak.max(live);
        }
    }
    u64::try_from(peak).ok()
}
