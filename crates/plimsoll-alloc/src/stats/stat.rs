//! One statistic: [`Stat`], and [`PoolStats`] for each pool separately.

/// One statistic. `current` is `allocated - freed` until [`Stats::reset_accumulated`](crate::Stats::reset_accumulated).
///
/// ```
/// # use plimsoll_alloc::Stat;
/// assert_eq!(Stat::default(), Stat { current: 0, peak: 0, allocated: 0, freed: 0 });
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stat {
    /// The current value.
    pub current: i64,
    /// The maximum since the start, or since [`Stats::reset_peak`](crate::Stats::reset_peak).
    pub peak: i64,
    /// The sum of all increases.
    pub allocated: i64,
    /// The sum of all decreases.
    pub freed: i64,
}

impl Stat {
    /// Applies a net change: one increase, or one decrease.
    pub(crate) fn change(&mut self, by: i64) {
        self.current += by;
        if by >= 0 {
            self.peak = self.peak.max(self.current);
            self.allocated += by;
        } else {
            self.freed -= by;
        }
    }
}

/// One statistic: for both pools together, and for each.
///
/// ```
/// # use plimsoll_alloc::{Allocator, Config, Request, SimDriver, Stats};
/// # let mut allocator = Allocator::new(Config::default(), SimDriver::with_capacity(64 << 20), Stats::default());
/// let x = allocator.malloc(Request::of(3 << 20))?;
/// let allocation = allocator.observer().allocation();
/// assert_eq!((allocation.all.current, allocation.large_pool.current, allocation.small_pool.current), (1, 1, 0));
/// # allocator.free(x);
/// # Ok::<(), plimsoll_alloc::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PoolStats {
    /// Both pools together. Its peak can be less than the sum of theirs, because those may have occurred at different
    /// times.
    pub all: Stat,
    /// The small pool.
    pub small_pool: Stat,
    /// The large pool.
    pub large_pool: Stat,
}
