//! The memory of one stream in one half of a pool: [`Arena`]. It makes no device calls; `packed/pages.rs` does.
//!
//! Each page of an arena is mapped at its place in the *home*, a reserved range as large as an expandable segment.
//! Blocks are placed there by best fit, across page boundaries. If no gap in the home is long enough for a large
//! block, the block is stitched.

use std::collections::BTreeSet;

use super::gaps::{Extent, Gaps, PAGE_BYTES};
use super::stitch::{Choice, choose};
use super::stitched::{RangeNumber, StitchedRanges};
use crate::request::{Addr, PoolId, StreamId};
use crate::size::PoolKind;

/// The requests that an arena serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ArenaKey {
    pub(super) pool: PoolId,
    pub(super) stream: StreamId,
    pub(super) kind: PoolKind,
}

/// How an arena can serve a request.
#[derive(Debug)]
pub(super) enum Found {
    /// In the home.
    Home(Extent),
    /// In a range that is already stitched.
    Stitched(RangeNumber),
    /// By stitching these pieces.
    Pieces(Vec<Extent>),
    /// Only after this many more pages are mapped.
    Missing(u64),
}

#[derive(Debug)]
pub(super) struct Arena {
    /// The address of the home.
    home: Addr,
    home_pages: u64,
    /// The number of pages up to the last mapped one.
    end_page: u64,
    /// Pages before `end_page` that are not mapped.
    holes: BTreeSet<u64>,
    pub(super) gaps: Gaps,
    pub(super) stitched: StitchedRanges,
}

impl Arena {
    pub(super) fn new(home: Addr, home_pages: u64) -> Self {
        let (holes, gaps, stitched) = Default::default();
        Self { home, home_pages, end_page: 0, holes, gaps, stitched }
    }

    /// The address of a byte of the home.
    pub(super) fn address(&self, position: u64) -> Addr {
        self.home.plus(position)
    }

    /// The address and size of the reserved home.
    pub(super) fn home(&self) -> (Addr, u64) {
        (self.home, self.home_pages * PAGE_BYTES)
    }

    /// The number of mapped pages.
    pub(super) fn pages(&self) -> u64 {
        self.end_page - self.holes.len() as u64
    }

    /// How to serve a request of `bytes`; the way with the fewest device calls comes first. Only blocks of the large
    /// half are stitched.
    pub(super) fn find(&self, bytes: u64, kind: PoolKind) -> Found {
        if let Some(gap) = self.gaps.best_fit(bytes) {
            return Found::Home(Extent { bytes, ..gap });
        }
        if kind == PoolKind::Small {
            return Found::Missing(1);
        }
        if let Some(number) = self.stitched.serving(bytes, &self.gaps) {
            return Found::Stitched(number);
        }
        match choose(&self.gaps, bytes) {
            Choice::Pieces(pieces) => Found::Pieces(pieces),
            Choice::Missing(pages) => Found::Missing(pages),
        }
    }

    /// Where to map the next pages: at most `pages`, in the lowest hole or at the end. `None` if the home is full.
    pub(super) fn next_pages(&self, pages: u64) -> Option<Extent> {
        let (first, room) = match self.holes.first() {
            Some(&first) => (first, (first..).take_while(|page| self.holes.contains(page)).count() as u64),
            None => (self.end_page, self.home_pages - self.end_page),
        };
        let pages = pages.min(room);
        (pages > 0).then_some(Extent { start: first * PAGE_BYTES, bytes: pages * PAGE_BYTES })
    }

    /// Records that these pages were mapped. They are free.
    pub(super) fn add_pages(&mut self, pages: Extent) {
        for page in pages.start / PAGE_BYTES..pages.end() / PAGE_BYTES {
            self.holes.remove(&page);
        }
        self.end_page = self.end_page.max(pages.end() / PAGE_BYTES);
        self.gaps.put(pages);
    }

    /// Runs of free pages, the last ones first.
    pub(super) fn free_pages(&self) -> Vec<Extent> {
        let mut runs: Vec<Extent> =
            self.gaps.by_size().map(Extent::whole_pages).filter(|run| run.bytes > 0).collect();
        runs.sort_by_key(|run| std::cmp::Reverse(run.start));
        runs
    }

    /// Records that these free pages were unmapped.
    pub(super) fn remove_pages(&mut self, pages: Extent) {
        self.gaps.take(pages);
        self.holes.extend(pages.start / PAGE_BYTES..pages.end() / PAGE_BYTES);
        while self.end_page > 0 && self.holes.remove(&(self.end_page - 1)) {
            self.end_page -= 1;
        }
    }
}
