//! What a process says of a device: [`Peaks`] of its requests, and what it has [`Outside`] of them.

use serde::Deserialize;

/// The peaks of one device by PyTorch's counters, and their steps, from 1. One more than the number of steps means
/// after the last step.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub(crate) struct Peaks {
    /// The device's number in the process.
    pub(crate) device: i32,
    /// The device's number in the machine.
    pub(crate) gpu: u32,
    pub(crate) allocated_bytes: u64,
    pub(crate) allocated_step: u64,
    pub(crate) reserved_bytes: u64,
    pub(crate) reserved_step: u64,
    /// How much the code after the steps raises one of the two peaks, as a share of it. If the program was
    /// not cut short, it is large.
    #[serde(default)]
    pub(crate) grows_by: f64,
    /// What the process had requested of CUDA when its memory on the device peaked.
    #[serde(default)]
    pub(crate) requested_bytes: u64,
    /// The bytes that it had in addition, which it did not request: [`Outside`].
    #[serde(default)]
    pub(crate) outside_bytes: Option<u64>,
    /// The peak of all processes' total on it, contexts included; `None` if no other process used it.
    #[serde(skip)]
    pub(crate) together_bytes: Option<u64>,
}

impl Peaks {
    /// The bytes that the process had requested, through PyTorch or not, when all its memory on the device peaked. Memory outside the
    /// allocator may peak at another moment than PyTorch's.
    pub(crate) fn counted_bytes(&self) -> u64 {
        if self.requested_bytes > 0 { self.requested_bytes } else { self.reserved_bytes }
    }

    /// Whether PyTorch's memory peaked at another moment than all memory of the process.
    pub(crate) fn peaks_apart(&self) -> bool {
        self.counted_bytes() < self.reserved_bytes
    }
}

/// What a process has on a device beside the memory that it requests, when its memory there peaked.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Outside {
    /// The device's number in the process.
    pub(crate) device: i32,
    pub(crate) owner: String,
    /// Its part, as `ring`; empty if the owner has one only.
    pub(crate) part: String,
    pub(crate) bytes: u64,
    /// Measured, derived, given or assumed.
    pub(crate) basis: String,
    /// The call that took it first.
    pub(crate) call: String,
}

/// Memory outside the allocator that did not fit.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Refused {
    pub(crate) row: Outside,
    /// The bytes that were free.
    pub(crate) free_bytes: u64,
}
