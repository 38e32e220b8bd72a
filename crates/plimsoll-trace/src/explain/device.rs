//! All that is told of one device: [`DeviceExplanation`].

use super::failure::Failure;
use super::holders::Holders;
use super::origin::Origins;
use super::passes::Passes;
use super::purpose::Purposes;
use crate::snapshot::{EventIndex, Snapshot};
use crate::timeline::Timeline;

/// What a snapshot tells of one device.
#[derive(Debug, Clone)]
pub struct DeviceExplanation {
    /// Who held what, when.
    pub timeline: Timeline,
    /// The passes of the program.
    pub passes: Passes,
    /// What each block was for.
    pub purposes: Purposes,
    /// The request that failed, if one did.
    pub failure: Option<Failure>,
    /// Who held the memory at [`DeviceExplanation::moment`].
    pub holders: Holders,
}

impl DeviceExplanation {
    /// Reads the device's trace, and infers what blocks were for if `infer`.
    pub fn of(snapshot: &Snapshot, device: i32, origins: &Origins, infer: bool) -> Self {
        let timeline = Timeline::of(snapshot, device);
        let trace = snapshot.trace(device);
        let passes = Passes::of(snapshot, trace, origins);
        let purposes = Purposes::of(snapshot, &timeline, origins, &passes, infer);
        let failure = Failure::of(&timeline, trace);
        let moment = failure.map_or(timeline.peak_allocated.after, |failure| Some(failure.at));
        let holders = Holders::after(&timeline, origins, &purposes, moment);
        Self { timeline, passes, purposes, failure, holders }
    }

    /// The moment that is explained: when memory ran out, or else when the most was allocated.
    pub fn moment(&self) -> Option<EventIndex> {
        self.holders.after
    }
}
