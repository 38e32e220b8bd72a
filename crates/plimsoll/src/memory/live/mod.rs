//! Watching a running program's memory: [`serve`] in the program, [`Watcher`] outside it.
//!
//! The program listens on a Unix-domain socket, `PID.sock` in a private folder of the user (`folder.rs`). A
//! client that sends any line gets a line back: a [`Sample`] as JSON, with the schema
//! `plimsoll.live/1`. So `echo | nc -U SOCKET` prints one sample, and `plimsoll top` draws them. The line `snapshot` writes a
//! memory snapshot instead, and the answer names its file. Nothing is computed unless a client asks (`serve.rs`); `watcher.rs` is
//! the client. PyTorch programs under `plimsoll run` respond to the same lines.

mod folder;
mod serve;
mod watcher;

use std::collections::BTreeMap;

use plimsoll_tensor::Device;
use serde::{Deserialize, Serialize};

pub use serve::{Live, serve};
pub use watcher::{Watcher, running};

/// The schema version of a sample: incompatible changes increment it, new fields do not.
pub const SCHEMA: &str = "plimsoll.live/1";

/// A sample of a running program's memory. Sizes are in bytes.
///
/// ```
/// use plimsoll::memory::live::Sample;
/// use plimsoll::{Device, SimConfig, Tensor};
///
/// let device = Device::sim(SimConfig::new(1 << 30));
/// device.set_memory_limit(64 << 20);
/// let x = Tensor::zeros(&[1024, 1024], &device)?;
/// let sample = Sample::of(&device);
/// assert_eq!((sample.bound_bytes(), sample.allocated_bytes), (64 << 20, 4 << 20));
/// assert_eq!((sample.cached_bytes(), sample.other_bytes(), sample.free_bytes()), (16 << 20, 0, 44 << 20));
/// # Ok::<(), plimsoll::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// [`SCHEMA`].
    pub schema: String,
    /// The process.
    pub pid: u32,
    /// Its command line.
    pub command: String,
    /// The device's name.
    pub device: String,
    /// The device's memory.
    pub capacity_bytes: u64,
    /// Its free memory. Like `torch.cuda.mem_get_info()[0]`.
    pub device_free_bytes: u64,
    /// The limit on reserved bytes, if set.
    pub limit_bytes: Option<u64>,
    /// Allocated bytes.
    pub allocated_bytes: u64,
    /// Allocated bytes plus those in freed blocks that other streams still use.
    pub active_bytes: u64,
    /// Reserved bytes: allocated and cached.
    pub reserved_bytes: u64,
    /// Peak allocated bytes.
    pub peak_allocated_bytes: u64,
    /// Peak reserved bytes.
    pub peak_reserved_bytes: u64,
    /// Allocated bytes by category, with [`Category::name`](crate::Category::name) as the key; sums to `allocated_bytes`. For a
    /// PyTorch program, the known categories are parameters, buffers, gradients and optimizer states; `other` is everything
    /// else.
    pub by_category: BTreeMap<String, u64>,
    /// The largest cached block; None for a PyTorch program, whose allocator does not report it.
    pub largest_cached_bytes: Option<u64>,
    /// The number of retries after releasing the cache.
    pub num_alloc_retries: u64,
    /// The number of requests that ran out of memory.
    pub num_ooms: u64,
    /// Steps that PyTorch's GradScaler skipped; None if the program does not use it.
    #[serde(default)]
    pub skipped_steps: Option<u64>,
    /// Resident memory of the process, if known.
    pub resident_bytes: Option<u64>,
    /// The number of steps begun ([`Device::mark_step`]).
    pub steps: u64,
    /// The allocated bytes at the start of each of the last 240 steps, oldest first.
    pub step_levels: Vec<u64>,
    /// The growth of `step_levels` per step ([`growth`]); None with too few steps.
    pub growth_bytes_per_step: Option<f64>,
    /// The process's rank in a job of several processes.
    #[serde(default)]
    pub rank: Option<u32>,
    /// The job's name, the same in all of its ranks.
    #[serde(default)]
    pub job: Option<String>,
}

impl Sample {
    /// Takes a sample of this process and this device.
    pub fn of(device: &Device) -> Sample {
        let gauges = device.memory_gauges();
        let by_category = gauges.by_category.iter();
        Sample {
            schema: SCHEMA.to_owned(),
            pid: std::process::id(),
            command: command(),
            device: device.name().to_owned(),
            capacity_bytes: gauges.memory.total_bytes,
            device_free_bytes: gauges.memory.free_bytes,
            limit_bytes: gauges.limit_bytes,
            allocated_bytes: gauges.allocated_bytes,
            active_bytes: gauges.active_bytes,
            reserved_bytes: gauges.reserved_bytes,
            peak_allocated_bytes: gauges.peak_allocated_bytes,
            peak_reserved_bytes: gauges.peak_reserved_bytes,
            by_category: by_category.map(|(category, bytes)| (category.name().to_owned(), bytes)).collect(),
            largest_cached_bytes: Some(gauges.largest_cached_bytes),
            num_alloc_retries: gauges.num_alloc_retries,
            num_ooms: gauges.num_ooms,
            skipped_steps: None,
            resident_bytes: super::process_resident_bytes(),
            steps: gauges.steps,
            growth_bytes_per_step: growth(&gauges.step_levels, gauges.steps),
            step_levels: gauges.step_levels,
            rank: None,
            job: None,
        }
    }

