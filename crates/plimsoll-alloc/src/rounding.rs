//! Rounding: the size of the block that serves a request, and the size of the segment that is allocated for it. Pure
//! arithmetic on sizes and options.
//!
//! In PyTorch: `round_size`, `get_allocation_size`.

use crate::config::Config;
use crate::size::{
    MIN_BLOCK_BYTES, MIN_OWN_SEGMENT_BYTES, ONE_EXBIBYTE, PoolKind, SEGMENT_GRAIN_BYTES, SMALL_BYTES,
    SMALL_SEGMENT_BYTES, kind_of,
};

impl Config {
    /// The size of the block that a request gets from a free block, bytes: all of it, or the rounded request if the
    /// remainder is worth keeping. For rebuilding blocks from a history of requests. `expandable` says whether the
    /// segment is expandable.
    ///
    /// ```
    /// # use plimsoll_alloc::Config;
    /// let config = Config::default();
    /// assert_eq!(config.cut_bytes(2_000_000, 20 << 20, false), 2_000_384);
    /// assert_eq!(config.cut_bytes(2_000_000, 3_000_000, false), 3_000_000); // less than 1 MiB would be left
    /// ```
    pub fn cut_bytes(&self, request_bytes: u64, free_bytes: u64, expandable: bool) -> u64 {
        let block_bytes = block_bytes(self, request_bytes);
        let rest_bytes = free_bytes.saturating_sub(block_bytes);
        let cut = is_worth_cutting(self, kind_of(block_bytes), expandable, block_bytes, rest_bytes);
        if cut { block_bytes } else { free_bytes }
    }
}

/// Whether a remainder is split off. In PyTorch: `should_split`.
#[inline]
pub(crate) fn is_worth_cutting(
    config: &Config,
    kind: PoolKind,
    expandable: bool,
    block_bytes: u64,
    rest_bytes: u64,
) -> bool {
    if kind == PoolKind::Small || expandable {
        rest_bytes >= MIN_BLOCK_BYTES
    } else {
        !is_oversize(config, block_bytes) && rest_bytes > SMALL_BYTES
    }
}

/// The block size for `bytes`: a multiple of 512, or rounded up to a fraction of a power of two
/// if `roundup_power2_divisions` is set. `bytes` must be below [`ONE_EXBIBYTE`] to avoid overflow.
pub(crate) fn block_bytes(config: &Config, bytes: u64) -> u64 {
    if bytes < MIN_BLOCK_BYTES {
        return MIN_BLOCK_BYTES;
    }
    let divisions = divisions_at(config.roundup_power2_divisions(), bytes);
    if divisions > 1 && bytes > MIN_BLOCK_BYTES.saturating_mul(divisions) {
        return rounded_to_part(bytes, divisions);
    }
    bytes.next_multiple_of(MIN_BLOCK_BYTES)
}

impl Config {
    /// The size that a request of `bytes` is rounded to, bytes. A cached block may be larger, if the remainder is not
    /// worth a split. Requests of one exbibyte or more count as one exbibyte.
    ///
    /// ```
    /// # use plimsoll_alloc::Config;
    /// assert_eq!(Config::default().block_bytes(1000), 1024);
    /// ```
    #[inline]
    pub fn block_bytes(&self, bytes: u64) -> u64 {
        block_bytes(self, bytes.min(ONE_EXBIBYTE))
    }

    /// The size of the segment that is allocated if no cached block fits `block_bytes`, bytes. Blocks of one
    /// exbibyte or more count as one exbibyte.
    ///
    /// ```
    /// # use plimsoll_alloc::Config;
    /// assert_eq!(Config::default().segment_bytes(3 << 20), 20 << 20);
    /// ```
    pub fn segment_bytes(&self, block_bytes: u64) -> u64 {
        segment_bytes(self, block_bytes.min(ONE_EXBIBYTE))
    }
}

#[inline(never)] // it divides, and is usually off
fn rounded_to_part(bytes: u64, divisions: u64) -> u64 {
    bytes.next_multiple_of(floor_power_of_two(bytes) / divisions)
}

