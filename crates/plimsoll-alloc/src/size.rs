//! Sizes: how a request is rounded to a block, which pool it belongs to, how large a segment it needs,
//! and when a block is worth cutting. Pure arithmetic on bytes; who calls it: `allocator.rs`, `pool.rs`.
//!
//! As PyTorch: `round_size`, `get_allocation_size`, `should_split`.

use crate::config::Config;
use crate::pool::PoolKind;
use crate::request::Request;

/// Every block's size is a multiple of this (`kMinBlockSize`).
pub(crate) const MIN_BLOCK_BYTES: u64 = 512;
/// Blocks up to this size live in the small pool; larger remainders alone are cut off in the large pool
/// (`kSmallSize`).
pub(crate) const SMALL_BYTES: u64 = 1 << 20;
/// The size of a small pool's segment (`kSmallBuffer`).
pub(crate) const SMALL_SEGMENT_BYTES: u64 = 2 << 20;
/// The default size of a shared segment in the large pool (`kLargeBuffer`).
pub(crate) const LARGE_SEGMENT_BYTES: u64 = 20 << 20;
/// Blocks from this size on get a segment of their own (`kMinLargeAlloc`). It does not follow
/// `large_segment_bytes`.
pub(crate) const MIN_OWN_SEGMENT_BYTES: u64 = 10 << 20;
/// The grain to which such a segment is rounded up (`kRoundLarge`); also a real device's own grain.
pub(crate) const SEGMENT_GRAIN_BYTES: u64 = 2 << 20;
/// Requests from here on are refused before anything else is done.
pub(crate) const ONE_EXBIBYTE: u64 = 1 << 60;

/// A request with what follows from its size alone.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ask {
    pub(crate) request: Request,
    pub(crate) block_bytes: u64,
    pub(crate) segment_bytes: u64,
    pub(crate) pool: PoolKind,
}

impl Ask {
    /// Sizes `request`, which must be below [`ONE_EXBIBYTE`] for the sums to hold.
    pub(crate) fn new(config: &Config, request: Request) -> Self {
        let block_bytes = block_bytes(request.bytes);
        let pool = if block_bytes <= SMALL_BYTES { PoolKind::Small } else { PoolKind::Large };
        Self { request, block_bytes, segment_bytes: segment_bytes(config, block_bytes), pool }
    }
}

/// The block that `bytes` need: at least 512, in steps of 512.
fn block_bytes(bytes: u64) -> u64 {
    bytes.max(1).next_multiple_of(MIN_BLOCK_BYTES)
}

/// The segment to ask the device for when no cached block holds `block_bytes`.
fn segment_bytes(config: &Config, block_bytes: u64) -> u64 {
    if block_bytes <= SMALL_BYTES {
        SMALL_SEGMENT_BYTES
    } else if block_bytes < MIN_OWN_SEGMENT_BYTES {
        config.large_segment_bytes()
    } else {
        block_bytes.next_multiple_of(SEGMENT_GRAIN_BYTES)
    }
}

/// Whether a remainder is worth a block of its own. The large pool gives up to 1 MiB away rather than keep
/// a piece that only the small pool could use.
pub(crate) fn worth_splitting(pool: PoolKind, remainder_bytes: u64) -> bool {
    match pool {
        PoolKind::Small => remainder_bytes >= MIN_BLOCK_BYTES,
        PoolKind::Large => remainder_bytes > SMALL_BYTES,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_worked_examples_of_the_specification_hold() {
        let check = |request, block, pool, segment| {
            let ask = Ask::new(&Config::default(), Request::of(request));
            assert_eq!((ask.block_bytes, ask.pool, ask.segment_bytes), (block, pool, segment), "{request}");
        };
        check(1, 512, PoolKind::Small, 2 * MIB);
        check(1_048_576, 1_048_576, PoolKind::Small, 2 * MIB);
        check(1_048_577, 1_049_088, PoolKind::Large, 20 * MIB);
        check(10_485_248, 10_485_248, PoolKind::Large, 20 * MIB);
        check(10_485_249, 10_485_760, PoolKind::Large, 10 * MIB);
        check(10_485_760, 10_485_760, PoolKind::Large, 10 * MIB);
        check(10_485_761, 10_486_272, PoolKind::Large, 12 * MIB);
        check(11_534_336, 11_534_336, PoolKind::Large, 12 * MIB);
    }

    #[test]
    fn the_threshold_of_own_segments_does_not_follow_the_large_segment_size() {
        let config = Config::default().with_large_segment_bytes(64 * MIB).unwrap();
        assert_eq!(segment_bytes(&config, 10_380_902 / 512 * 512), 64 * MIB); // 9.9 MiB
        assert_eq!(segment_bytes(&config, 10 * MIB), 10 * MIB);
    }

    #[test]
    fn the_large_pool_splits_only_above_one_mebibyte() {
        assert!(worth_splitting(PoolKind::Small, 512));
        assert!(!worth_splitting(PoolKind::Small, 0));
        assert!(!worth_splitting(PoolKind::Large, MIB));
        assert!(worth_splitting(PoolKind::Large, MIB + 512));
    }

    #[test]
    fn the_largest_request_does_not_overflow() {
        let ask = Ask::new(&Config::default(), Request::of(ONE_EXBIBYTE - 1));
        assert_eq!((ask.block_bytes, ask.segment_bytes), (ONE_EXBIBYTE, ONE_EXBIBYTE));
    }
}
