//! Parts inside parts: [`Nested`], for budgets that are too small for a single extra forward pass.
//!
//! Level 0 keeps everything in a piece when it is recomputed. Level `n` cuts it further, and recomputes its parts at
//! level `n - 1`. A level is a table of the fewest bytes for each range of blocks.

use std::ops::Range;
use std::sync::Arc;

use super::chain::Chain;
use super::cheapest::{Rest, Ways, add};
use super::schedule::{Part, Schedule};

/// Tables of the ways to recompute a range of blocks.
pub(super) struct Nested<'a> {
    chain: &'a Chain,
    /// `levels[n][begin][end - begin]`.
    levels: Vec<Vec<Vec<Rest>>>,
    rest: Vec<Rest>,
}

impl<'a> Nested<'a> {
    /// The maximum number of blocks in a chain: the time for the tables grows with its third power.
    pub(super) const MOST: usize = 64;

    /// More levels than this do not help with a chain of [`Nested::MOST`] blocks.
    const LEVELS: usize = 6;

    /// As few levels as this byte limit needs. The error is the smallest limit that can be met.
    pub(super) fn new(chain: &'a Chain, bytes: u64) -> Result<Nested<'a>, u64> {
        let mut nested = Nested { chain, levels: vec![flat(chain)], rest: Vec::new() };
        loop {
            let next = nested.next();
            nested.rest = (0..=chain.len()).map(|begin| next[begin][chain.len() - begin]).collect();
            if nested.least() <= bytes {
                return Ok(nested);
            }
            nested.levels.push(next);
            if nested.levels.len() > Nested::LEVELS {
                return Err(nested.least());
            }
        }
    }

    /// The fewest bytes for the whole chain.
    pub(super) fn least(&self) -> u64 {
        self.rest[0].bytes
    }

    /// The fewest bytes from each block to the end.
    pub(super) fn rest(&self) -> &[Rest] {
        &self.rest
    }

    /// The next level: a range is cut, and its parts are recomputed at the level below.
    fn next(&self) -> Vec<Vec<Rest>> {
        let (chain, len) = (self.chain, self.chain.len());
        let below = &self.levels[self.levels.len() - 1];
        let mut table: Vec<Vec<Rest>> =
            (0..=len).map(|begin| vec![Rest::default(); len + 1 - begin]).collect();
        for end in 1..=len {
            table[end][0].bytes = chain.output(end);
            for at in (0..end).rev() {
                let after = table[at + 1][end - at - 1];
                let bytes = kept(chain, at).saturating_add(after.bytes);
                let mut best = Rest { bytes, seconds: after.seconds, end: at + 1, is_kept: true };
                for cut in at + 1..end {
                    let (own, after) = (below[at][cut - at], table[cut][end - cut]);
                    let bytes = own.bytes.max(chain.input(at).saturating_add(after.bytes));
                    let seconds = chain.seconds_again(at..cut) + own.seconds + after.seconds;
                    let found = Rest { bytes, seconds, end: cut, is_kept: false };
                    if found.is_better_than(&best) {
                        best = found;
                    }
                }
                table[at][end - at] = best;
            }
        }
        table
    }

    /// The parts of a range at a given level, counted from the range's first block.
    fn parts(&self, range: Range<usize>, level: usize) -> Vec<Part> {
        let mut parts = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let own = self.levels[level][at][range.end - at];
            let (begin, end) = (at - range.start, own.end - range.start);
            let piece = match own.is_kept {
                true => Part::Keep(begin..end),
                false => Part::Checkpoint(begin..end, self.schedule(at..own.end, level - 1)),
            };
            add(&mut parts, piece);
            at = own.end;
        }
        parts
    }
}

impl Ways for Nested<'_> {
    fn of(&self, range: Range<usize>) -> impl Iterator<Item = (u64, f64)> {
        let once = self.chain.seconds_again(range.clone());
        let way = move |level: &Vec<Vec<Rest>>| {
            let own = level[range.start][range.len()];
            (own.bytes, once + own.seconds)
        };
        self.levels.iter().map(way)
    }

    fn schedule(&self, range: Range<usize>, way: usize) -> Option<Arc<Schedule>> {
        if way == 0 {
            return None;
        }
        let own = self.levels[way][range.start][range.len()];
        let parts = self.parts(range.clone(), way);
        let once = self.chain.seconds(range).max(f64::MIN_POSITIVE);
        Some(Arc::new(Schedule {
            parts,
            kept_bytes: own.bytes,
            recomputed: own.seconds / once,
            is_offloaded: Vec::new(),
        }))
    }
}

/// Level 0: everything is kept.
fn flat(chain: &Chain) -> Vec<Vec<Rest>> {
    let len = chain.len();
    let row = |begin: usize| {
        let of = |end: usize| match end == begin {
            true => Rest::default(),
            false => Rest { bytes: chain.again(begin..end), end, is_kept: true, seconds: 0.0 },
        };
        (begin..=len).map(of).collect()
    };
    (0..=len).map(row).collect()
}

/// Bytes that a kept block adds to a piece. The input of the piece is always kept.
fn kept(chain: &Chain, at: usize) -> u64 {
    if chain.is_offloaded(at) {
        return chain.held(at);
    }
    chain.saved(at).max(chain.again(at..at + 1) - chain.output(at + 1))
}
