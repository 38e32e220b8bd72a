//! The counters behind one statistic: [`Counters`].
//!
//! It stores only independent values: for the small and the large pool, the current value, its peak and the freed
//! total; and the peak of both together. Everything else is computed when it is read.

use super::stat::{PoolStats, Stat};
use crate::size::PoolKind;

/// One statistic of the small and the large pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Counters {
    /// Indexed by [`PoolKind`].
    pools: [Counter; 2],
    /// The peak of both together.
    peak: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Counter {
    current: i64,
    peak: i64,
    freed: i64,
    /// The current value at the last reset of the accumulated values.
    base: i64,
}

impl Counter {
    fn read(&self) -> Stat {
        let Self { current, peak, freed, base } = *self;
        Stat { current, peak, allocated: current - base + freed, freed }
    }
}

impl Counters {
    #[inline]
    pub(super) fn increase(&mut self, pool: PoolKind, by: u64) {
        let counter = &mut self.pools[pool as usize];
        counter.current += by as i64;
        raise(&mut counter.peak, counter.current);
        let current = self.current();
        raise(&mut self.peak, current);
    }

    #[inline]
    pub(super) fn decrease(&mut self, pool: PoolKind, by: u64) {
        let counter = &mut self.pools[pool as usize];
        counter.current -= by as i64;
        counter.freed += by as i64;
    }

    /// Applies a net change: one increase, or one decrease.
    #[inline]
    pub(super) fn change(&mut self, pool: PoolKind, by: i64) {
        if by >= 0 {
            self.increase(pool, by as u64);
        } else {
            self.decrease(pool, by.unsigned_abs());
        }
    }

    pub(super) fn reset_peak(&mut self) {
        for counter in &mut self.pools {
            counter.peak = counter.current;
        }
        self.peak = self.current();
    }

    pub(super) fn reset_accumulated(&mut self) {
        for counter in &mut self.pools {
            counter.freed = 0;
            counter.base = counter.current;
        }
    }

    pub(super) fn read(&self) -> PoolStats {
        let [small_pool, large_pool] = self.pools.map(|counter| counter.read());
        let all = Stat {
            current: self.current(),
            peak: self.peak,
            allocated: small_pool.allocated + large_pool.allocated,
            freed: small_pool.freed + large_pool.freed,
        };
        PoolStats { all, small_pool, large_pool }
    }

    #[inline]
    fn current(&self) -> i64 {
        let [small_pool, large_pool] = &self.pools;
        small_pool.current + large_pool.current
    }
}

/// Raises `peak` to `to` if it is lower. Unlike `max`, stores only if the value changes, because there is rarely a new
/// peak.
#[inline]
fn raise(peak: &mut i64, to: i64) {
    if to > *peak {
        *peak = to;
    }
}
