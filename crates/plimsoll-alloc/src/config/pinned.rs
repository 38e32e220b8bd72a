//! The options of pinned host memory: [`PinnedConfig`].

use super::error::InvalidOption;
use super::value::MIB;

/// The options of pinned host memory. The default is that of PyTorch 2.15.
///
/// ```
/// # use plimsoll_alloc::PinnedConfig;
/// let pinned = PinnedConfig::default().with_max_cached_bytes(Some(64 << 20))?;
/// assert_eq!(pinned.max_cached_bytes(), Some(64 << 20));
/// # Ok::<(), plimsoll_alloc::InvalidOption>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PinnedConfig {
    reserve_segment_bytes: u64,
    max_round_threshold_bytes: Option<u64>,
    max_cached_bytes: Option<u64>,
    use_background_threads: bool,
    use_cuda_host_register: bool,
    num_register_threads: u64,
    free_catch_all: bool,
}

impl Default for PinnedConfig {
    fn default() -> Self {
        Self {
            reserve_segment_bytes: 0,
            max_round_threshold_bytes: None,
            max_cached_bytes: None,
            use_background_threads: false,
            use_cuda_host_register: false,
            num_register_threads: 1,
            free_catch_all: false,
        }
    }
}

/// The options' values.
impl PinnedConfig {
    /// One segment of this size is pinned up front, and small requests are carved from it; bytes, 0 is none.
    /// As PyTorch: `pinned_reserve_segment_size_mb`.
    pub fn reserve_segment_bytes(&self) -> u64 {
        self.reserve_segment_bytes
    }

    /// Requests above this are not rounded to a power of two; bytes, None means no limit.
    /// As PyTorch: `pinned_max_round_threshold_mb`.
    pub fn max_round_threshold_bytes(&self) -> Option<u64> {
        self.max_round_threshold_bytes
    }

    /// Blocks above this are not cached when freed; bytes, None means no limit.
    /// As PyTorch: `pinned_max_cached_size_mb`.
    pub fn max_cached_bytes(&self) -> Option<u64> {
        self.max_cached_bytes
    }

    /// Whether a background thread polls for events. As PyTorch: `pinned_use_background_threads`.
    pub fn use_background_threads(&self) -> bool {
        self.use_background_threads
    }

    /// Whether host memory is allocated first and then registered.
    /// As PyTorch: `pinned_use_cuda_host_register`.
    pub fn use_cuda_host_register(&self) -> bool {
        self.use_cuda_host_register
    }

    /// The number of threads that touch the pages before they are registered.
    /// As PyTorch: `pinned_num_register_threads`.
    pub fn num_register_threads(&self) -> u64 {
        self.num_register_threads
    }

    /// Whether errors while freeing are ignored. As PyTorch: `pinned_free_catch_all`.
    pub fn free_catch_all(&self) -> bool {
        self.free_catch_all
    }
}

/// The options' setters.
impl PinnedConfig {
    /// Sets [`reserve_segment_bytes`](Self::reserve_segment_bytes).
    ///
    /// # Errors
    /// Unless it is whole MiB.
    pub fn with_reserve_segment_bytes(self, bytes: u64) -> Result<Self, InvalidOption> {
        whole_mebibytes(bytes)?;
        Ok(Self { reserve_segment_bytes: bytes, ..self })
    }

    /// Sets [`max_round_threshold_bytes`](Self::max_round_threshold_bytes).
    ///
    /// # Errors
    /// Unless it is whole MiB.
    pub fn with_max_round_threshold_bytes(self, bytes: Option<u64>) -> Result<Self, InvalidOption> {
        whole_mebibytes(bytes.unwrap_or(0))?;
        Ok(Self { max_round_threshold_bytes: bytes, ..self })
    }

    /// Sets [`max_cached_bytes`](Self::max_cached_bytes).
    ///
    /// # Errors
    /// Unless it is whole MiB.
    pub fn with_max_cached_bytes(self, bytes: Option<u64>) -> Result<Self, InvalidOption> {
        whole_mebibytes(bytes.unwrap_or(0))?;
        Ok(Self { max_cached_bytes: bytes, ..self })
    }

    /// Sets [`use_background_threads`](Self::use_background_threads).
    pub fn with_use_background_threads(self, on: bool) -> Self {
        Self { use_background_threads: on, ..self }
    }

    /// Sets [`use_cuda_host_register`](Self::use_cuda_host_register).
    pub fn with_use_cuda_host_register(self, on: bool) -> Self {
        Self { use_cuda_host_register: on, ..self }
    }

    /// Sets [`num_register_threads`](Self::num_register_threads).
    ///
    /// # Errors
    /// Unless it is a power of two up to 128.
    pub fn with_num_register_threads(self, threads: u64) -> Result<Self, InvalidOption> {
        if !threads.is_power_of_two() || threads > 128 {
            return Err(InvalidOption::RegisterThreads { threads });
        }
        Ok(Self { num_register_threads: threads, ..self })
    }

    /// Sets [`free_catch_all`](Self::free_catch_all).
    pub fn with_free_catch_all(self, on: bool) -> Self {
        Self { free_catch_all: on, ..self }
    }
}

/// Sizes are whole MiB, so that every `Config` can be written as a string.
pub(super) fn whole_mebibytes(bytes: u64) -> Result<(), InvalidOption> {
    if bytes.is_multiple_of(MIB) { Ok(()) } else { Err(InvalidOption::NotWholeMebibytes { bytes }) }
}
