//! The options, their defaults and their meaning: [`Config`].

use super::pinned::PinnedConfig;
use super::value::{CaptureTest, ROUNDUP_ENTRIES, Reserve, RoundupRest, TieOrder};
use crate::size::LARGE_SEGMENT_BYTES;

/// The allocator's options. The default is that of PyTorch 2.15.
///
/// ```
/// # use plimsoll_alloc::Config;
/// let config = Config::default().with_large_segment_bytes(64 << 20)?.with_expandable_segments(true);
/// assert_eq!(config.to_string(), "large_segment_size_mb:64,expandable_segments:True");
/// assert_eq!(Config::parse("expandable_segments:True, large_segment_size_mb:64")?.config, config);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    pub(super) max_split_bytes: Option<u64>,
    pub(super) max_non_split_rounding_bytes: u64,
    pub(super) large_segment_bytes: u64,
    pub(super) roundup_power2_divisions: [u64; ROUNDUP_ENTRIES],
    pub(super) garbage_collection_threshold: f64,
    pub(super) expandable_segments: bool,
    pub(super) expandable_segments_reserve: Option<Reserve>,
    pub(super) per_process_memory_fraction: f64,
    pub(super) throw_on_cudamalloc_oom: bool,
    pub(super) release_lock_on_cudamalloc: bool,
    pub(super) graph_capture_record_stream_reuse: bool,
    pub(super) pinned: PinnedConfig,
    pub(super) tie_order: TieOrder,
    pub(super) roundup_rest: RoundupRest,
    pub(super) capture_test: CaptureTest,
    pub(super) search_again_after_release: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            max_split_bytes: None,
            max_non_split_rounding_bytes: LARGE_SEGMENT_BYTES,
            large_segment_bytes: LARGE_SEGMENT_BYTES,
            roundup_power2_divisions: [0; ROUNDUP_ENTRIES],
            garbage_collection_threshold: 0.0,
            expandable_segments: false,
            expandable_segments_reserve: None,
            per_process_memory_fraction: 1.0,
            throw_on_cudamalloc_oom: false,
            release_lock_on_cudamalloc: false,
            graph_capture_record_stream_reuse: false,
            pinned: PinnedConfig::default(),
            tie_order: TieOrder::default(),
            roundup_rest: RoundupRest::default(),
            capture_test: CaptureTest::default(),
            search_again_after_release: false,
        }
    }
}

/// The options' values.
impl Config {
    /// Blocks of this size or more are never split, and serve only requests of this size or more; bytes.
    /// None means no limit. As PyTorch: `max_split_size_mb`.
    pub fn max_split_bytes(&self) -> Option<u64> {
        self.max_split_bytes
    }

    /// A request of [`max_split_bytes`](Self::max_split_bytes) or more takes a block only if the remainder
    /// is less than this, bytes. As PyTorch: `max_non_split_rounding_mb`.
    pub fn max_non_split_rounding_bytes(&self) -> u64 {
        self.max_non_split_rounding_bytes
    }

    /// The size of the segments that serve blocks between 1 MiB and 10 MiB, bytes.
    /// As PyTorch: `large_segment_size_mb`.
    pub fn large_segment_bytes(&self) -> u64 {
        self.large_segment_bytes
    }

    /// The number of divisions of a power of two for rounding, by size; each a power of two, or 0 for off.
    /// Entry `i` is for sizes from 2^(20+i) to 2^(21+i) bytes, the first for all smaller ones too, the last
    /// for all larger ones. As PyTorch: `roundup_power2_divisions`.
    pub fn roundup_power2_divisions(&self) -> &[u64; ROUNDUP_ENTRIES] {
        &self.roundup_power2_divisions
    }

    /// The fraction of the memory limit above which garbage is collected before the device is asked, 0 to 1;
    /// 0 is off. As PyTorch: `garbage_collection_threshold`.
    pub fn garbage_collection_threshold(&self) -> f64 {
        self.garbage_collection_threshold
    }

    /// Whether segments are reserved as address space and mapped page by page.
    /// As PyTorch: `expandable_segments`.
    pub fn expandable_segments(&self) -> bool {
        self.expandable_segments
    }

    /// How much address space an expandable segment reserves; None is 9/8 of the device's memory.
    /// As PyTorch: `expandable_segments_reserve`.
    pub fn expandable_segments_reserve(&self) -> Option<Reserve> {
        self.expandable_segments_reserve
    }

    /// The fraction of the device's memory that a new allocator may reserve, 0 to 1.
    /// As PyTorch: `per_process_memory_fraction`.
    pub fn per_process_memory_fraction(&self) -> f64 {
        self.per_process_memory_fraction
    }

    /// Whether a request beyond that fraction fails before the cache is released.
    /// As PyTorch: `throw_on_cudamalloc_oom`.
    pub fn throw_on_cudamalloc_oom(&self) -> bool {
        self.throw_on_cudamalloc_oom
    }

    /// Whether [`DeviceMemory`](crate::DeviceMemory) releases its lock while a segment is allocated, so that others
    /// can use the cache meanwhile. Two concurrent requests may then exceed a limit together.
    /// As PyTorch: `release_lock_on_cudamalloc`.
    pub fn release_lock_on_cudamalloc(&self) -> bool {
        self.release_lock_on_cudamalloc
    }

    /// Whether blocks used on several streams may be reused within one graph capture, once the streams have
    /// joined; [`Driver::captured`](crate::Driver::captured) must say so.
    /// As PyTorch: `graph_capture_record_stream_reuse`.
    pub fn graph_capture_record_stream_reuse(&self) -> bool {
        self.graph_capture_record_stream_reuse
    }

    /// The options of pinned host memory.
    pub fn pinned(&self) -> PinnedConfig {
        self.pinned
    }

    /// Which of two equal cached blocks is taken. Not in the configuration string.
    pub fn tie_order(&self) -> TieOrder {
        self.tie_order
    }

    /// What counts as a capture in progress. Not in the configuration string.
    pub fn capture_test(&self) -> CaptureTest {
        self.capture_test
    }

    /// How a list of [`roundup_power2_divisions`](Self::roundup_power2_divisions) is read.
    /// Not in the configuration string.
    pub fn roundup_rest(&self) -> RoundupRest {
        self.roundup_rest
    }

    /// Whether the cache is searched once more after a release that freed memory, before a request fails.
    /// PyTorch 2.15 does not. Not in the configuration string.
    pub fn search_again_after_release(&self) -> bool {
        self.search_again_after_release
    }
}
