//! The free bytes of an arena: [`Gaps`]. An arena's memory is a contiguous range of bytes, its *home*; a gap is a
//! part of it that no block uses. Neighbouring gaps are always merged.

use std::collections::{BTreeMap, BTreeSet};

/// A page of physical memory: the allocation granularity of real devices, in bytes.
pub(super) const PAGE_BYTES: u64 = 2 << 20;

/// A part of an arena's home. The same byte of the home is always the same byte of physical memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Extent {
    /// The first byte, counted from the start of the home.
    pub(super) start: u64,
    pub(super) bytes: u64,
}

impl Extent {
    pub(super) fn between(start: u64, end: u64) -> Self {
        Self { start, bytes: end - start }
    }

    pub(super) fn end(self) -> u64 {
        self.start + self.bytes
    }

    /// The part in whole pages; empty if there is none.
    pub(super) fn whole_pages(self) -> Self {
        let first = self.start.next_multiple_of(PAGE_BYTES);
        let last = self.end() - self.end() % PAGE_BYTES;
        Self::between(first, last.max(first))
    }
}

/// The free bytes, by position and by size.
#[derive(Debug, Default)]
pub(super) struct Gaps {
    /// The size of each gap, by its start.
    by_start: BTreeMap<u64, u64>,
    /// Size and start: the best fit is the first one that is large enough.
    by_size: BTreeSet<(u64, u64)>,
    free_bytes: u64,
}

impl Gaps {
    pub(super) fn free_bytes(&self) -> u64 {
        self.free_bytes
    }

    /// The size of the largest gap, in bytes; 0 if there is none.
    pub(super) fn largest_bytes(&self) -> u64 {
        self.by_size.last().map_or(0, |&(bytes, _)| bytes)
    }

    /// All gaps, the smallest first.
    pub(super) fn by_size(&self) -> impl DoubleEndedIterator<Item = Extent> + '_ {
        self.by_size.iter().map(|&(bytes, start)| Extent { start, bytes })
    }

    /// The smallest gap of at least `bytes`; if there are several, the one at the lowest position.
    pub(super) fn best_fit(&self, bytes: u64) -> Option<Extent> {
        self.by_size.range((bytes, 0)..).next().map(|&(bytes, start)| Extent { start, bytes })
    }

    /// Whether all bytes of an extent are free.
    pub(super) fn contain(&self, extent: Extent) -> bool {
        self.around(extent).is_some()
    }

    fn around(&self, extent: Extent) -> Option<Extent> {
        let (&start, &bytes) = self.by_start.range(..=extent.start).next_back()?;
        let gap = Extent { start, bytes };
        (gap.end() >= extent.end()).then_some(gap)
    }

    /// Marks free bytes as used.
    ///
    /// # Panics
    /// If any of them are not free.
    pub(super) fn take(&mut self, extent: Extent) {
        let gap = self.around(extent);
        let gap = gap.unwrap_or_else(|| panic!("{extent:?} is free"));
        self.remove(gap);
        for rest in [Extent::between(gap.start, extent.start), Extent::between(extent.end(), gap.end())] {
            if rest.bytes > 0 {
                self.insert(rest);
            }
        }
    }

    /// Frees bytes, and merges them with the gaps next to them.
    ///
    /// # Panics
    /// If any of them are already free.
    pub(super) fn put(&mut self, extent: Extent) {
        let mut merged = extent;
        if let Some((&start, &bytes)) = self.by_start.range(..extent.end()).next_back() {
            let before = Extent { start, bytes };
            assert!(before.end() <= extent.start, "{extent:?} is in use, but {before:?} is free");
            if before.end() == extent.start {
                self.remove(before);
                merged = Extent::between(before.start, extent.end());
            }
        }
        if let Some(&bytes) = self.by_start.get(&extent.end()) {
            let after = Extent { start: extent.end(), bytes };
            self.remove(after);
            merged = Extent::between(merged.start, after.end());
        }
        self.insert(merged);
    }

    fn insert(&mut self, gap: Extent) {
        self.by_start.insert(gap.start, gap.bytes);
        self.by_size.insert((gap.bytes, gap.start));
        self.free_bytes += gap.bytes;
    }

    fn remove(&mut self, gap: Extent) {
        self.by_start.remove(&gap.start);
        self.by_size.remove(&(gap.bytes, gap.start));
        self.free_bytes -= gap.bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(start: u64, bytes: u64) -> Extent {
        Extent { start, bytes }
    }

    #[test]
    fn a_freed_extent_merges_with_the_gaps_on_both_sides() {
        let mut gaps = Gaps::default();
        gaps.put(extent(0, 30));
        gaps.take(extent(10, 10));
        assert_eq!(gaps.by_size().collect::<Vec<_>>(), [extent(0, 10), extent(20, 10)]);
        assert!(!gaps.contain(extent(5, 10)) && gaps.contain(extent(22, 8)));
        gaps.put(extent(10, 10));
        assert_eq!((gaps.best_fit(1), gaps.best_fit(31), gaps.free_bytes()), (Some(extent(0, 30)), None, 30));
    }

    #[test]
    fn whole_pages_are_those_between_the_first_and_the_last_boundary() {
        let mib = 1 << 20;
        assert_eq!(extent(mib, 6 * mib).whole_pages(), extent(2 * mib, 4 * mib));
        assert_eq!(extent(2 * mib, 2 * mib).whole_pages(), extent(2 * mib, 2 * mib));
        assert_eq!(extent(mib / 2, mib).whole_pages().bytes, 0);
        assert_eq!(extent(mib, 2 * mib).whole_pages().bytes, 0);
    }
}
