//! The allocator's options: [`Config`] has a field for each, and [`OPTIONS`] has its row for the configuration string.
//!
//! Both tables are in this file, so adding an option means changing this file and the code where the option takes
//! effect. The first table has an option's meaning, type, default and setter. The second has PyTorch's name for the
//! option, and how its value is read, written and found in a snapshot.

use super::error::{ConfigError, ConfigProblem, InvalidOption};
use super::fields::fields;
use super::pinned::{PinnedConfig, whole_mebibytes};
use super::reader::{Named, Reader};
use super::roundup;
use super::row::Pass::{Accelerator, Cuda, First};
use super::row::Value::{Count, Own, Real, Size, Switch};
use super::row::{self, Checked, Row};
use super::setting::Setting;
use super::value::{CaptureTest, MIB, ROUNDUP_ENTRIES, Reserve, RoundupRest, TieOrder};
use super::warning::WarningKind;
use crate::size::{LARGE_SEGMENT_BYTES, MIN_OWN_SEGMENT_BYTES};

fields! {
    /// The allocator's options. The defaults are PyTorch 2.15's.
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
        /// Blocks of this size or more, in bytes, are never split, and serve only requests of this size or more. None
        /// means no limit. In PyTorch: `max_split_size_mb`.
        max_split_bytes: Option<u64> = None, with_max_split_bytes
            /// It is not a whole number of MiB, or is below [`large_segment_bytes`](Self::large_segment_bytes).
            within Config::split_within_bounds;

        /// A request of [`max_split_bytes`](Self::max_split_bytes) or more uses a block only if the remainder is
        /// smaller than this, in bytes. In PyTorch: `max_non_split_rounding_mb`.
        max_non_split_rounding_bytes: u64 = LARGE_SEGMENT_BYTES, with_max_non_split_rounding_bytes
            /// It is not a whole number of MiB, or is below [`large_segment_bytes`](Self::large_segment_bytes).
            within Config::rounding_within_bounds;

        /// The fraction of the memory limit above which garbage is collected before new device memory is allocated, 0
        /// to 1; 0 is off. In PyTorch: `garbage_collection_threshold`.
        garbage_collection_threshold: f64 = 0.0, with_garbage_collection_threshold
            /// If it is negative, or is 1 or more.
            within Config::threshold_within_bounds;

        /// Whether segments are reserved as address space and mapped page by page.
        /// In PyTorch: `expandable_segments`.
        expandable_segments: bool = false, with_expandable_segments;

        /// How much address space an expandable segment reserves; None means 9/8 of the device's memory. In PyTorch:
        /// `expandable_segments_reserve`.
        expandable_segments_reserve: Option<Reserve> = None, with_expandable_segments_reserve
            /// If it is not positive and finite.
            within Config::reserve_within_bounds;

        /// The fraction of the device's memory that a new allocator may reserve, 0 to 1.
        /// In PyTorch: `per_process_memory_fraction`.
        per_process_memory_fraction: f64 = 1.0, with_per_process_memory_fraction
            /// If it is not between 0 and 1.
            within Config::fraction_within_bounds;

        /// Whether a request beyond [`per_process_memory_fraction`](Self::per_process_memory_fraction) fails before the
        /// cache is released. In PyTorch: `throw_on_cudamalloc_oom`.
        throw_on_cudamalloc_oom: bool = false, with_throw_on_cudamalloc_oom;

        /// Whether [`DeviceMemory`](crate::DeviceMemory) releases its lock while a segment is allocated, so that other
        /// threads can use the cache in the meantime. Two concurrent requests may then together exceed a limit. In
        /// PyTorch: `release_lock_on_cudamalloc`.
        release_lock_on_cudamalloc: bool = false, with_release_lock_on_cudamalloc;

        /// Whether blocks used on several streams may be reused within one graph capture, once the streams have joined.
        /// The driver must implement [`Driver::captured`](crate::Driver::captured). In PyTorch:
        /// `graph_capture_record_stream_reuse`.
        graph_capture_record_stream_reuse: bool = false, with_graph_capture_record_stream_reuse;

        /// The options of pinned host memory.
        pinned: PinnedConfig = PinnedConfig::default(), with_pinned;

        /// Which of two cached blocks of equal size serves a request. Not in the configuration string.
        tie_order: TieOrder = TieOrder::default(), with_tie_order;

        /// When a capture counts as being in progress. Not in the configuration string.
        capture_test: CaptureTest = CaptureTest::default(), with_capture_test;

        /// Which entries `>` sets in a list of [`roundup_power2_divisions`](Self::roundup_power2_divisions). Not in the
        /// configuration string.
        roundup_rest: RoundupRest = RoundupRest::default(), with_roundup_rest;

        /// Whether the cache is searched once more after a release that freed memory, before a request fails. PyTorch
        /// 2.15 does not search again. Not in the configuration string.
        search_again_after_release: bool = false, with_search_again_after_release;
    } and {
        large_segment_bytes: u64 = LARGE_SEGMENT_BYTES;
        roundup_power2_divisions: roundup::Table = [0; ROUNDUP_ENTRIES];
    }
}

