//! The memory of a device, as reported by a process: the [`Peaks`] of its requests, and the memory [`Outside`] of
//! them.

use serde::Deserialize;

/// The peaks on one device, according to PyTorch's counters, and their steps, counted from 1. A step number one
/// higher than the number of steps stands for a time after the last step.
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
    /// How much the code after the steps raises one of the two peaks, as a fraction of that peak. The
    /// fraction is large if the program was not cut short.
    #[serde(default)]
    pub(crate) grows_by: f64,
    /// The bytes that the process had requested from CUDA when its memory on the device peaked.
    #[serde(default)]
    pub(crate) requested_bytes: u64,
    /// The bytes that it was using outside those requests at that moment.
    #[serde(default)]
    pub(crate) outside_bytes: Option<u64>,
    /// The peak of the total of all processes on the device, including contexts. `None` if no other process used
    /// it.
    #[serde(skip)]
    pub(crate) together_bytes: Option<u64>,
}

impl Peaks {
    /// The bytes that the process had requested, through PyTorch or not, when all its memory on the device peaked.
    /// Memory outside the allocator may peak at a different time than PyTorch's.
    pub(crate) fn counted_bytes(&self) -> u64 {
        if self.requested_bytes > 0 { self.requested_bytes } else { self.reserved_bytes }
    }

    /// Whether PyTorch's memory and the process's total memory peaked at different moments.
    pub(crate) fn peaks_apart(&self) -> bool {
        self.counted_bytes() < self.reserved_bytes
    }
}

/// Memory that a process uses on a device beyond what it requests, when its memory there peaks.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Outside {
    /// The device's number in the process.
    pub(crate) device: i32,
    pub(crate) owner: String,
    /// Which part of the owner this is, such as `ring`. Empty if the owner has only one part.
    pub(crate) part: String,
    pub(crate) bytes: u64,
    /// Measured, derived, given or assumed.
    pub(crate) basis: String,
    /// The call that first allocated it.
    pub(crate) call: String,
}

/// An `Outside` row that did not fit.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Refused {
    pub(crate) row: Outside,
    /// The bytes that were free.
    pub(crate) free_bytes: u64,
}
