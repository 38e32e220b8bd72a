//! The options of pinned host memory: [`PinnedConfig`].

use super::error::InvalidOption;
use super::fields::fields;
use super::value::MIB;

fields! {
    /// The options of pinned host memory. The defaults are PyTorch 2.15's.
    ///
    /// ```
    /// # use plimsoll_alloc::PinnedConfig;
    /// let pinned = PinnedConfig::default().with_max_cached_bytes(Some(64 << 20))?;
    /// assert_eq!(pinned.max_cached_bytes(), Some(64 << 20));
    /// # Ok::<(), plimsoll_alloc::InvalidOption>(())
    /// ```
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct PinnedConfig {
        /// One segment of this size, in bytes, is pinned up front, and small requests are carved from it; 0
        /// means none. In PyTorch: `pinned_reserve_segment_size_mb`.
        reserve_segment_bytes: u64 = 0, with_reserve_segment_bytes
            /// It is not a whole number of MiB.
            within PinnedConfig::size_within_bounds;

        /// Requests above this many bytes are not rounded to a power of two; None means no limit. In
        /// PyTorch: `pinned_max_round_threshold_mb`.
        max_round_threshold_bytes: Option<u64> = None, with_max_round_threshold_bytes
            /// It is not a whole number of MiB.
            within PinnedConfig::limit_within_bounds;

        /// Blocks above this many bytes are not cached when freed; None means no limit. In PyTorch:
        /// `pinned_max_cached_size_mb`.
        max_cached_bytes: Option<u64> = None, with_max_cached_bytes
            /// It is not a whole number of MiB.
            within PinnedConfig::limit_within_bounds;

        /// Whether a background thread polls for events. In PyTorch: `pinned_use_background_threads`.
        use_background_threads: bool = false, with_use_background_threads;

        /// Whether host memory is allocated first and then registered.
        /// In PyTorch: `pinned_use_cuda_host_register`.
        use_cuda_host_register: bool = false, with_use_cuda_host_register;

        /// The number of threads that touch the pages before they are registered.
        /// In PyTorch: `pinned_num_register_threads`.
        num_register_threads: u64 = 1, with_num_register_threads
            /// If it is not a power of two up to 128.
            within PinnedConfig::threads_within_bounds;

        /// Whether errors while freeing are ignored. In PyTorch: `pinned_free_catch_all`.
        free_catch_all: bool = false, with_free_catch_all;
    } and {}
}

/// The bounds of the options' values.
impl PinnedConfig {
    fn size_within_bounds(&self, bytes: u64) -> Result<u64, InvalidOption> {
        whole_mebibytes(bytes).map(|()| bytes)
    }

    fn limit_within_bounds(&self, bytes: Option<u64>) -> Result<Option<u64>, InvalidOption> {
        whole_mebibytes(bytes.unwrap_or(0)).map(|()| bytes)
    }

    fn threads_within_bounds(&self, threads: u64) -> Result<u64, InvalidOption> {
        if !threads.is_power_of_two() || threads > 128 {
            return Err(InvalidOption::RegisterThreads { threads });
        }
        Ok(threads)
    }
}

/// Sizes are a whole number of MiB, so that every `Config` can be written as a string.
pub(super) fn whole_mebibytes(bytes: u64) -> Result<(), InvalidOption> {
    if bytes.is_multiple_of(MIB) { Ok(()) } else { Err(InvalidOption::NotWholeMebibytes { bytes }) }
}
