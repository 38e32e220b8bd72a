//! The process and device that decide the verdict: [`Judged`], with the [`Analysis`] of the process's snapshot.

use std::path::PathBuf;

use plimsoll_trace::explain::{DeviceExplanation, Options};
use plimsoll_trace::whatif::SETTINGS;

use crate::exit::Failure;
use crate::explained::Explained;
use crate::predict::gpu::Target;
use crate::protocol::{Peaks, Report};
use crate::recording::Recording;

/// The process that decides the verdict, and one of its devices.
pub(crate) struct Judged {
    pub(crate) report: Report,
    pub(crate) peaks: Peaks,
    /// The analysis of the device's snapshot; `None` if the process was killed before it wrote a snapshot.
    pub(crate) analysis: Option<Analysis>,
}

/// The analysis of one device in a snapshot.
pub(crate) struct Analysis {
    /// The snapshot's file, which is deleted with the run's folder.
    pub(crate) snapshot: PathBuf,
    /// The explanation of this device only.
    pub(crate) explained: Explained,
}

impl Analysis {
    /// Adds a replay of the requests under other allocator settings. On the simulated device, other programs use
    /// `others_bytes`.
    pub(crate) fn try_settings(&mut self, others_bytes: u64) {
        let Explained { snapshot, devices, .. } = &mut self.explained;
        let device = &mut devices[0];
        if device.what_if.is_none() {
            let total_bytes = device.ledger.device.total;
            let left_bytes = total_bytes.map(|bytes| bytes.saturating_sub(others_bytes));
            device.what_if = Some(device.simulated(snapshot, &SETTINGS, left_bytes));
        }
    }

    pub(crate) fn device(&self) -> &DeviceExplanation {
        &self.explained.devices[0]
    }
}

impl Judged {
    /// The process and device that decide the verdict; `None` if no memory was requested.
    ///
    /// # Errors
    /// If a snapshot cannot be read.
    pub(crate) fn among(reports: &[Report], target: &Target) -> Result<Option<Judged>, Failure> {
        worst(reports).map(|(report, peaks)| Judged::of(report, peaks, target)).transpose()
    }

    fn of(report: &Report, peaks: Peaks, target: &Target) -> Result<Judged, Failure> {
        let mut judged = Judged { report: report.clone(), peaks, analysis: None };
        let Some(snapshot) = report.snapshot.clone() else { return Ok(judged) };
        let recording = Recording::named(&snapshot, &format!("the recording of {}", report.name()), None)?;
        let options = Options { device_total_bytes: Some(target.total_bytes), ..Options::default() };
        let mut explained = Explained::of(recording, options);
        let devices = &explained.devices;
        // The device that ran out of memory is not always the device with the highest peak.
        let failed = devices.iter().position(|device| device.failure.is_some());
        let place = failed.or_else(|| devices.iter().position(|it| it.timeline.device == peaks.device));
        let Some(place) = place else { return Ok(judged) };
        let device = explained.devices.swap_remove(place);
        let timeline = &device.timeline;
        if let Some(counted) = report.devices.iter().find(|it| it.device == timeline.device) {
            judged.peaks = *counted;
        }
        // A program may reset PyTorch's counters; the recording still contains the peak.
        let (allocated, reserved) = (timeline.peak_allocated.level, timeline.peak_reserved.level);
        judged.peaks.allocated_bytes = judged.peaks.allocated_bytes.max(allocated.allocated_bytes);
        judged.peaks.reserved_bytes = judged.peaks.reserved_bytes.max(reserved.reserved_bytes);
        explained.devices = vec![device];
        explained.file = "SNAPSHOT".to_owned();
        judged.analysis = Some(Analysis { snapshot, explained });
        Ok(judged)
    }
}

/// The process and device that decide the verdict: those that ran out of memory, or else those that used the most
/// memory, including memory outside the allocator.
fn worst(reports: &[Report]) -> Option<(&Report, Peaks)> {
    let all = reports.iter().flat_map(|report| report.devices.iter().map(move |&peaks| (report, peaks)));
    // In a tie, the first process counts, which has the lowest rank.
    let taken = |peaks: &Peaks| peaks.counted_bytes() + peaks.outside_bytes.unwrap_or(0);
    all.rev().max_by_key(|(report, peaks)| (report.failures > 0, taken(peaks)))
}
