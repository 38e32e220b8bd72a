//! The memory of a device, as reported by a process: the [`Peaks`] of its requests, and the memory [`Outside`] these
//! requests.

use serde::Deserialize;

/// The peaks on one device, according to PyTorch's counters, and their steps, counted from 1. If a step number is the
/// number of steps plus one, the peak came after the last step.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub(crate) struct Peaks {
    /// The device's number in the process.
    pub(crate) device: i32,
    /// The device's number on the machine.
    pub(crate) gpu: u32,
    pub(crate) allocated_bytes: u64,
    pub(crate) allocated_step: u64,
    pub(crate) reserved_bytes: u64,
    pub(crate) reserved_step: u64,
    /// How much higher the peaks are after the steps than during them, as a fraction: the larger of the two increases.
    #[serde(default)]
    pub(crate) grows_by: f64,
    /// The bytes that the process had requested from CUDA when its memory on the device peaked.
    #[serde(default)]
    pub(crate) requested_bytes: u64,
    /// The bytes that the process was using outside these requests at that moment.
    #[serde(default)]
    pub(crate) outside_bytes: Option<u64>,
    /// The peak of the total of all processes on the device, including contexts. `None` if no other process used the
    /// device.
    #[serde(skip)]
    pub(crate) together_bytes: Option<u64>,
}

impl Peaks {
    /// The bytes that the process had requested from CUDA, through PyTorch or directly, when its total memory on the
    /// device peaked. Memory outside the allocator may peak at a different time than PyTorch's.
    pub(crate) fn counted_bytes(&self) -> u64 {
        if self.requested_bytes > 0 { self.requested_bytes } else { self.reserved_bytes }
    }

    /// Whether PyTorch's memory and the process's total memory peaked at different moments.
    pub(crate) fn peaks_apart(&self) -> bool {
        self.counted_bytes() < self.reserved_bytes
    }
}

/// Memory that a process uses on a device in addition to what it requests, at the peak of its memory on the device.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Outside {
    /// The device's number in the process.
    pub(crate) device: i32,
    pub(crate) owner: String,
    /// The part of the owner's memory, such as `ring`. Empty if the owner has only one part.
    pub(crate) part: String,
    pub(crate) bytes: u64,
    /// How the bytes are known: measured, derived, given or assumed.
    pub(crate) basis: String,
    /// The call that first allocated this memory.
    pub(crate) call: String,
}

/// An `Outside` row that did not fit.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Refused {
    pub(crate) row: Outside,
    /// The bytes that were free.
    pub(crate) free_bytes: u64,
}
