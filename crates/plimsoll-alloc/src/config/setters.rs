//! The setters of [`Config`]: each rejects invalid values.

use super::definition::Config;
use super::error::InvalidOption;
use super::pinned::{PinnedConfig, whole_mebibytes};
use super::value::{CaptureTest, ROUNDUP_ENTRIES, Reserve, RoundupRest, TieOrder};
use crate::size::MIN_OWN_SEGMENT_BYTES;

/// The options' setters.
impl Config {
    /// Sets [`max_split_bytes`](Self::max_split_bytes).
    ///
    /// # Errors
    /// Unless it is whole MiB and at least [`large_segment_bytes`](Self::large_segment_bytes).
    pub fn with_max_split_bytes(self, bytes: Option<u64>) -> Result<Self, InvalidOption> {
        let at_least_bytes = self.large_segment_bytes;
        match bytes {
            Some(bytes) if bytes < at_least_bytes => {
                Err(InvalidOption::BelowLargeSegment { bytes, at_least_bytes })
            }
            bytes => {
                whole_mebibytes(bytes.unwrap_or(0))?;
                Ok(Self { max_split_bytes: bytes, ..self })
            }
        }
    }

    /// Sets [`max_non_split_rounding_bytes`](Self::max_non_split_rounding_bytes).
    ///
    /// # Errors
    /// Unless it is whole MiB and at least [`large_segment_bytes`](Self::large_segment_bytes).
    pub fn with_max_non_split_rounding_bytes(self, bytes: u64) -> Result<Self, InvalidOption> {
        let at_least_bytes = self.large_segment_bytes;
        whole_mebibytes(bytes)?;
        if bytes < at_least_bytes {
            return Err(InvalidOption::BelowLargeSegment { bytes, at_least_bytes });
        }
        Ok(Self { max_non_split_rounding_bytes: bytes, ..self })
    }

    /// Sets [`large_segment_bytes`](Self::large_segment_bytes), and
    /// [`max_non_split_rounding_bytes`](Self::max_non_split_rounding_bytes) to the same, as PyTorch does.
    ///
    /// # Errors
    /// Unless it is whole MiB, more than 10 MiB (every block cut from one must fit in one) and at most
    /// [`max_split_bytes`](Self::max_split_bytes).
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

    /// Sets [`roundup_power2_divisions`](Self::roundup_power2_divisions).
    ///
    /// # Errors
    /// Unless each entry is a power of two, or 0.
    pub fn with_roundup_power2_divisions(
        self,
        divisions: [u64; ROUNDUP_ENTRIES],
    ) -> Result<Self, InvalidOption> {
        match divisions.iter().find(|&&divisions| divisions != 0 && !divisions.is_power_of_two()) {
            Some(&divisions) => Err(InvalidOption::NotAPowerOfTwo { value: divisions }),
            None => Ok(Self { roundup_power2_divisions: divisions, ..self }),
        }
    }

    /// Sets [`garbage_collection_threshold`](Self::garbage_collection_threshold); 0 is off.
    ///
    /// # Errors
    /// Unless it is at least 0 and less than 1.
    pub fn with_garbage_collection_threshold(self, threshold: f64) -> Result<Self, InvalidOption> {
        if !(0.0..1.0).contains(&threshold) {
            return Err(InvalidOption::ThresholdOutOfRange { threshold });
        }
        Ok(Self { garbage_collection_threshold: threshold + 0.0, ..self }) // -0 becomes 0
    }

    /// Sets [`expandable_segments`](Self::expandable_segments).
    pub fn with_expandable_segments(self, on: bool) -> Self {
        Self { expandable_segments: on, ..self }
    }

    /// Sets [`expandable_segments_reserve`](Self::expandable_segments_reserve).
    ///
    /// # Errors
    /// Unless it is more than 0 and finite.
    pub fn with_expandable_segments_reserve(self, reserve: Option<Reserve>) -> Result<Self, InvalidOption> {
        match reserve {
            Some(reserve) if !reserve.is_valid() => Err(InvalidOption::ReserveOutOfRange { reserve }),
            reserve => Ok(Self { expandable_segments_reserve: reserve, ..self }),
        }
    }

    /// Sets [`per_process_memory_fraction`](Self::per_process_memory_fraction).
    ///
    /// # Errors
    /// Unless it is between 0 and 1.
    pub fn with_per_process_memory_fraction(self, fraction: f64) -> Result<Self, InvalidOption> {
        if !(0.0..=1.0).contains(&fraction) {
            return Err(InvalidOption::FractionOutOfRange { fraction });
        }
        Ok(Self { per_process_memory_fraction: fraction + 0.0, ..self }) // -0 becomes 0
    }

    /// Sets [`throw_on_cudamalloc_oom`](Self::throw_on_cudamalloc_oom).
    pub fn with_throw_on_cudamalloc_oom(self, on: bool) -> Self {
        Self { throw_on_cudamalloc_oom: on, ..self }
    }

    /// Sets [`release_lock_on_cudamalloc`](Self::release_lock_on_cudamalloc).
    pub fn with_release_lock_on_cudamalloc(self, on: bool) -> Self {
        Self { release_lock_on_cudamalloc: on, ..self }
    }

    /// Sets [`graph_capture_record_stream_reuse`](Self::graph_capture_record_stream_reuse).
    pub fn with_graph_capture_record_stream_reuse(self, on: bool) -> Self {
        Self { graph_capture_record_stream_reuse: on, ..self }
    }

    /// Sets the options of pinned host memory.
    pub fn with_pinned(self, pinned: PinnedConfig) -> Self {
        Self { pinned, ..self }
    }

    /// Sets [`tie_order`](Self::tie_order).
    pub fn with_tie_order(self, order: TieOrder) -> Self {
        Self { tie_order: order, ..self }
    }

    /// Sets [`capture_test`](Self::capture_test).
    pub fn with_capture_test(self, test: CaptureTest) -> Self {
        Self { capture_test: test, ..self }
    }

    /// Sets [`roundup_rest`](Self::roundup_rest).
    pub fn with_roundup_rest(self, rest: RoundupRest) -> Self {
        Self { roundup_rest: rest, ..self }
    }

    /// Sets [`search_again_after_release`](Self::search_again_after_release).
    pub fn with_search_again_after_release(self, on: bool) -> Self {
        Self { search_again_after_release: on, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_segment_must_hold_every_block_that_is_cut_from_one() {
        let set = |bytes| Config::default().with_large_segment_bytes(bytes);
        assert_eq!(set(10 << 20), Err(InvalidOption::LargeSegmentTooSmall { bytes: 10 << 20 }));
        assert_eq!(set((20 << 20) + 1), Err(InvalidOption::NotWholeMebibytes { bytes: (20 << 20) + 1 }));
        assert_eq!(set(11 << 20).map(|config| config.large_segment_bytes()), Ok(11 << 20));
    }
}