/// The options of the configuration string of PyTorch 2.15, in the order in which they are written.
pub(super) static OPTIONS: &[Row<Config>] = &[
    Row::new(
        "large_segment_size_mb",
        First,
        Size(
            |config| Some(config.large_segment_bytes),
            |config, bytes| config.with_large_segment_bytes(bytes.unwrap_or(LARGE_SEGMENT_BYTES)),
        ),
    ),
    Row {
        in_snapshot: Some((1, "max_split_size")),
        ..Row::new(
            "max_split_size_mb",
            Accelerator,
            Size(Config::max_split_bytes, Config::with_max_split_bytes),
        )
    },
    Row::new(
        "max_non_split_rounding_mb",
        Accelerator,
        Size(
            |config| {
                let bytes = config.max_non_split_rounding_bytes;
                (bytes != config.large_segment_bytes).then_some(bytes)
            },
            |config, bytes| {
                let bytes = bytes.unwrap_or(config.large_segment_bytes);
                config.with_max_non_split_rounding_bytes(bytes)
            },
        ),
    ),
    Row {
        in_snapshot: Some((10, "roundup_power2_divisions")),
        ..Row::new(
            "roundup_power2_divisions",
            Accelerator,
            Own(row::Own {
                read: |reader, config, option| {
                    reader.value_at(option, option.at)?;
                    roundup::read(reader, option, config.roundup_rest, &mut config.roundup_power2_divisions)
                },
                written: |config| roundup::write(&config.roundup_power2_divisions, config.roundup_rest),
                setting: |config| Some(roundup::setting(&config.roundup_power2_divisions)),
                with_setting: |config, setting| {
                    let table = roundup::of_setting(config.roundup_power2_divisions, setting);
                    config.with_roundup_power2_divisions(table)
                },
            }),
        )
    },
    Row {
        in_snapshot: Some((2, "garbage_collection_threshold")),
        ..Row::new(
            "garbage_collection_threshold",
            Accelerator,
            Real(Config::garbage_collection_threshold, |config, threshold| match threshold {
                0.0 => Err(InvalidOption::ThresholdOutOfRange { threshold }), // 0 is off; a string leaves the option out instead
                _ => config.with_garbage_collection_threshold(threshold),
            }),
        )
    },
    Row {
        in_snapshot: Some((3, "expandable_segments")),
        ..Row::new(
            "expandable_segments",
            Accelerator,
            Switch(Config::expandable_segments, Config::with_expandable_segments),
        )
    },
    Row::new(
        "expandable_segments_reserve",
        Cuda,
        Own(row::Own {
            written: |config| config.expandable_segments_reserve.map(|reserve| reserve.to_string()),
            setting: |config| Some(Setting::Text(config.expandable_segments_reserve?.to_string())),
            ..row::Own::new(|reader, config, option| {
                let at = reader.value_at(option, option.at)?;
                let reserve = reader.reserve(option, at)?;
                config.expandable_segments_reserve = reserve.or(config.expandable_segments_reserve);
                Ok(at)
            })
        }),
    ),
    Row::new(
        "per_process_memory_fraction",
        Cuda,
        Real(Config::per_process_memory_fraction, Config::with_per_process_memory_fraction),
    ),
    Row::new(
        "throw_on_cudamalloc_oom",
        Cuda,
        Switch(Config::throw_on_cudamalloc_oom, Config::with_throw_on_cudamalloc_oom),
    ),
    Row {
        alias: Some("release_lock_on_hipmalloc"),
        in_snapshot: Some((5, "release_lock_on_cudamalloc")),
        ..Row::new(
            "release_lock_on_cudamalloc",
            Cuda,
            Switch(Config::release_lock_on_cudamalloc, Config::with_release_lock_on_cudamalloc),
        )
    },
    Row {
        in_snapshot: Some((7, "graph_capture_record_stream_reuse")),
        ..Row::new(
            "graph_capture_record_stream_reuse",
            Cuda,
            Switch(Config::graph_capture_record_stream_reuse, Config::with_graph_capture_record_stream_reuse),
        )
    },
    Row::new(
        "pinned_reserve_segment_size_mb",
        Cuda,
        Own(row::Own {
            written: |config| match config.pinned.reserve_segment_bytes() {
                0 => None,
                bytes => Some((bytes / MIB).to_string()),
            },
            setting: |config| Some(Setting::Integer(config.pinned.reserve_segment_bytes().cast_signed())),
            ..row::Own::new(pinned_reserve)
        }),
    ),
    Row {
        in_snapshot: Some((8, "max_round_threshold")),
        warning: rounds_more_than_it_caches,
        ..Row::new(
            "pinned_max_round_threshold_mb",
            Accelerator,
            Size(
                |config| config.pinned.max_round_threshold_bytes(),
                |config, bytes| config.pinning(|it| it.with_max_round_threshold_bytes(bytes)),
            ),
        )
    },
    Row {
        in_snapshot: Some((9, "max_cached_size")),
        warning: rounds_more_than_it_caches,
        ..Row::new(
            "pinned_max_cached_size_mb",
            Accelerator,
            Size(
                |config| config.pinned.max_cached_bytes(),
                |config, bytes| config.pinning(|it| it.with_max_cached_bytes(bytes)),
            ),
        )
    },
    Row {
        no_effect: Some("no background thread polls for events"),
        ..Row::new(
            "pinned_use_background_threads",
            Accelerator,
            Switch(
                |config| config.pinned.use_background_threads(),
                |config, on| Config { pinned: config.pinned.with_use_background_threads(on), ..config },
            ),
        )
    },
    Row {
        alias: Some("pinned_use_hip_host_register"),
        in_snapshot: Some((6, "pinned_use_cuda_host_register")),
        no_effect: Some("the driver decides how host memory is pinned"),
        ..Row::new(
            "pinned_use_cuda_host_register",
            Cuda,
            Switch(
                |config| config.pinned.use_cuda_host_register(),
                |config, on| Config { pinned: config.pinned.with_use_cuda_host_register(on), ..config },
            ),
        )
    },
    Row {
        in_snapshot: Some((4, "pinned_num_register_threads")),
        no_effect: Some("the driver decides how host memory is pinned"),
        ..Row::new(
            "pinned_num_register_threads",
            Cuda,
            Count(
                |config| config.pinned.num_register_threads(),
                |config, threads| config.pinning(|it| it.with_num_register_threads(threads)),
            ),
        )
    },
    Row {
        no_effect: Some("an error while freeing is always returned"),
        ..Row::new(
            "pinned_free_catch_all",
            Cuda,
            Switch(
                |config| config.pinned.free_catch_all(),
                |config, on| Config { pinned: config.pinned.with_free_catch_all(on), ..config },
            ),
        )
    },
    Row::new("backend", Cuda, Own(row::Own::new(|reader, _, option| reader.backend(option)))),
    Row {
        no_effect: Some("streams have no classes here"),
        ..Row::new(
            "expandable_segments_reserve_by_class",
            Cuda,
            Own(row::Own::new(|reader, _, option| reader.reserve_by_class(option))),
        )
    },
];

