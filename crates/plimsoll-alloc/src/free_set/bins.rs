//! A table of trees by size: [`Bins`].
//!
//! Below 64 KiB, each size has its own bin. Above, each power of two is divided into 64 bins of equal width. A bitmap
//! marks the occupied bins, so the next one is found without visiting empty bins.

use super::tree::{self, Tree};
use crate::block::{BlockId, Slab};
use crate::config::TieOrder;
use crate::request::Addr;
use crate::size::MIN_BLOCK_BYTES;

/// The number of bins per power of two: as many as a word has bits.
const STEPS: usize = u64::BITS as usize;

/// The bin for blocks of `bytes`. A larger block never has a lower bin.
#[inline]
pub(super) fn bin_of(bytes: u64) -> usize {
    let grains = bytes / MIN_BLOCK_BYTES;
    // The shift leaves 7 bits. The first is a 1 and counts as 64 more bins, except below 64 grains.
    let shift = (grains | STEPS as u64).ilog2() - STEPS.ilog2();
    shift as usize * STEPS + (grains >> shift) as usize
}

/// The cached blocks of one stream, by size.
#[derive(Debug)]
pub(super) struct Bins {
    /// Grows to the bin of the largest block seen so far.
    trees: Vec<Tree>,
    /// Which bins are occupied: bit n of word m for tree `m * STEPS + n`.
    words: [u64; STEPS],
    /// Which words are not 0.
    occupied: u64,
}

impl Default for Bins {
    fn default() -> Self {
        Self { trees: Vec::new(), words: [0; STEPS], occupied: 0 }
    }
}

impl Bins {
    /// The tree of a bin.
    #[inline]
    pub(super) fn tree(&self, bin: usize) -> Tree {
        *self.trees.get(bin)?
    }

    /// Adds a block.
    #[inline]
    pub(super) fn insert(&mut self, blocks: &mut Slab, order: TieOrder, id: BlockId) {
        let block = &mut blocks[id];
        (block.lower, block.upper) = (None, None);
        let bin = bin_of(block.bytes);
        self.put(blocks, order, bin, id);
    }

    /// Takes a block out.
    #[inline]
    pub(super) fn remove(&mut self, blocks: &mut Slab, order: TieOrder, id: BlockId) {
        let block = &blocks[id];
        let bin = bin_of(block.bytes);
        if self.trees[bin] == Some(id) && tree::is_leaf(block) {
            self.empty(bin);
        } else {
            self.trees[bin] = tree::remove(blocks, order, self.trees[bin], id);
        }
    }

    /// Changes a block's size and address. Usually the block is alone in its bin, and often the bin does not change.
    #[inline(always)] // Note [Laid out once] in `allocator.rs`
    pub(super) fn resize(&mut self, blocks: &mut Slab, order: TieOrder, id: BlockId, addr: Addr, bytes: u64) {
        let block = &mut blocks[id];
        let (from, to) = (bin_of(block.bytes), bin_of(bytes));
        if self.trees[from] != Some(id) || !tree::is_leaf(block) {
            return self.resize_among(blocks, order, id, addr, bytes);
        }
        (block.addr, block.bytes) = (addr, bytes);
        if from != to {
            self.empty(from);
            self.put(blocks, order, to, id);
        }
    }

    /// Like [`resize`](Self::resize), for a block that shares its bin.
    #[inline(never)]
    fn resize_among(&mut self, blocks: &mut Slab, order: TieOrder, id: BlockId, addr: Addr, bytes: u64) {
        self.remove(blocks, order, id);
        let block = &mut blocks[id];
        (block.addr, block.bytes) = (addr, bytes);
        self.insert(blocks, order, id);
    }

    /// Adds an unlinked block to its bin.
    #[inline]
    fn put(&mut self, blocks: &mut Slab, order: TieOrder, bin: usize, id: BlockId) {
        match self.trees.get_mut(bin) {
            Some(None) => self.fill(bin, id),
            Some(Some(root)) => *root = tree::insert(blocks, order, *root, id),
            None => self.grow(bin, id),
        }
    }