/// The table's entry for `bytes`: one for each power of two from 1 MiB up. The first and last also cover all smaller
/// and larger sizes.
fn divisions_at(table: &[u64], bytes: u64) -> u64 {
    let entry = bytes.ilog2().saturating_sub(20) as usize;
    table[entry.min(table.len() - 1)]
}

fn floor_power_of_two(bytes: u64) -> u64 {
    1 << bytes.ilog2()
}

/// The size of the segment to allocate if no cached block fits `block_bytes`.
pub(crate) fn segment_bytes(config: &Config, block_bytes: u64) -> u64 {
    if block_bytes <= SMALL_BYTES {
        SMALL_SEGMENT_BYTES
    } else if block_bytes < MIN_OWN_SEGMENT_BYTES {
        config.large_segment_bytes()
    } else {
        block_bytes.next_multiple_of(SEGMENT_GRAIN_BYTES)
    }
}

/// Whether a block of this size is never split: `max_split_size`.
pub(crate) fn is_oversize(config: &Config, bytes: u64) -> bool {
    config.max_split_bytes().is_some_and(|max_split_bytes| bytes >= max_split_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_worked_examples_of_the_specification_hold() {
        let check = |request, block, kind, segment| {
            let config = Config::default();
            let bytes = block_bytes(&config, request);
            assert_eq!((bytes, kind_of(bytes), segment_bytes(&config, bytes)), (block, kind, segment));
        };
        check(1, 512, PoolKind::Small, 2 * MIB);
        check(1_048_576, 1_048_576, PoolKind::Small, 2 * MIB);
        check(1_048_577, 1_049_088, PoolKind::Large, 20 * MIB);
        check(10_485_248, 10_485_248, PoolKind::Large, 20 * MIB);
        check(10_485_249, 10_485_760, PoolKind::Large, 10 * MIB);
        check(10_485_760, 10_485_760, PoolKind::Large, 10 * MIB);
        check(10_485_761, 10_486_272, PoolKind::Large, 12 * MIB);
        check(11_534_336, 11_534_336, PoolKind::Large, 12 * MIB);
        check(ONE_EXBIBYTE - 1, ONE_EXBIBYTE, PoolKind::Large, ONE_EXBIBYTE);
    }

    #[test]
    fn the_threshold_of_own_segments_does_not_follow_the_large_segment_size() {
        let config = Config::default().with_large_segment_bytes(64 * MIB).unwrap();
        assert_eq!(segment_bytes(&config, 10_380_902 / 512 * 512), 64 * MIB); // 9.9 MiB
        assert_eq!(segment_bytes(&config, 10 * MIB), 10 * MIB);
    }

    #[test]
    fn divisions_round_up_to_a_part_of_a_power_of_two() {
        let check = |divisions, request, expected| {
            let config = Config::default().with_roundup_power2_divisions([divisions; 16]).unwrap();
            assert_eq!(block_bytes(&config, request), expected, "{divisions} divisions of {request}");
        };
        check(4, 100, 512);
        check(4, 1200, 1536); // not more than 512 * 4: the plain rule
        check(4, 3_000_000, 3_145_728);
        check(4, 1_048_577, 1_310_720);
        check(4, 1_048_576, 1_048_576);
        check(1, 1_048_577, 1_049_088);
        check(0, 1_048_577, 1_049_088);
        check(1024, ONE_EXBIBYTE - 1, ONE_EXBIBYTE);
    }

    #[test]
    fn each_power_of_two_has_its_own_entry_and_the_ends_reach_further() {
        let table: [u64; 16] = std::array::from_fn(|entry| entry as u64);
        let check = |bytes, entry| assert_eq!(divisions_at(&table, bytes), entry, "{bytes}");
        check(512, 0);
        check(2 * MIB - 1, 0);
        check(2 * MIB, 1);
        check((64 << 30) - 1, 15);
        check(1 << 59, 15);
    }
}
