//! Chooses the free bytes for a stitched block: [`choose`].
//!
//! In address order, such a block is the end of one page, then whole pages, then the start of another page. So its
//! size need not be a whole number of pages: the partial pages at both ends are shared with other blocks.
//!
//! Note [Ends of gaps]: a gap that is left between two blocks usually begins and ends inside a page. Whole pages can
//! serve any stitched block. Only the parts before the first and after the last whole page could be wasted. A
//! stitched block uses one part of each kind, as many as a freed block gives back. Among all pairs, it uses the one
//! that needs the fewest whole pages, and then the one that leaves the fewest bytes.

use super::gaps::{Extent, Gaps, PAGE_BYTES};

/// The free bytes for a block, or what is missing.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// These, in address order: each except the first starts at the start of a page, and each except the last ends
    /// at the end of one.
    Pieces(Vec<Extent>),
    /// This many more whole pages are needed.
    Missing(u64),
}

/// The two ends of a block, which are parts of pages. An empty end means that there is none.
#[derive(Debug, Clone, Copy)]
struct Ends {
    head: Extent,
    tail: Extent,
}

const NONE: Extent = Extent { start: 0, bytes: 0 };

/// Chooses free bytes for a block of `bytes`.
pub(super) fn choose(gaps: &Gaps, bytes: u64) -> Choice {
    let (ends, pages) = best_ends(gaps, bytes);
    let available: u64 = gaps.by_size().map(|gap| gap.whole_pages().bytes / PAGE_BYTES).sum();
    if pages > available {
        return Choice::Missing(pages - available);
    }
    let mut pieces = Vec::new();
    // The head ends where a page ends and the tail begins where one begins, so that the rest of each gap stays in
    // one piece.
    let head_bytes = ends.head.bytes.min(bytes);
    pieces.push(Extent::between(ends.head.end() - head_bytes, ends.head.end()));
    let mut missing = bytes - head_bytes;
    let tail_bytes = ends.tail.bytes.min(missing - missing.min(pages * PAGE_BYTES));
    missing -= tail_bytes;
    for run in whole_runs(gaps, ends) {
        let taken = run.bytes.min(missing);
        pieces.push(Extent { bytes: taken, ..run });
        missing -= taken;
    }
    pieces.push(Extent { bytes: tail_bytes, ..ends.tail });
    pieces.retain(|piece| piece.bytes > 0);
    Choice::Pieces(merged(pieces))
}

/// The ends with which a block needs the fewest whole pages, and that number.
fn best_ends(gaps: &Gaps, bytes: u64) -> (Ends, u64) {
    let (mut heads, mut tails) = (vec![NONE], Vec::new());
    for gap in gaps.by_size() {
        let first = gap.start.next_multiple_of(PAGE_BYTES);
        let last = gap.end() - gap.end() % PAGE_BYTES;
        if first <= last {
            heads.extend((first > gap.start).then(|| Extent::between(gap.start, first)));
            tails.extend((gap.end() > last).then(|| Extent::between(last, gap.end())));
        }
    }
    tails.sort_by_key(|tail| (tail.bytes, tail.start));
    let mut best: Option<((u64, u64), Ends)> = None;
    for head in heads {
        let missing = bytes.saturating_sub(head.bytes);
        let part = missing % PAGE_BYTES;
        let fitting = tails.get(tails.partition_point(|tail| tail.bytes < part)).filter(|_| part > 0);
        let (tail, pages) = match fitting {
            Some(&tail) => (tail, missing / PAGE_BYTES),
            None => (NONE, missing.div_ceil(PAGE_BYTES)),
        };
        let over = (head.bytes + tail.bytes + pages * PAGE_BYTES).saturating_sub(bytes);
        if best.as_ref().is_none_or(|&(least, _)| (pages, over) < least) {
            best = Some(((pages, over), Ends { head, tail }));
        }
    }
    best.map_or((Ends { head: NONE, tail: NONE }, bytes.div_ceil(PAGE_BYTES)), |((pages, _), ends)| {
        (ends, pages)
    })
}

/// The whole pages of each gap in the order in which a block takes them: those that follow its head, then small gaps
/// before large ones, because a large gap can serve a block without stitching.
fn whole_runs(gaps: &Gaps, ends: Ends) -> Vec<Extent> {
    let runs = gaps.by_size().map(Extent::whole_pages).filter(|run| run.bytes > 0);
    let mut runs: Vec<Extent> = runs.collect();
    let follows = |run: &Extent| ends.head.bytes > 0 && run.start == ends.head.end();
    runs.sort_by_key(|run| (!follows(run), run.bytes, run.start));
    runs
}

/// Joins pieces that are adjacent in the home.
fn merged(pieces: Vec<Extent>) -> Vec<Extent> {
    let mut joined: Vec<Extent> = Vec::with_capacity(pieces.len());
    for piece in pieces {
        match joined.last_mut() {
            Some(last) if last.end() == piece.start => last.bytes += piece.bytes,
            _ => joined.push(piece),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// Gaps, as start and size in units of half a MiB.
    fn gaps(list: &[(u64, u64)]) -> Gaps {
        let mut gaps = Gaps::default();
        for &(start, size) in list {
            gaps.put(Extent { start: start * MIB / 2, bytes: size * MIB / 2 });
        }
        gaps
    }

    fn check(list: &[(u64, u64)], size: u64, expected: &[(u64, u64)]) {
        let pieces =
            expected.iter().map(|&(start, size)| Extent { start: start * MIB / 2, bytes: size * MIB / 2 });
        assert_eq!(choose(&gaps(list), size * MIB / 2), Choice::Pieces(pieces.collect()), "{list:?}");
    }

    #[test]
    fn a_block_is_the_end_of_one_page_whole_pages_and_the_start_of_another() {
        check(&[(3, 1), (8, 4), (16, 2)], 7, &[(3, 1), (8, 4), (16, 2)]);
    }

    #[test]
    fn of_several_ends_the_pair_that_leaves_the_least_is_taken() {
        check(&[(1, 3), (6, 2), (11, 1), (16, 3), (24, 2)], 4, &[(11, 1), (16, 3)]);
        check(&[(1, 3), (6, 2), (16, 3), (24, 2)], 5, &[(6, 2), (16, 3)]);
    }

    #[test]
    fn small_gaps_are_used_up_before_large_ones() {
        check(&[(0, 8), (12, 4), (20, 4)], 9, &[(12, 4), (20, 4), (0, 1)]);
    }

    #[test]
    fn a_gap_inside_of_one_page_serves_no_stitched_block() {
        assert_eq!(choose(&gaps(&[(1, 2), (4, 4)]), 3 * MIB), Choice::Missing(1));
        assert_eq!(choose(&Gaps::default(), 5 * MIB), Choice::Missing(3));
    }
}