    /// Adds a block to an empty bin.
    #[inline]
    fn fill(&mut self, bin: usize, id: BlockId) {
        self.trees[bin] = Some(id);
        self.words[bin / STEPS] |= 1 << (bin % STEPS);
        self.occupied |= 1 << (bin / STEPS);
    }

    /// Empties a bin that has one block.
    #[inline]
    fn empty(&mut self, bin: usize) {
        self.trees[bin] = None;
        let word = &mut self.words[bin / STEPS];
        *word &= !(1 << (bin % STEPS));
        if *word == 0 {
            self.occupied &= !(1 << (bin / STEPS));
        }
    }

    #[cold]
    fn grow(&mut self, bin: usize, id: BlockId) {
        self.trees.resize(bin + 1, None);
        self.fill(bin, id);
    }

    /// The first occupied bin at or after `bin`.
    #[inline]
    pub(super) fn first_from(&self, bin: usize) -> Option<usize> {
        let (nth, step) = (bin / STEPS, bin % STEPS);
        let here = self.words[nth] & from(step);
        if here != 0 {
            return Some(nth * STEPS + lowest(here));
        }
        let above = self.occupied & from(nth) & !(1 << nth);
        (above != 0).then(|| lowest(above) * STEPS + lowest(self.words[lowest(above)]))
    }

    /// The last occupied bin before `bin`.
    pub(super) fn last_before(&self, bin: usize) -> Option<usize> {
        let (nth, step) = (bin / STEPS, bin % STEPS);
        let here = self.words[nth] & !from(step);
        if here != 0 {
            return Some(nth * STEPS + highest(here));
        }
        let below = self.occupied & !from(nth);
        (below != 0).then(|| highest(below) * STEPS + highest(self.words[highest(below)]))
    }
}

/// A mask of the bits from `nth` upward.
fn from(nth: usize) -> u64 {
    u64::MAX << nth
}

fn lowest(bits: u64) -> usize {
    bits.trailing_zeros() as usize
}

fn highest(bits: u64) -> usize {
    bits.ilog2() as usize
}

#[cfg(test)]
mod tests {
    use super::super::model;
    use super::*;

    #[test]
    fn bins_are_exact_below_64_kib_and_a_64th_of_a_power_of_two_above() {
        let check = |bytes: u64, expected| assert_eq!(bin_of(bytes), expected, "{bytes} bytes");
        check(512, 1);
        check(1024, 2);
        check((64 << 10) - 512, 127);
        check(64 << 10, 128);
        check((64 << 10) + 512, 128);
        check((64 << 10) + 1024, 129);
        check(128 << 10, 192);
        check((128 << 10) + 2048, 193);
        check(u64::MAX, 49 * STEPS + 63);
    }

    #[test]
    fn a_larger_block_never_has_a_lower_bin() {
        let sizes = (0..55).flat_map(|power| [(1 << power) - 1, 1 << power, 3 << power >> 1]);
        let mut bins: Vec<(u64, usize)> = sizes.map(|grains| (grains, bin_of(grains * 512))).collect();
        bins.sort_unstable();
        assert!(bins.is_sorted_by_key(|&(_, bin)| bin), "{bins:?}");
    }

    #[test]
    fn the_next_occupied_bin_is_found_across_octaves() {
        let mut bins = Bins::default();
        let mut blocks = Slab::default();
        for bytes in [3 * 512, 63 * 512, 64 * 512, 700 * 512] {
            let id = blocks.insert(model::block_of(bytes));
            bins.insert(&mut blocks, TieOrder::Address, id);
        }
        let check = |bins: &Bins, bin, first_from, last_before| {
            assert_eq!((bins.first_from(bin), bins.last_before(bin)), (first_from, last_before), "{bin}");
        };
        let last = bin_of(700 * 512);
        check(&bins, 0, Some(3), None);
        check(&bins, 3, Some(3), None);
        check(&bins, 4, Some(63), Some(3));
        check(&bins, 64, Some(64), Some(63));
        check(&bins, 65, Some(last), Some(64));
        check(&bins, last + 1, None, Some(last));
        check(&bins, 3199, None, Some(last));
        let root = bins.tree(last).expect("the block of 700 grains");
        bins.remove(&mut blocks, TieOrder::Address, root);
        check(&bins, 65, None, Some(64));
    }
}