/// The option of this name.
pub(super) fn named(word: &str) -> Option<&'static Row<Config>> {
    OPTIONS.iter().find(|row| row.names().any(|name| name == word))
}

/// The options whose getter or setter the macro cannot make.
impl Config {
    /// The size, in bytes, of the segments that serve blocks between 1 MiB and 10 MiB. In PyTorch:
    /// `large_segment_size_mb`.
    pub fn large_segment_bytes(&self) -> u64 {
        self.large_segment_bytes
    }

    /// Sets [`large_segment_bytes`](Self::large_segment_bytes), and
    /// [`max_non_split_rounding_bytes`](Self::max_non_split_rounding_bytes) to the same, as PyTorch does.
    ///
    /// # Errors
    /// If it is not a whole number of MiB, is at most 10 MiB (every block cut from a segment must fit in one), or is
    /// more than [`max_split_bytes`](Self::max_split_bytes).
    pub fn with_large_segment_bytes(self, bytes: u64) -> Result<Self, InvalidOption> {
        whole_mebibytes(bytes)?;
        if bytes <= MIN_OWN_SEGMENT_BYTES {
            return Err(InvalidOption::LargeSegmentTooSmall { bytes });
        }
        match self.max_split_bytes {
            Some(split_bytes) if split_bytes < bytes => {
                Err(InvalidOption::BelowLargeSegment { bytes: split_bytes, at_least_bytes: bytes })
            }
            _ => Ok(Self { large_segment_bytes: bytes, max_non_split_rounding_bytes: bytes, ..self }),
        }
    }

