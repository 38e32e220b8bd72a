//! The neighbours in memory that are cheapest to evict: [`cheapest`].
//!
//! A request needs contiguous memory. Evicting the best tensors one by one can free more bytes than the request needs, in places that are all
//! too small. So what is evicted lies side by side, as in Coop (Zhang and others, "Memory is not a Commodity", NeurIPS 2023).

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::ops::Range;

/// A block of memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub(super) bytes: u64,
    /// The cost to evict it, 0 for free memory; `None` if it has to stay.
    pub(super) cost: Option<f64>,
    /// Whether the cost is exact. If not, it is a lower bound.
    pub(super) is_exact: bool,
}

/// A number that is compared as [`f64::total_cmp`] does.
#[derive(Clone, Copy)]
pub(super) struct Score(pub(super) f64);

impl PartialEq for Score {
    fn eq(&self, other: &Score) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Score {}

impl PartialOrd for Score {
    fn partial_cmp(&self, other: &Score) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Score {
    fn cmp(&self, other: &Score) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// The neighbours in one of these contiguous pieces of memory whose bytes are enough for a request, and which cost the least: the number
/// of the memory, and their places. The first ones if several cost the same. `exact` returns the exact cost of a block of which only a lower
/// bound is known.
pub(super) fn cheapest(
    memory: &mut [Vec<Piece>],
    wanted: u64,
    mut exact: impl FnMut(usize, usize) -> Option<f64>,
) -> Option<(usize, Range<usize>)> {
    let mut open = BinaryHeap::new();
    for (row, pieces) in memory.iter().enumerate() {
        for range in windows(pieces, wanted) {
            if let Some(cost) = sum(&pieces[range.clone()]) {
                open.push(Reverse((Score(cost), row, range.start, range.end)));
            }
        }
    }
    // Costs only rise, so what is the cheapest with exact costs stays the cheapest.
    while let Some(Reverse((Score(bound), row, start, end))) = open.pop() {
        let pieces = &mut memory[row];
        let Some(mut cost) = sum(&pieces[start..end]) else { continue };
        if cost <= bound {
            if pieces[start..end].iter().all(|piece| piece.is_exact) {
                return Some((row, start..end));
            }
            for (place, piece) in pieces.iter_mut().enumerate().take(end).skip(start) {
                if !piece.is_exact {
                    *piece = Piece { cost: exact(row, place), is_exact: true, ..*piece };
                }
            }
            match sum(&pieces[start..end]) {
                Some(exact) => cost = exact,
                None => continue,
            }
        }
        open.push(Reverse((Score(cost), row, start, end)));
    }
    None
}

fn sum(pieces: &[Piece]) -> Option<f64> {
    pieces.iter().map(|piece| piece.cost).sum()
}

/// The runs of blocks that can be evicted and have enough bytes, and would not without their first or last block.
fn windows(pieces: &[Piece], wanted: u64) -> Vec<Range<usize>> {
    let mut all: Vec<Range<usize>> = Vec::new();
    let (mut first, mut bytes) = (0, 0);
    for (last, piece) in pieces.iter().enumerate() {
        if piece.cost.is_none() {
            (first, bytes) = (last + 1, 0);
            continue;
        }
        bytes += piece.bytes;
        while bytes - pieces[first].bytes >= wanted {
            bytes -= pieces[first].bytes;
            first += 1;
        }
        if bytes >= wanted && all.last().is_none_or(|before| before.start < first) {
            all.push(first..last + 1);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(costs: &[(u64, Option<f64>)], wanted: u64) -> Option<Range<usize>> {
        let pieces = costs.iter().map(|&(bytes, cost)| Piece { bytes, cost, is_exact: true }).collect();
        cheapest(&mut [pieces], wanted, |_, _| None).map(|(_, range)| range)
    }

    #[test]
    fn neighbours_are_cheapest_together() {
        let all = [(4, Some(1.0)), (4, None), (2, Some(3.0)), (1, Some(0.0)), (3, Some(2.0)), (8, Some(9.0))];
        assert_eq!(found(&all, 4), Some(0..1));
        assert_eq!(found(&all, 5), Some(2..5));
        assert_eq!(found(&all, 8), Some(5..6));
        assert_eq!(found(&all, 12), Some(3..6));
        assert_eq!(found(&all, 15), None);
        assert_eq!(found(&[], 1), None);
    }

    #[test]
    fn no_other_neighbours_are_cheaper() {
        let mut state = 1u64;
        let mut next = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        for _ in 0..1000 {
            let (rows, wanted) = (1 + next(3), 1 + next(20));
            let bounds: Vec<Vec<Piece>> = (0..rows)
                .map(|_| {
                    let cost = |rank: u64| (rank > 0).then_some(rank as f64);
                    (0..next(12))
                        .map(|_| Piece { bytes: 1 + next(9), cost: cost(next(8)), is_exact: next(2) == 0 })
                        .collect()
                })
                .collect();
            let mut more = |piece: &Piece| match (piece.is_exact, next(8)) {
                (true, _) => piece.cost,
                (false, 0) => None,
                (false, more) => piece.cost.map(|cost| cost + (more - 1) as f64),
            };
            let exact: Vec<Vec<Option<f64>>> =
                bounds.iter().map(|row| row.iter().map(&mut more).collect()).collect();
            let cost =
                |row: usize, range: Range<usize>| -> Option<f64> { exact[row][range].iter().copied().sum() };
            let mut least: Option<f64> = None;
            for (row, pieces) in bounds.iter().enumerate() {
                for first in 0..pieces.len() {
                    for end in first + 1..=pieces.len() {
                        let enough =
                            pieces[first..end].iter().map(|piece| piece.bytes).sum::<u64>() >= wanted;
                        if let Some(cost) = cost(row, first..end).filter(|_| enough) {
                            least = Some(least.map_or(cost, |best| best.min(cost)));
                        }
                    }
                }
            }
            let found = cheapest(&mut bounds.clone(), wanted, |row, place| exact[row][place]);
            assert_eq!(found.and_then(|(row, range)| cost(row, range)), least, "{bounds:?}, {wanted}");
        }
    }
}
