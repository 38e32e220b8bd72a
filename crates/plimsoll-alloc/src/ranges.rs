//! The address space of expandable segments: [`Ranges`].
//!
//! In addition to its blocks, an expandable segment has a [`Range`]: its address range and page size.
//! `source/expandable.rs` maps pages into it.

use std::num::NonZeroU32;

use crate::request::Addr;

/// An index into [`Ranges`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RangeId(NonZeroU32);

/// The address space of one expandable segment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Range {
    pub(crate) addr: Addr,
    pub(crate) bytes: u64,
    pub(crate) page_bytes: u64,
}

/// The address space of all expandable segments.
#[derive(Debug, Default)]
pub(crate) struct Ranges {
    slots: Vec<Range>,
    vacant: Vec<RangeId>,
}

impl Ranges {
    pub(crate) fn insert(&mut self, range: Range) -> RangeId {
        if let Some(id) = self.vacant.pop() {
            self.slots[id.0.get() as usize - 1] = range;
            return id;
        }
        self.slots.push(range);
        let number = u32::try_from(self.slots.len()).ok().and_then(NonZeroU32::new);
        RangeId(number.expect("fewer than 2^32 expandable segments at one time"))
    }

    pub(crate) fn get(&self, id: RangeId) -> Range {
        self.slots[id.0.get() as usize - 1]
    }

    pub(crate) fn remove(&mut self, id: RangeId) {
        self.vacant.push(id);
    }
}

impl Range {
    /// The whole pages inside a part of the range: the start of the first page, and the number of pages.
    pub(crate) fn pages_inside(&self, addr: Addr, bytes: u64) -> (Addr, u64) {
        let from = addr.0 - self.addr.0;
        let (first, end) = (from.div_ceil(self.page_bytes), (from + bytes) / self.page_bytes);
        (self.addr.plus(first * self.page_bytes), end.saturating_sub(first))
    }

    /// Whether this is a positive number of whole pages.
    pub(crate) fn is_pages(&self, addr: Addr, bytes: u64) -> bool {
        let from = addr.0 - self.addr.0;
        bytes > 0 && from.is_multiple_of(self.page_bytes) && bytes.is_multiple_of(self.page_bytes)
    }
}
