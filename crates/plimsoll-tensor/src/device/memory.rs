//! The memory of a device: PyTorch's statistics, limits and settings, and the bytes of each owner.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use plimsoll_alloc::{CategoryBytes, Gauges, LabelId, MemoryInfo, Owner, Segment, Tag};

use super::Device;
use crate::alloc_conf;
use crate::error::{Error, Result};
use crate::facts::DeviceKind;
use crate::label;

/// The bytes of the context and the loaded kernels of a training run on an H200 (`train gpt --device cuda --json`:
/// `outside_allocator_bytes` minus `workspace_bytes`).
const CONTEXT_BYTES: u64 = 560_791_552;

impl Device {
    /// Bytes of live blocks now, including rounding.
    pub fn memory_allocated(&self) -> u64 {
        self.memory().memory_allocated()
    }

    /// Bytes obtained from the system now: live blocks and cache.
    pub fn memory_reserved(&self) -> u64 {
        self.memory().memory_reserved()
    }

    /// The peak of bytes in live blocks since the device was made or the peaks were reset.
    pub fn max_memory_allocated(&self) -> u64 {
        self.memory().max_memory_allocated()
    }

    /// The peak of bytes obtained from the system since the device was made or the peaks were reset.
    pub fn max_memory_reserved(&self) -> u64 {
        self.memory().max_memory_reserved()
    }

    /// Sets the peaks to the current values, also those by category and owner.
    pub fn reset_peak_memory_stats(&self) {
        self.memory().reset_peak_memory_stats();
    }

    /// Sets the running totals of bytes and requests to zero; peaks and current values stay.
    pub fn reset_accumulated_memory_stats(&self) {
        self.memory().reset_accumulated_memory_stats();
    }

    /// Returns all completely unused segments to the system.
    ///
    /// # Errors
    /// The driver's error, if it fails to free a segment.
    pub fn empty_cache(&self) -> Result<()> {
        self.memory().empty_cache().map(drop).map_err(|source| self.allocator_error(source))
    }

    /// All statistics under PyTorch's keys (`allocated_bytes.all.peak`, `num_ooms`, …), sorted.
    pub fn memory_stats(&self) -> BTreeMap<String, i64> {
        self.memory().memory_stats()
    }

    /// The statistics as a table, laid out as `torch.cuda.memory_summary`.
    pub fn memory_summary(&self) -> String {
        self.memory().memory_summary(&format!("Plimsoll memory summary, device {}", self.name()))
    }

    /// The current statistics, read together, and the levels at the most recent steps ([`Device::mark_step`]).
    pub fn memory_gauges(&self) -> Gauges {
        let mut gauges = self.memory().gauges();
        gauges.by_category = self.by_category(gauges.by_category, || self.memory().owners());
        gauges
    }

    /// Bytes of live blocks by category; they add up to [`Device::memory_allocated`].
    pub fn memory_by_category(&self) -> CategoryBytes {
        self.by_category(self.memory().by_category(), || self.memory().owners())
    }

    /// Bytes of live blocks by category at the peak; they add up to [`Device::max_memory_allocated`].
    pub fn peak_by_category(&self) -> CategoryBytes {
        self.by_category(self.memory().by_category_at_peak(), || self.memory().owners_at_peak())
    }

    /// The owners of the live bytes, largest first, each with the number of its tensors that have memory of their own; ties are in
    /// the order in which the names were registered. They add up to [`Device::memory_allocated`]. The bytes of a planned step's
    /// arena belong to the tensors that are in it when most of it is in use.
    ///
    /// ```
    /// use plimsoll_tensor::label::{Span, intern};
    /// use plimsoll_tensor::{Device, SimConfig, Tensor};
    /// let device = Device::sim(SimConfig::new(1 << 30));
    /// let _layer = Span::layer(intern("fc1"));
    /// let (x, y) = (Tensor::zeros(&[1024], &device)?, Tensor::zeros(&[1024], &device)?);
    /// let owners = device.owners();
    /// assert_eq!((owners[0].label.as_str(), owners[0].blocks, owners[0].bytes), ("fc1", 2, 8192));
    /// # Ok::<(), plimsoll_tensor::Error>(())
    /// ```
    pub fn owners(&self) -> Vec<label::Owner> {
        self.with_arenas(self.memory().owners())
    }

    /// The owners of the bytes at the peak, largest first; ties are in the order in which the names were registered.
    pub fn owners_at_peak(&self) -> Vec<label::Owner> {
        self.with_arenas(self.memory().owners_at_peak())
    }

    /// All segments with their blocks, sorted by address. Like `torch.cuda.memory_snapshot`.
    pub fn memory_snapshot(&self) -> Vec<Segment> {
        self.memory().segments()
    }

    /// Limits the reserved bytes from now on; `None` removes the limit. Memory that is already reserved stays; a request that
    /// needs more first releases cached segments.
    pub fn set_memory_limit(&self, bytes: impl Into<Option<u64>>) {
        self.memory().set_memory_limit(bytes.into());
    }

