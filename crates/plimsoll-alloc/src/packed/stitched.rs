//! The stitched ranges of an arena: [`StitchedRanges`]. A stitched range is address space in which pages of the home
//! are mapped a second time, in a different order.
//!
//! A range stays mapped after its block is freed. If the same bytes of the home are free when a block of the same size
//! is requested, the range serves it without a device call.
//!
//! Note [The oldest range first]: if several ranges have the same size, the one that was made first is used. If two
//! steps of a program make the same requests and begin with the same free bytes, each request in the second step finds
//! the range that it found or made in the first: a range that was made later in the first step comes after it. So the
//! second step makes no device calls.

use std::collections::{BTreeMap, BTreeSet};

use super::gaps::{Extent, Gaps, PAGE_BYTES};
use crate::request::Addr;

/// The number of a range, in the order in which they were made.
pub(super) type RangeNumber = u64;

/// Address space in which pages are mapped a second time.
#[derive(Debug)]
pub(super) struct StitchedRange {
    /// The address space, from the start of its first page.
    pub(super) addr: Addr,
    /// The number of pages in it.
    pub(super) pages: u64,
    /// The bytes of its block, in address order.
    pub(super) pieces: Vec<Extent>,
    is_in_use: bool,
    used_at: u64,
}

impl StitchedRange {
    pub(super) fn new(addr: Addr, pieces: Vec<Extent>) -> Self {
        let pages = pages_of(&pieces).count() as u64;
        Self { addr, pages, pieces, is_in_use: false, used_at: 0 }
    }

    /// The address of its block.
    pub(super) fn block_addr(&self) -> Addr {
        self.addr.plus(self.pieces.first().map_or(0, |first| first.start % PAGE_BYTES))
    }

    fn bytes(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.bytes).sum()
    }

    fn maps_any_of(&self, pages: Extent) -> bool {
        let touches = |piece: &Extent| piece.start < pages.end() && pages.start < piece.end();
        self.pieces.iter().any(touches)
    }
}

/// The start of every page that a range over these pieces maps, in address order.
pub(super) fn pages_of(pieces: &[Extent]) -> impl Iterator<Item = u64> + '_ {
    pieces.iter().flat_map(|piece| {
        let first = piece.start - piece.start % PAGE_BYTES;
        (first..piece.end()).step_by(PAGE_BYTES as usize)
    })
}

/// The ranges of one arena.
#[derive(Debug, Default)]
pub(super) struct StitchedRanges {
    ranges: BTreeMap<RangeNumber, StitchedRange>,
    /// Size of the block, and number.
    by_bytes: BTreeSet<(u64, RangeNumber)>,
    /// The number of the next range.
    next: RangeNumber,
    /// The number of uses so far.
    clock: u64,
    mapped_pages: u64,
}

impl StitchedRanges {
    /// The number of pages that all ranges map; a page counts as often as it is mapped.
    pub(super) fn mapped_pages(&self) -> u64 {
        self.mapped_pages
    }

    pub(super) fn get(&self, number: RangeNumber) -> &StitchedRange {
        &self.ranges[&number]
    }

    /// The oldest range for a block of exactly `bytes` whose bytes are free.
    pub(super) fn serving(&self, bytes: u64, gaps: &Gaps) -> Option<RangeNumber> {
        let of_size = self.by_bytes.range((bytes, 0)..=(bytes, RangeNumber::MAX)).map(|&(_, number)| number);
        let is_free = |range: &StitchedRange| range.pieces.iter().all(|&piece| gaps.contain(piece));
        of_size.into_iter().find(|number| is_free(&self.ranges[number]))
    }

    pub(super) fn insert(&mut self, range: StitchedRange) -> RangeNumber {
        let number = self.next;
        self.next += 1;
        self.mapped_pages += range.pages;
        self.by_bytes.insert((range.bytes(), number));
        self.ranges.insert(number, range);
        number
    }

    pub(super) fn remove(&mut self, number: RangeNumber) -> Option<StitchedRange> {
        let range = self.ranges.remove(&number)?;
        self.mapped_pages -= range.pages;
        self.by_bytes.remove(&(range.bytes(), number));
        Some(range)
    }

    /// Records that a block starts or stops using a range.
    pub(super) fn set_in_use(&mut self, number: RangeNumber, is_in_use: bool) {
        if let Some(range) = self.ranges.get_mut(&number) {
            self.clock += 1;
            range.is_in_use = is_in_use;
            range.used_at = self.clock;
        }
    }

    /// The least recently used range that has no block.
    pub(super) fn least_recent(&self) -> Option<RangeNumber> {
        let idle = self.ranges.iter().filter(|(_, range)| !range.is_in_use);
        idle.min_by_key(|(_, range)| range.used_at).map(|(&number, _)| number)
    }

    /// The ranges that map any of these pages.
    pub(super) fn mapping(&self, pages: Extent) -> Vec<RangeNumber> {
        let mapping = self.ranges.iter().filter(|(_, range)| range.maps_any_of(pages));
        mapping.map(|(&number, _)| number).collect()
    }

    /// All numbers.
    pub(super) fn numbers(&self) -> Vec<RangeNumber> {
        self.ranges.keys().copied().collect()
    }
}
