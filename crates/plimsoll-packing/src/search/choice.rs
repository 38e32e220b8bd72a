//! Decides which buffer to place next ([`Ranking`]).

use std::cmp::Reverse;
use std::ops::Range;

use super::instance::{Instance, NONE};
use super::state::{NEVER, State};

/// Which buffers come first.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum First {
    /// Those with the most sections, then those with the largest area, which is size times sections.
    Wide,
    /// Those with the largest area, then those with the most sections.
    LargeArea,
}

/// The preferences for one kind of attempt.
pub(super) struct Preferences {
    pub(super) first: First,
    /// Bounds that differ by less than this many bytes count as equal.
    pub(super) grain: u64,
    /// Buffers in sections without conflicts are placed later, as if their bounds were higher by this many bytes.
    pub(super) lead: u64,
}

/// The order of the buffers in one attempt.
pub(super) struct Ranking {
    /// The rank of each buffer among those with similar bounds; lower ranks are placed first.
    rank: Vec<u32>,
    /// Bounds count as similar if dividing them by this number gives the same quotient.
    grain: u64,
    /// The amount to add to the bound of each buffer, so that buffers in sections with many conflicts come first.
    lag: Vec<u64>,
}

impl Ranking {
    /// `weight` is the number of conflicts of each section in earlier attempts. Buffers in sections with many conflicts
    /// come earlier. Random factors make attempts differ; with seed 0, there are none.
    pub(super) fn new(of: &Instance, weight: &[u64], preferences: &Preferences, seed: u64) -> Ranking {
        let most = weight.iter().copied().max().unwrap_or(0).max(1) as f64;
        let conflicts = |it: u32| weight[of.span(it)].iter().copied().max().unwrap_or(0) as f64;
        let mut order: Vec<u32> = (0..of.size.len() as u32).collect();
        order.sort_by_cached_key(|&it| {
            let random = if seed == 0 { 1.0 } else { 0.6 + random(seed, it) };
            let factor = 1024.0 * random * (1.0 + WEIGHT_OF_CONFLICTS * conflicts(it) / most);
            let width = of.span(it).len() as f64;
            let area = width * of.size[it as usize] as f64;
            let (width, area) = ((width * factor) as u128, (area * factor) as u128);
            let key = if preferences.first == First::Wide { (width, area) } else { (area, width) };
            (Reverse(key), it)
        });
        let mut rank = vec![0; order.len()];
        for (at, &it) in order.iter().enumerate() {
            rank[it as usize] = at as u32;
        }
        let lag = |it: u32| (preferences.lead as f64 * (1.0 - conflicts(it) / most)) as u64;
        let lag = (0..of.size.len() as u32).map(lag).collect();
        Ranking { rank, grain: preferences.grain.max(1), lag }
    }

    /// Among the buffers of these sections that can be placed, the one with the lowest bound.
    ///
    /// A buffer that can be placed rests on placed ones, and no unplaced buffer fits below it. There always is one: the unplaced
    /// buffer with the smallest end.
    pub(super) fn choose(&self, state: &State<'_>, sections: &Range<usize>) -> Option<u32> {
        let mut best = (NEVER, u32::MAX, NONE);
        for it in 0..state.placed.len() {
            if state.placed[it] || !sections.contains(&(state.of.span[it].start as usize)) {
                continue;
            }
            let bound = state.bound[it];
            let key = ((bound + self.lag[it]) / self.grain, self.rank[it], it as u32);
            if key < best && bound == state.low[it] && bound < state.smallest_end_beside(it as u32) {
                best = key;
            }
        }
        (best.2 != NONE).then_some(best.2)
    }
}

/// How much weight the conflicts of a section have.
const WEIGHT_OF_CONFLICTS: f64 = 10.0;

/// A number from 0 to 1 that depends only on its arguments.
fn random(seed: u64, buffer: u32) -> f64 {
    let mut bits =
        seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ u64::from(buffer + 1).wrapping_mul(0xD1B5_4A32_D192_ED03);
    for _ in 0..3 {
        bits = (bits ^ (bits >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits ^= bits >> 32;
    }
    (bits >> 11) as f64 / (1u64 << 53) as f64
}