    /// Into how many steps each power of two is divided for rounding, by size: a power of two, or 0 for off. Entry `i`
    /// is for sizes from 2^(20+i) to 2^(21+i) bytes. The first entry also covers all smaller sizes, and the last all
    /// larger ones. In PyTorch: `roundup_power2_divisions`.
    pub fn roundup_power2_divisions(&self) -> &[u64; ROUNDUP_ENTRIES] {
        &self.roundup_power2_divisions
    }

    /// Sets [`roundup_power2_divisions`](Self::roundup_power2_divisions).
    ///
    /// # Errors
    /// If an entry is neither a power of two nor 0.
    pub fn with_roundup_power2_divisions(
        self,
        divisions: [u64; ROUNDUP_ENTRIES],
    ) -> Result<Self, InvalidOption> {
        match divisions.iter().find(|&&divisions| divisions != 0 && !divisions.is_power_of_two()) {
            Some(&divisions) => Err(InvalidOption::NotAPowerOfTwo { value: divisions }),
            None => Ok(Self { roundup_power2_divisions: divisions, ..self }),
        }
    }

    /// Sets an option of pinned host memory.
    fn pinning(self, set: impl FnOnce(PinnedConfig) -> Checked<PinnedConfig>) -> Checked<Config> {
        Ok(Self { pinned: set(self.pinned)?, ..self })
    }

    /// The options before a string is applied: PyTorch resets some of them to their defaults first.
    pub(super) fn reset(self) -> Self {
        let fresh = Self::default();
        Self {
            max_split_bytes: fresh.max_split_bytes,
            garbage_collection_threshold: fresh.garbage_collection_threshold,
            roundup_power2_divisions: fresh.roundup_power2_divisions,
            max_non_split_rounding_bytes: self.large_segment_bytes,
            ..self
        }
    }
}

/// The bounds of the options' values.
impl Config {
    fn split_within_bounds(&self, bytes: Option<u64>) -> Result<Option<u64>, InvalidOption> {
        let at_least_bytes = self.large_segment_bytes;
        match bytes {
            Some(bytes) if bytes < at_least_bytes => {
                Err(InvalidOption::BelowLargeSegment { bytes, at_least_bytes })
            }
            bytes => whole_mebibytes(bytes.unwrap_or(0)).map(|()| bytes),
        }
    }

    fn rounding_within_bounds(&self, bytes: u64) -> Result<u64, InvalidOption> {
        let at_least_bytes = self.large_segment_bytes;
        whole_mebibytes(bytes)?;
        if bytes < at_least_bytes {
            return Err(InvalidOption::BelowLargeSegment { bytes, at_least_bytes });
        }
        Ok(bytes)
    }

    fn threshold_within_bounds(&self, threshold: f64) -> Result<f64, InvalidOption> {
        if !(0.0..1.0).contains(&threshold) {
            return Err(InvalidOption::ThresholdOutOfRange { threshold });
        }
        Ok(threshold + 0.0) // -0 becomes 0
    }

    fn reserve_within_bounds(&self, reserve: Option<Reserve>) -> Result<Option<Reserve>, InvalidOption> {
        match reserve {
            Some(reserve) if !reserve.is_valid() => Err(InvalidOption::ReserveOutOfRange { reserve }),
            reserve => Ok(reserve),
        }
    }

    fn fraction_within_bounds(&self, fraction: f64) -> Result<f64, InvalidOption> {
        if !(0.0..=1.0).contains(&fraction) {
            return Err(InvalidOption::FractionOutOfRange { fraction });
        }
        Ok(fraction + 0.0) // -0 becomes 0
    }
}

/// PyTorch does not check this size: the number of bytes wraps around, and may become 0.
fn pinned_reserve(reader: &mut Reader, config: &mut Config, option: Named) -> Result<usize, ConfigError> {
    let at = reader.value_at(option, option.at)?;
    let mebibytes = reader.whole(option, at)?;
    if mebibytes == 0 {
        return Err(reader.fail(option, at, ConfigProblem::Zero));
    }
    let bytes = mebibytes.wrapping_mul(MIB);
    if mebibytes.checked_mul(MIB).is_none() {
        reader.warn(at, WarningKind::Wrapped { value: bytes / MIB });
    }
    let pinned = config.pinned.with_reserve_segment_bytes(bytes);
    config.pinned = pinned.map_err(|why| reader.invalid(option, at, why))?;
    Ok(at)
}

/// PyTorch gives the same warning.
fn rounds_more_than_it_caches(config: &Config) -> Option<WarningKind> {
    let bounds = config.pinned.max_round_threshold_bytes().zip(config.pinned.max_cached_bytes());
    bounds.filter(|(rounded, cached)| rounded > cached).map(|_| WarningKind::RoundsMoreThanItCaches)
}