    /// Changes the allocator's settings from now on, in the format of `PYTORCH_ALLOC_CONF`; settings that are not named get their
    /// defaults. Reserved memory stays as it is. Like `torch.cuda.memory._set_allocator_settings`.
    ///
    /// ```
    /// use plimsoll_tensor::{Device, SimConfig};
    /// let gpu = Device::sim(SimConfig::like("H200")?);
    /// gpu.set_allocator_settings("expandable_segments:True")?;
    /// let error = gpu.set_allocator_settings("expandable_segments:maybe").unwrap_err().to_string();
    /// assert!(error.contains("expandable_segments"), "{error}");
    /// # Ok::<(), plimsoll_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// Settings that PyTorch refuses.
    pub fn set_allocator_settings(&self, settings: &str) -> Result<()> {
        let parsed = alloc_conf::parse(settings);
        self.memory().set_config(parsed.map_err(|why| Error::argument("set_allocator_settings", why))?);
        Ok(())
    }

    /// Limits the reserved bytes to a fraction of the device's memory; 1 removes the limit.
    ///
    /// # Errors
    /// A fraction that is not between 0 and 1.
    pub fn set_memory_fraction(&self, fraction: f64) -> Result<()> {
        self.memory().set_memory_fraction(fraction).map_err(|source| self.allocator_error(source))
    }

    /// The current limit on reserved bytes, if any.
    pub fn memory_limit(&self) -> Option<u64> {
        self.memory().memory_limit()
    }

    /// Free and total bytes of the device, like `torch.cuda.mem_get_info`.
    pub fn memory_info(&self) -> MemoryInfo {
        self.memory().memory_info()
    }

    /// Bytes of a GPU's memory that are in use outside this allocator: the context, kernels, workspaces of libraries, and other
    /// processes. For a simulated GPU, the expected value for one process, as measured on an H200 (driver 580): 561 MB for the
    /// context and kernels, and a workspace; cuDNN adds 8 MB, and NCCL adds the memory that the collectives so far would take.
    /// `None` if the device is not a GPU.
    ///
    /// ```
    /// use plimsoll_tensor::{Device, SimConfig};
    /// let h200 = Device::sim(SimConfig::like("H200")?);
    /// assert_eq!(h200.outside_bytes(), Some(594_345_984)); // to the byte what an H200 had after 60 steps of `train gpt`
    /// # Ok::<(), plimsoll_tensor::Error>(())
    /// ```
    pub fn outside_bytes(&self) -> Option<u64> {
        if self.facts().kind != DeviceKind::Cuda {
            return None;
        }
        if !self.has_values() {
            let nccl_bytes = self.0.nccl_bytes.load(Ordering::Relaxed);
            return Some(CONTEXT_BYTES + self.workspace_bytes() + nccl_bytes);
        }
        let MemoryInfo { free_bytes, total_bytes } = self.memory_info();
        Some(total_bytes.saturating_sub(free_bytes).saturating_sub(self.memory_reserved()))
    }

    /// Counts memory that NCCL would take on a simulated GPU.
    pub(crate) fn take_outside(&self, bytes: u64) {
        self.0.nccl_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes of the libraries' workspaces, which are outside the allocator. On a GPU, 32 MiB for each stream with matrix products
    /// or convolutions; otherwise 0.
    pub fn workspace_bytes(&self) -> u64 {
        self.0.backend.workspace_bytes()
    }

    /// Says which library could not be opened when it was needed, why, and what to install. For example, cuDNN is reported once a
    /// GPU has computed a convolution with slower kernels. `None` if no library was missing.
    ///
    /// ```
    /// use plimsoll_tensor::{Device, Tensor};
    /// let device = Device::cpu();
    /// let (images, filters) = (Tensor::ones(&[1, 3, 8, 8], &device)?, Tensor::ones(&[4, 3, 3, 3], &device)?);
    /// images.conv2d(&filters, None, Default::default())?;
    /// assert_eq!(device.missing_library(), None); // the host needs no library
    /// # Ok::<(), plimsoll_tensor::Error>(())
    /// ```
    pub fn missing_library(&self) -> Option<String> {
        self.0.backend.missing_library()
    }

    /// Bytes of this device's segments that are resident in host memory now; `None` if they are not host
    /// memory or the system does not report it. The system maps pages on first touch, so this can be
    /// less than [`Device::memory_reserved`].
    pub fn resident_bytes(&self) -> Option<u64> {
        self.0.backend.resident_bytes()
    }

    /// A label for a new arena whose bytes belong to these owners.
    pub(crate) fn new_arena(&self, owners: &[(Tag, u64)]) -> LabelId {
        self.0.arenas.add(owners)
    }

    /// These owners, with each arena replaced by the owners of its bytes.
    fn with_arenas(&self, owners: Vec<Owner>) -> Vec<label::Owner> {
        let named = |Owner { label, category, bytes, blocks }| {
            let label = label::text(label);
            label::Owner { label, category, bytes, blocks }
        };
        self.0.arenas.expand(owners).into_iter().map(named).collect()
    }

    /// The bytes of these owners by category; `known` if there are no arenas.
    fn by_category(&self, known: CategoryBytes, owners: impl FnOnce() -> Vec<Owner>) -> CategoryBytes {
        if self.0.arenas.is_empty() {
            return known;
        }
        let mut sums = CategoryBytes::default();
        self.0.arenas.expand(owners()).iter().for_each(|owner| sums[owner.category] += owner.bytes);
        sums
    }
}
