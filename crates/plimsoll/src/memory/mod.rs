//! Memory reports of a device.
//!
//! [`Report`] is the report of a run; [`outside_bytes`] is the one figure in it that does not come from the allocator. The
//! command-line program formats reports. To save the history of requests, use a snapshot in PyTorch's format ([`record_history`],
//! [`save_snapshot`]) or, for a long run, a log ([`stream_history`]). [`live`] watches a running program. [`growth`] finds memory that grows
//! from step to step.

mod growth;
pub mod live;
mod log;
mod snapshot;
mod text;

use std::fs;

pub use growth::{Grown, Growth, assert_no_growth, growth};
pub use log::{HistoryLog, stream_history};
pub use plimsoll_tensor::history::HistoryOptions;
pub use snapshot::{record_history, save_snapshot, snapshot, stop_history};

use plimsoll_tensor::{Category, Device, Owner};

/// A device's memory at its peak and now, in bytes. Displays as the account of the peak, by category and by owner.
///
/// ```
/// use plimsoll::{Category, CpuConfig, Device, Tensor, memory::Report};
/// let device = Device::cpu_with(CpuConfig::default());
/// let x = Tensor::zeros(&[1024, 1024], &device)?;
/// let report = Report::of(&device);
/// assert_eq!(report.peak_allocated_bytes, 4 << 20);
/// let whole: u64 = report.by_category.iter().map(|share| share.bytes).sum();
/// assert_eq!(whole, report.peak_allocated_bytes);
/// assert_eq!((report.owners[0].label.as_str(), report.owners[0].category), ("zeros", Category::Temporary));
/// # Ok::<(), plimsoll::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Report {
    /// The device's name.
    pub device: String,
    /// The device's memory.
    pub capacity_bytes: u64,
    /// The limit on reserved bytes, if set.
    pub limit_bytes: Option<u64>,
    /// Peak allocated bytes.
    pub peak_allocated_bytes: u64,
    /// Peak reserved bytes.
    pub peak_reserved_bytes: u64,
    /// Allocated bytes.
    pub allocated_bytes: u64,
    /// Reserved bytes.
    pub reserved_bytes: u64,
    /// Peak allocated bytes by category, in the order of [`Category::ALL`]. Sums to
    /// `peak_allocated_bytes`.
    pub by_category: Vec<CategoryShare>,
    /// Peak allocated bytes by owner, largest first. Sums to `peak_allocated_bytes`.
    pub owners: Vec<Owner>,
    /// Memory of the process outside the allocator, if known: see [`outside_bytes`].
    pub outside_bytes: Option<u64>,
    /// On a GPU, the part of `outside_bytes` that libraries use as workspace.
    pub workspace_bytes: Option<u64>,
}

/// Bytes of one category at the peak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CategoryShare {
    /// The purpose of the bytes.
    pub category: Category,
    /// The bytes.
    pub bytes: u64,
}

impl Report {
    /// Reports on a device, since it was made or its peaks were last reset.
    pub fn of(device: &Device) -> Report {
        let by_category = device.peak_by_category();
        Report {
            device: device.name().to_owned(),
            capacity_bytes: device.memory_info().total_bytes,
            limit_bytes: device.memory_limit(),
            peak_allocated_bytes: device.max_memory_allocated(),
            peak_reserved_bytes: device.max_memory_reserved(),
            allocated_bytes: device.memory_allocated(),
            reserved_bytes: device.memory_reserved(),
            by_category: by_category
                .iter()
                .map(|(category, bytes)| CategoryShare { category, bytes })
                .collect(),
            owners: device.owners_at_peak(),
            outside_bytes: outside_bytes(device),
            workspace_bytes: device.outside_bytes().map(|_| device.workspace_bytes()),
        }
    }

    /// The capacity: the limit if there is one, otherwise the device's memory.
    pub fn bound_bytes(&self) -> u64 {
        self.limit_bytes.map_or(self.capacity_bytes, |limit| limit.min(self.capacity_bytes))
    }

    /// The part of the capacity that was never reserved.
    pub fn spare_bytes(&self) -> u64 {
        self.bound_bytes().saturating_sub(self.peak_reserved_bytes)
    }

    /// The categories at the peak except parameters, largest first, each with the reason why training
    /// needs it.
    pub fn beyond_parameters(&self) -> Vec<(CategoryShare, &'static str)> {
        let mut rest: Vec<_> = self
            .by_category
            .iter()
            .filter(|share| share.category != Category::Parameter && share.bytes > 0)
            .map(|&share| (share, why(share.category)))
            .collect();
        rest.sort_by_key(|(share, _)| std::cmp::Reverse(share.bytes));
        rest
    }
}

/// Why training needs memory of a category.
pub fn why(category: Category) -> &'static str {
    match category {
        Category::Parameter => "the weights themselves",
        Category::Buffer => "state of layers that is not trained",
        Category::Gradient => "one value per weight, kept from the backward pass to the optimizer step",
        Category::OptimizerState => "what the optimizer keeps for each weight between steps",
        Category::Activation => "outputs of layers, kept for the backward pass",
        Category::Temporary => "intermediate results and gradients, freed once they are used",
        Category::Workspace => "scratch memory of the running kernel",
        Category::Input => "the current batch",
        Category::Output => "results that the program keeps",
    }
}

/// Memory outside the allocator. For a GPU: bytes of its memory that are in use but not reserved here: by the context,
/// kernels, workspaces and other processes. For a simulated GPU: the expected value ([`Device::outside_bytes`]). For
/// other devices: resident bytes of this process that `device` did not obtain, such as the program, its data set, its
/// threads, the matrix library's packing buffers, and other devices; `None` if the system does not report them (they
/// are read from `/proc`). A simulated device uses no memory, so all of the process counts as outside.
pub fn outside_bytes(device: &Device) -> Option<u64> {
    if let Some(outside) = device.outside_bytes() {
        return Some(outside);
    }
    let resident = process_resident_bytes()?;
    let ours = if device.has_values() { device.resident_bytes()? } else { 0 };
    Some(resident.saturating_sub(ours))
}

/// Resident bytes of this process.
pub fn process_resident_bytes() -> Option<u64> {
    process_status_bytes("VmRSS:")
}

/// Peak resident bytes of this process.
pub fn max_process_resident_bytes() -> Option<u64> {
    process_status_bytes("VmHWM:")
}

/// A size in this process's `/proc` status, which is in KiB.
fn process_status_bytes(field: &str) -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib << 10)
}

#[cfg(test)]
mod tests {
    use plimsoll_tensor::{SimConfig, Tensor};

    use super::*;

    #[test]
    fn spare_is_what_the_bound_leaves() {
        let device = Device::sim(SimConfig::new(1 << 30));
        device.set_memory_limit(64 << 20);
        let _x = Tensor::zeros(&[1024, 1024], &device).unwrap();
        let report = Report::of(&device);
        assert_eq!((report.bound_bytes(), report.spare_bytes()), (64 << 20, 44 << 20));
        assert_eq!(report.beyond_parameters()[0].0.category, Category::Temporary);
    }
}
