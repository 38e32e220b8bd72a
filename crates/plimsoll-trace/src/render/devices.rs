//! Several devices in one recording: the device that gives the recording's verdict, and the order in which devices are
//! listed. Side by side, devices are shown like the ranks of a job ([`RankTable`]).

use std::cmp::Reverse;

use super::ranks::RankTable;
use super::{Report, verdict, words};
use crate::explain::{DeviceExplanation, LineAcross};
use crate::snapshot::Snapshot;

/// Sorts the devices, the worst first. The order is: devices that ran out of memory, by the last failure, latest first,
/// because the last failure ended the program; then devices that leak; then the other devices by number.
pub fn worst_first(snapshot: &Snapshot, devices: &mut [DeviceExplanation]) {
    devices.sort_by_key(|device| severity(snapshot, device));
}

/// The sort key of [`worst_first`]: the worst device has the smallest key.
pub(super) fn severity(snapshot: &Snapshot, device: &DeviceExplanation) -> impl Ord + use<> {
    let failed = device.failure.map(|failure| {
        let event = snapshot.trace(device.timeline.device).get(failure.at.index());
        event.and_then(|event| event.time_us.get())
    });
    (Reverse(failed), Reverse(words::is_bad(device)), device.timeline.device)
}

/// The device whose verdict is the verdict of the recording: the first device, if something is wrong with it, or if it
/// is the only device. `None` otherwise. The devices must be in the order of [`worst_first`].
pub fn decisive(devices: &[DeviceExplanation]) -> Option<&DeviceExplanation> {
    devices.first().filter(|device| words::is_bad(device) || devices.len() == 1)
}

/// The verdict of the decisive device; if no device is decisive, the largest figures of all devices. The devices must
/// be in the order of [`worst_first`]. `size` formats a number of bytes.
pub fn verdict(devices: &[DeviceExplanation], size: impl Fn(u64) -> String) -> String {
    if let Some(device) = decisive(devices) {
        let of = match devices.len() {
            1 => String::new(),
            _ => format!("device {}: ", device.timeline.device),
        };
        return format!("{of}{}", verdict::sentence(device, size));
    }
    let allocated = |device: &DeviceExplanation| device.timeline.peak_allocated.level.allocated_bytes;
    let reserved = |device: &DeviceExplanation| device.timeline.peak_reserved.level.reserved_bytes;
    // Of equal devices, the first counts.
    let most = |of: &dyn Fn(&DeviceExplanation) -> u64| devices.iter().rev().max_by_key(|device| of(device));
    let (Some(a), Some(r)) = (most(&allocated), most(&reserved)) else { return "no device".to_owned() };
    let on = |device: &DeviceExplanation| format!("on device {}", device.timeline.device);
    let on_a = if a.timeline.device == r.timeline.device { String::new() } else { format!(" {}", on(a)) };
    if !devices.iter().any(words::has_events) {
        return format!(
            "no events were recorded on any of {} devices, so failures and peaks are unknown; at most \
             {} allocated{on_a}, {} reserved {} when the file was written",
            devices.len(),
            size(allocated(a)),
            size(reserved(r)),
            on(r)
        );
    }
    format!(
        "nothing failed on {} devices: peak {} allocated{on_a}, {} reserved {}",
        devices.len(),
        size(allocated(a)),
        size(reserved(r)),
        on(r)
    )
}

impl<'a> RankTable<'a> {
    /// Compares the devices of one recording side by side, in their order.
    pub fn of_devices(report: Report<'a>) -> Self {
        let devices = report.devices.iter().map(|device| (report, device));
        Self::named(devices.map(|(report, device)| {
            let name = format!("device {}", device.timeline.device);
            (name, report, device)
        }))
    }

    /// The lines with blocks on several devices, the largest first. If a model is spread over the devices, each device
    /// has a part of the model.
    pub fn shared(&self) -> Vec<&LineAcross> {
        let is_line = |line: &&LineAcross| line.place.is_some() && line.is_shared();
        let mut shared: Vec<&LineAcross> = self.ranks.lines.iter().filter(is_line).collect();
        shared.sort_by_key(|line| Reverse(line.across.sum_bytes));
        shared
    }
}

/// How many of a line's blocks are on one device: `12 of 24 blocks`.
pub fn part(line: &LineAcross, nth: usize) -> String {
    format!("{} of {}", line.blocks[nth], words::counted(line.sum_blocks(), "block"))
}