    /// The capacity: the limit if there is one, otherwise the device's memory.
    pub fn bound_bytes(&self) -> u64 {
        self.limit_bytes.map_or(self.capacity_bytes, |limit| limit.min(self.capacity_bytes))
    }

    /// Reserved but not allocated bytes: free blocks, and those that other streams still use.
    pub fn cached_bytes(&self) -> u64 {
        self.reserved_bytes.saturating_sub(self.allocated_bytes)
    }

    /// Bytes that can still be reserved: within the capacity, and free on the device.
    pub fn free_bytes(&self) -> u64 {
        self.bound_bytes().saturating_sub(self.reserved_bytes).min(self.device_free_bytes)
    }

    /// The part of the capacity that other processes use. Together with the allocated, cached and free bytes it sums to the
    /// capacity, unless the limit was lowered below the reserved bytes.
    pub fn other_bytes(&self) -> u64 {
        self.bound_bytes().saturating_sub(self.reserved_bytes) - self.free_bytes()
    }
}

/// The growth of levels per step, in bytes: the median of the slopes between all pairs of levels, which a few outliers do not
/// change (Theil, A rank-invariant method of linear and polynomial regression analysis, 1950; Sen 1968). `steps` is the number of
/// steps begun: the first three, which allocate gradients and optimizer state, do not count. None if fewer than four other levels
/// remain.
pub fn growth(step_levels: &[u64], steps: u64) -> Option<f64> {
    const WARM: u64 = 3;
    let before = steps.saturating_sub(step_levels.len() as u64);
    let warm = usize::try_from(WARM.saturating_sub(before)).unwrap_or(usize::MAX);
    let levels = step_levels.get(warm..).filter(|levels| levels.len() >= 4)?;
    let mut slopes = Vec::with_capacity(levels.len() * (levels.len() - 1) / 2);
    for (place, &level) in levels.iter().enumerate() {
        let later = levels[place + 1..].iter().zip(1u32..);
        slopes.extend(later.map(|(&later, apart)| (later as f64 - level as f64) / f64::from(apart)));
    }
    let middle = slopes.len() / 2;
    let (_, median, _) = slopes.select_nth_unstable_by(middle, f64::total_cmp);
    Some(*median)
}

/// This process's command line, without the program's folder.
fn command() -> String {
    let mut args = std::env::args_os();
    let program = args.next().unwrap_or_default();
    let program = std::path::Path::new(&program).file_name().unwrap_or(&program).to_os_string();
    let words = std::iter::once(program).chain(args).map(|word| word.to_string_lossy().into_owned());
    words.collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_the_usual_step_and_not_the_first_ones_or_an_odd_one() {
        let leak = |step: u64| 1000 + 64 * step;
        let mut levels: Vec<u64> = [0, 400, 800].into_iter().chain((0..20).map(leak)).collect();
        assert_eq!(growth(&levels, 23), Some(64.0));
        levels[12] += 5000;
        assert_eq!(growth(&levels, 23), Some(64.0));
        assert_eq!(growth(&[0, 400, 800, 900, 900, 900, 900], 7), Some(0.0));
        // Late in a run, the list no longer contains the first steps, so none are left out.
        assert_eq!(growth(&[10, 20, 30, 40], 100), Some(10.0));
    }

    #[test]
    fn a_few_steps_have_no_growth() {
        assert_eq!(growth(&[], 0), None);
        assert_eq!(growth(&[0, 400, 800, 900, 900, 900], 6), None);
    }

    #[test]
    fn what_others_hold_of_the_device_is_neither_free_nor_ours() {
        let device = Device::sim(plimsoll_tensor::SimConfig::new(100));
        let sample =
            Sample { device_free_bytes: 30, reserved_bytes: 50, allocated_bytes: 20, ..Sample::of(&device) };
        assert_eq!((sample.cached_bytes(), sample.other_bytes(), sample.free_bytes()), (30, 20, 30));
        // If the remaining limit is below the device's free memory, nothing counts as used by others.
        let limited = Sample { limit_bytes: Some(70), ..sample.clone() };
        assert_eq!((limited.other_bytes(), limited.free_bytes()), (0, 20));
        let lowered = Sample { limit_bytes: Some(10), ..sample };
        assert_eq!((lowered.other_bytes(), lowered.free_bytes()), (0, 0));
    }
}
