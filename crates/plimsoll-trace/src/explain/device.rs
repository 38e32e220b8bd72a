//! All that is told of one device: [`DeviceExplanation`].

use plimsoll_alloc::Category;

use super::fragmentation::{Fragmentation, Known};
use super::holders::{Holders, held};
use super::leaks::Leaks;
use super::ledger::Ledger;
use super::origin::Origins;
use super::passes::Passes;
use super::purpose::Purposes;
use super::steps::Steps;
use crate::failure::{Cause, Failure};
use crate::replay::Replay;
use crate::snapshot::{EventIndex, Snapshot};
use crate::timeline::{Life, Timeline};
use crate::whatif::{SETTINGS, WhatIf};

/// What a snapshot tells of one device.
#[derive(Debug, Clone)]
pub struct DeviceExplanation {
    /// Who held what, when.
    pub timeline: Timeline,
    /// How exactly our allocator reproduces it; what it found of blocks' sizes is in the timeline.
    pub replay: Replay,
    /// The passes of the program.
    pub passes: Passes,
    /// What each block was for.
    pub purposes: Purposes,
    /// The request that failed, if one did.
    pub failure: Option<Failure>,
    /// Who held the memory at [`DeviceExplanation::moment`].
    pub holders: Holders,
    /// Where the device's bytes were then.
    pub ledger: Ledger,
    /// The holes in them.
    pub fragmentation: Fragmentation,
    /// The steps of the program.
    pub steps: Steps,
    /// What grows from step to step.
    pub leaks: Leaks,
    /// What other settings would have come to; asked only where memory ran out although the blocks
    /// would fit, or may.
    pub what_if: Option<WhatIf>,
}

/// What is asked for beside the snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Whether to infer what blocks were for.
    pub infer: bool,
    /// What the whole device has, bytes, where that is known: no snapshot tells it.
    pub device_total_bytes: Option<u64>,
}

impl DeviceExplanation {
    /// Reads the device's trace.
    pub fn of(snapshot: &Snapshot, device: i32, origins: &Origins, options: Options) -> Self {
        let mut timeline = Timeline::of(snapshot, device);
        let replay = Replay::of(snapshot, &mut timeline);
        let trace = snapshot.trace(device);
        let passes = Passes::of(snapshot, trace, origins);
        let purposes = Purposes::of(snapshot, &timeline, origins, &passes, options.infer);
        let failure = Failure::last(snapshot, &timeline);
        let moment = failure.map_or(timeline.peak_allocated.after, |failure| Some(failure.at));
        let holders = Holders::after(&timeline, origins, &purposes, moment);
        let ledger = Ledger::of(snapshot, &timeline, moment, options.device_total_bytes);
        let known = Known { snapshot, timeline: &timeline, origins, purposes: &purposes };
        let steps = Steps::of(snapshot, device, origins, &passes);
        let begins: Vec<EventIndex> =
            steps.boundaries.iter().filter_map(|end| EventIndex::new(end.index() + 1)).collect();
        let fragmentation = Fragmentation::of(known, &begins, moment);
        let leaks = Leaks::of(snapshot, &timeline, origins, &purposes, &steps);
        let cause = failure.map(|failure| failure.cause());
        let may_fit = matches!(cause, Some(Cause::Fragmentation { .. } | Cause::Limit { .. }));
        let what_if = may_fit.then(|| WhatIf::of(snapshot, &timeline, &SETTINGS));
        Self {
            timeline,
            replay,
            passes,
            purposes,
            failure,
            holders,
            ledger,
            fragmentation,
            steps,
            leaks,
            what_if,
        }
    }

    /// The moment that is explained: when memory ran out, or else when the most was allocated.
    pub fn moment(&self) -> Option<EventIndex> {
        self.holders.after
    }

    /// The blocks that are held then, each with what it is for.
    pub fn held(&self) -> impl Iterator<Item = (&Life, Option<Category>)> {
        let held = held(&self.timeline, self.moment());
        held.map(|(index, life)| (life, self.purposes.get(index).category))
    }
}
