//! One device of a recording on the page: [`Section`], with the data that the script draws.

use std::borrow::Cow;

use serde_json::{Value, json};

use super::buckets::{Buckets, number};
use super::flow::Ends;
use super::numbers::{self, grains};
use super::{
    BLOCKS, BOXES, BUCKETS, CELLS, FAILURES, ICICLE, MAP, SECTIONS, STEPS, TIMELINE, blocks, memory,
};
use crate::explain::DeviceExplanation;
use crate::render::{Report, words};
use crate::snapshot::{Action, Event, EventIndex};
use crate::whatif::{SETTINGS, WhatIf};

/// A part of the page: one device of a recording.
pub(super) struct Section<'a> {
    /// The name of the device; empty if there is only one section.
    pub(super) title: String,
    pub(super) report: Report<'a>,
    pub(super) device: &'a DeviceExplanation,
    /// Whether the top of the page shows the advice and the largest owners.
    pub(super) is_summed_up: bool,
}

impl Section<'_> {
    /// The simulation of other settings; `None` if no request was recorded.
    pub(super) fn what_if(&self) -> Option<Cow<'_, WhatIf>> {
        let device = self.device;
        if device.replay.requests == 0 {
            return None;
        }
        let known = device.what_if.as_ref().map(Cow::Borrowed);
        Some(known.unwrap_or_else(|| {
            Cow::Owned(device.simulated(self.report.snapshot, &SETTINGS, device.ledger.device.total))
        }))
    }

    /// The data that the script draws, for a page with this many sections: the more sections, the less data for each.
    pub(super) fn drawn(&self, sections: usize) -> Value {
        let share = |all: usize| (all / sections).max(all / SECTIONS);
        let device = self.device;
        let trace = self.report.snapshot.trace(device.timeline.device);
        let ends = Ends::of(&device.timeline);
        let buckets = Buckets::of(device, self.report.origins, trace, &ends, share(BUCKETS));
        json!({
            "explained": number(device.moment()),
            "when": words::when(device),
            "peak": number(device.timeline.peak_allocated.after),
            "failures": failures(trace),
            "limit": limit_bytes(device).map(grains),
            "steps": steps(device),
            "curve": buckets.json(&self.report),
            "memory": memory::json(device, trace, share(CELLS) as u64),
            "held": blocks::json(&self.report, device, share(BLOCKS), share(BOXES)),
        })
    }
}

/// The moments where steps end, evenly sampled.
fn steps(device: &DeviceExplanation) -> Value {
    let ends = &device.steps.boundaries;
    let apart = ends.len().div_ceil(STEPS).max(1);
    let ends = ends.iter().skip(apart - 1).step_by(apart);
    json!({ "apart": apart, "ends": numbers::words(ends.map(|&end| number(Some(end)))) })
}

/// The HTML elements into which the script draws; empty if there is nothing to draw.
pub(super) fn drawings(device: &DeviceExplanation) -> [&'static str; 3] {
    let timeline = &device.timeline;
    let is_any = [
        timeline.quality.events > 0,
        device.owners.bytes > 0,
        timeline.peak_reserved.level.reserved_bytes > 0,
    ];
    let mut parts = [TIMELINE, ICICLE, MAP];
    for (part, is_any) in parts.iter_mut().zip(is_any) {
        if !is_any {
            *part = "";
        }
    }
    parts
}

/// The most memory that the allocator could have used, according to a failed request; otherwise the device's total
/// memory, if known.
fn limit_bytes(device: &DeviceExplanation) -> Option<u64> {
    let at_failure = device.failure.and_then(|failure| failure.capacity_bytes());
    at_failure.or(device.ledger.device.total)
}

/// The last requests that failed, each as the number of a moment and the requested bytes.
fn failures(trace: &[Event]) -> Vec<[u64; 2]> {
    let failed = trace.iter().enumerate().rev().filter(|(_, event)| event.action == Action::Oom);
    let failed = failed.map(|(place, event)| [u64::from(number(EventIndex::new(place))), event.size]);
    failed.take(FAILURES).collect()
}
