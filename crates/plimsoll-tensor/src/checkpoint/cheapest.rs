//! The cheapest schedule within a byte limit: [`cheapest`].
//!
//! A sequence is cut into parts from the front. When the derivatives of a part run, everything after it has been freed,
//! so only the parts before it and the part itself occupy memory. So for the blocks after a part, only the least number
//! of bytes that they can need matters.

use std::ops::Range;
use std::sync::Arc;

use super::chain::Chain;
use super::schedule::{Part, Schedule};

/// The number of cuts that are kept for each prefix of a sequence.
const CUTS: usize = 128;

/// The best way to continue from a block to the end: the fewest bytes and, among equals, the fewest seconds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rest {
    pub(super) bytes: u64,
    pub(super) seconds: f64,
    /// Where the first piece ends, and whether it is kept.
    pub(super) end: usize,
    pub(super) is_kept: bool,
}

impl Rest {
    pub(super) fn is_better_than(&self, other: &Rest) -> bool {
        (self.bytes, self.seconds) < (other.bytes, other.seconds)
    }
}

/// The ways to recompute a piece.
pub(super) trait Ways {
    /// For each way: the most bytes that the piece uses, including its input, and the seconds of recomputation.
    fn of(&self, range: Range<usize>) -> impl Iterator<Item = (u64, f64)>;

    /// The schedule inside the piece for a way, given by its place in the list.
    fn schedule(&self, range: Range<usize>, way: usize) -> Option<Arc<Schedule>>;
}

/// A way to cut the blocks before a given block.
#[derive(Clone, Copy)]
struct Cut {
    /// Bytes that the parts hold.
    held: u64,
    /// Seconds of recomputation.
    seconds: f64,
    /// Where the last piece begins, the cut before it, and how it is recomputed, unless it is kept.
    begin: usize,
    before: usize,
    way: Option<usize>,
}

/// The schedule with the fewest seconds within this byte limit. `rest` has the fewest bytes from each block to the end.
pub(super) fn cheapest(chain: &Chain, rest: &[Rest], bytes: u64, ways: &impl Ways) -> Option<Schedule> {
    let len = chain.len();
    let mut cuts: Vec<Vec<Cut>> = vec![Vec::new(); len + 1];
    cuts[0].push(Cut { held: 0, seconds: 0.0, begin: 0, before: 0, way: None });
    for at in 0..len {
        cuts[at] = undominated(std::mem::take(&mut cuts[at]));
        for before in 0..cuts[at].len() {
            let cut = cuts[at][before];
            let mut add = |end: usize, held: u64, seconds: f64, way| {
                if held.saturating_add(rest[end].bytes) <= bytes {
                    cuts[end].push(Cut { held, seconds: cut.seconds + seconds, begin: at, before, way });
                    if cuts[end].len() >= 16 * CUTS {
                        cuts[end] = undominated(std::mem::take(&mut cuts[end]));
                    }
                }
            };
            add(at + 1, cut.held.saturating_add(chain.held(at)), 0.0, None);
            let held = cut.held.saturating_add(chain.input(at));
            for end in at + 1..len {
                let mut is_possible = false;
                for (way, (own, seconds)) in ways.of(at..end).enumerate() {
                    if cut.held.saturating_add(own) <= bytes {
                        is_possible = true;
                        add(end, held, seconds, Some(way));
                    }
                }
                if !is_possible && cut.held.saturating_add(chain.again(at..end)) - chain.output(end) > bytes {
                    break;
                }
            }
        }
    }
    let last = cuts[len].iter().min_by(|a, b| a.seconds.total_cmp(&b.seconds))?;
    let (mut end, mut cut) = (len, *last);
    let mut found = Vec::new();
    while end > 0 {
        found.push((cut.begin..end, cut.way));
        (end, cut) = (cut.begin, cuts[cut.begin][cut.before]);
    }
    let mut parts = Vec::new();
    for (range, way) in found.into_iter().rev() {
        let piece = match way {
            None => Part::Keep(range),
            Some(way) => Part::Checkpoint(range.clone(), ways.schedule(range, way)),
        };
        add(&mut parts, piece);
    }
    Some(chain.schedule(&parts))
}

/// The cuts that no other cut beats in both bytes and seconds, sorted by bytes. If there are more than [`CUTS`], keeps
/// one from each of that many equal intervals of bytes.
fn undominated(mut cuts: Vec<Cut>) -> Vec<Cut> {
    cuts.sort_by(|a, b| a.held.cmp(&b.held).then(a.seconds.total_cmp(&b.seconds)));
    let mut best = f64::INFINITY;
    cuts.retain(|cut| {
        cut.seconds < best && {
            best = cut.seconds;
            true
        }
    });
    if let [first, .., last] = &cuts[..]
        && cuts.len() > CUTS
    {
        let (from, span) = (first.held, last.held - first.held);
        let interval =
            |cut: &Cut| (u128::from(cut.held - from) * (CUTS as u128 - 1) / u128::from(span)) as u64;
        // The last one in each interval recomputes the least.
        let kept = (0..cuts.len())
            .filter(|&i| i == 0 || cuts.get(i + 1).is_none_or(|next| interval(next) != interval(&cuts[i])));
        cuts = kept.map(|i| cuts[i]).collect();
    }
    cuts.shrink_to_fit();
    cuts
}

/// Appends a piece, and merges it with the previous one if both are kept.
pub(super) fn add(parts: &mut Vec<Part>, piece: Part) {
    match (parts.last_mut(), piece) {
        (Some(Part::Keep(last)), Part::Keep(next)) if last.end == next.start => last.end = next.end,
        (_, piece) => parts.push(piece),
    }
}
