//! How much memory the allocator could use, and the settings of a simulation that follow from it: [`Capacity`].

use plimsoll_alloc::Config;

use crate::failure::Failure;
use crate::pressure::Pressure;
use crate::timeline::Timeline;

/// The source of the capacity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CapacitySource {
    /// The capacity follows from a request that failed.
    Failure,
    /// A request that was retried. The available memory is at least the maximum that was reserved when a request was
    /// rejected.
    Retry,
    /// The device's total memory, as given by the recorder or the caller.
    DeviceTotal,
}

impl CapacitySource {
    /// The reason, in words.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Failure => "shown by the request that failed",
            Self::Retry => "the most that was reserved when a request was refused",
            Self::DeviceTotal => "the device's total",
        }
    }

    /// The reason in a word or two, for programs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Failure => "failure",
            Self::Retry => "retry",
            Self::DeviceTotal => "device total",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Capacity {
    pub(super) bytes: u64,
    pub(super) source: CapacitySource,
}

impl Capacity {
    /// The capacity that the recording shows, or the device's total memory if it is known, whichever is lower.
    pub(super) fn of(
        timeline: &Timeline,
        failures: &[Failure],
        pressure: &Pressure,
        device_total_bytes: Option<u64>,
    ) -> Option<Self> {
        // If there is a limit, assume that it applied from the start, so that it is at least the peak of reserved memory.
        let peak = timeline.peak_reserved.level.reserved_bytes;
        let failed = failures.first().and_then(|failure| match failure.limit {
            Some(limit) if peak < limit.below_bytes => Some(peak.max(limit.at_least_bytes)),
            _ => failure.capacity_bytes(),
        });
        let failed = failed.map(|bytes| Self { bytes, source: CapacitySource::Failure });
        let retried = pressure
            .capacity
            .map(|limit| Self { bytes: limit.at_least_bytes, source: CapacitySource::Retry });
        let total = device_total_bytes.map(|bytes| Self { bytes, source: CapacitySource::DeviceTotal });
        [failed.or(retried), total].into_iter().flatten().min_by_key(|capacity| capacity.bytes)
    }

    /// The total memory of the simulated device. If the process had a memory fraction, the total is chosen such that
    /// this fraction of it equals the capacity, unless the capacity is already the device's total.
    pub(super) fn device_bytes(self, fraction: f64) -> u64 {
        if self.source == CapacitySource::DeviceTotal || !(fraction > 0.0 && fraction < 1.0) {
            return self.bytes;
        }
        // Exact up to the precision of an f64.
        (self.bytes as f64 / fraction).ceil() as u64
    }
}

/// Applies the memory fraction of the process to the settings to try: they apply to the fraction, not to the complete
/// device.
pub(super) fn within_fraction(config: Config, fraction: f64) -> Config {
    let share = config.per_process_memory_fraction() * fraction;
    config.clone().with_per_process_memory_fraction(share).unwrap_or(config)
}
