//! Block sizes and buckets.

use crate::config::PinnedConfig;

/// The number of buckets: one for each power of two that a block's size can be.
pub(super) const BUCKETS: usize = 64;
/// The largest block. There is no bucket for the next power of two (PyTorch would read past its buckets).
const MAX_BLOCK_BYTES: u64 = 1 << 63;

/// The next power of two, or `bytes` itself if it is above one of the two thresholds in the options. None if it is too
/// large.
pub(super) fn block_bytes(bytes: u64, config: &PinnedConfig) -> Option<u64> {
    let within = |bound: Option<u64>| bound.is_none_or(|bound| bytes <= bound);
    let rounds = within(config.max_round_threshold_bytes()) && within(config.max_cached_bytes());
    match rounds {
        _ if bytes > MAX_BLOCK_BYTES => None,
        true => Some(bytes.next_power_of_two()),
        false => Some(bytes),
    }
}

/// ceil(log2 `bytes`). Blocks of one bucket can have different sizes if their sizes were not rounded.
pub(super) fn bucket(bytes: u64) -> usize {
    bytes.next_power_of_two().trailing_zeros() as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[track_caller]
    fn check(
        round_threshold_bytes: Option<u64>,
        cached_bytes: Option<u64>,
        bytes: u64,
        expected: Option<u64>,
    ) {
        let config = PinnedConfig::default().with_max_round_threshold_bytes(round_threshold_bytes).unwrap();
        let config = config.with_max_cached_bytes(cached_bytes).unwrap();
        assert_eq!(block_bytes(bytes, &config), expected);
    }

    #[test]
    fn sizes_are_powers_of_two_up_to_both_bounds() {
        for (bytes, expected) in [(1, 1), (2, 2), (3, 4), (12, 16), (102_400, 131_072), (1 << 63, 1 << 63)] {
            check(None, None, bytes, Some(expected));
        }
        check(Some(MIB), None, MIB - 1, Some(MIB));
        check(Some(MIB), None, MIB + 1, Some(MIB + 1));
        check(None, Some(MIB), MIB + 1, Some(MIB + 1));
        check(Some(2 * MIB), Some(MIB), MIB + 1, Some(MIB + 1));
    }

    #[test]
    fn what_has_no_bucket_is_refused() {
        check(None, None, (1 << 63) + 1, None);
        check(Some(MIB), None, u64::MAX, None);
    }

    #[test]
    fn a_bucket_is_the_logarithm_rounded_up() {
        for (bytes, expected) in [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (3 * MIB, 22), (1 << 63, 63)] {
            assert_eq!(bucket(bytes), expected, "{bytes}");
        }
    }
}
