//! A forward pass that runs out in one of several equal layers: each takes as much as the one before.
//!
//! The line that failed was reached once in each layer, or a few times. From one time to the next the level rises by
//! what a layer takes. How many layers there are an earlier pass shows, or the parameters: as many of each size.

use std::collections::{BTreeMap, BTreeSet};

use plimsoll_alloc::Category;

use super::{Rest, StillNeeded, rounded, size};
use crate::explain::fragmentation::DeviceAnalysis;
use crate::explain::owners::held;
use crate::explain::passes::Passes;
use crate::failure::Failure;
use crate::snapshot::{Action, EventIndex};

/// How often one line may be reached in a layer.
const MOST_IN_A_LAYER: usize = 4;

/// The line is reached: the event, and what is allocated right before.
#[derive(Debug, Clone, Copy)]
struct Visit {
    at: EventIndex,
    level: u64,
}

/// What the layer and those behind it take beyond the request.
pub(super) fn find(analysis: DeviceAnalysis<'_>, passes: &Passes, failure: &Failure) -> Option<StillNeeded> {
    let visits = visits(analysis, failure);
    let runs = runs(&visits, passes);
    let (last, earlier) = runs.split_last()?;
    let levels: Vec<u64> = last.iter().map(|visit| visit.level).collect();
    let rises: Vec<u64> = levels.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let in_a_layer = period(&rises)?;
    let bytes_each =
        rises[rises.len() - in_a_layer..].iter().fold(0, |sum: u64, &rise| sum.saturating_add(rise));
    let visited = last.len();
    let before = earlier.iter().map(Vec::len).max().unwrap_or(0);
    let layer = visited.div_ceil(in_a_layer);
    let (all, confidence) = if before >= visited {
        (before, if rises.len() > in_a_layer { "likely" } else { "a guess" })
    } else {
        (equal_layers(analysis, failure, layer)? * in_a_layer, "a guess")
    };
    // This visit's layer begins with it, as it were: as much follows as from any to the next.
    let left = (all + 1).checked_sub(visited)? as u64;
    let bytes = bytes_each.saturating_mul(left) / in_a_layer as u64;
    let bytes = bytes.saturating_sub(rounded(failure.asked_bytes));
    let layers = all.div_ceil(in_a_layer);
    (bytes > 0).then_some(StillNeeded { bytes, rest: Rest::Layers { layer, layers, bytes_each }, confidence })
}

/// Every request as the one that failed, which comes last.
fn visits(analysis: DeviceAnalysis<'_>, failure: &Failure) -> Vec<Visit> {
    let trace = analysis.snapshot.trace(analysis.timeline.device);
    let mut level = analysis.timeline.start.allocated_bytes;
    let mut visits = Vec::new();
    for (moment, event) in analysis.timeline.curve(trace).zip(trace) {
        let before = std::mem::replace(&mut level, moment.level.allocated_bytes);
        let Some(at) = moment.after.filter(|&at| at <= failure.at) else { break };
        // Operators of one line have one stack where only Python's frames are recorded.
        let is_one = event.stack == failure.stack && rounded(event.size) == rounded(failure.asked_bytes);
        if is_one && (event.action == Action::Alloc || at == failure.at) {
            visits.push(Visit { at, level: before });
        }
    }
    visits
}

/// Runs of visits of one pass from each of which to the next the level rises.
fn runs(visits: &[Visit], passes: &Passes) -> Vec<Vec<Visit>> {
    let pass = |visit: &Visit| passes.at(visit.at);
    let follows = |a: &Visit, b: &Visit| b.level > a.level && pass(a) == pass(b);
    visits.chunk_by(follows).map(<[Visit]>::to_vec).collect()
}

/// After how many rises they repeat; the first ones, in which libraries may take scratch, need not.
fn period(rises: &[u64]) -> Option<usize> {
    let alike = |a: u64, b: u64| a.abs_diff(b) <= a.max(b) / 64;
    let repeats = |period: &usize| {
        let pairs = rises.iter().rev().zip(rises.iter().rev().skip(*period));
        pairs.take(*period).all(|(&a, &b)| alike(a, b))
    };
    (1..=MOST_IN_A_LAYER.min(rises.len() / 2)).find(repeats).or((rises.len() == 1).then_some(1))
}

/// How many layers the parameters show: the number that most of them come in, by bytes, or in a multiple of it.
fn equal_layers(analysis: DeviceAnalysis<'_>, failure: &Failure, least: usize) -> Option<usize> {
    let mut sizes: BTreeMap<u64, usize> = BTreeMap::new();
    for (index, life) in held(analysis.timeline, Some(failure.at)) {
        if analysis.purposes.get(index).category == Some(Category::Parameter) {
            *sizes.entry(size(life)).or_default() += 1;
        }
    }
    let of = |layers: usize| {
        let whole = sizes.iter().filter(move |&(_, count)| count % layers == 0);
        whole.map(|(bytes, &count)| bytes.saturating_mul(count as u64)).fold(0, u64::saturating_add)
    };
    let candidates: BTreeSet<usize> =
        sizes.values().copied().filter(|&count| count > 1 && count >= least).collect();
    let layers = candidates.into_iter().max_by_key(|&layers| (of(layers), std::cmp::Reverse(layers)))?;
    (of(layers) >= of(1) / 2).then_some(layers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rises_repeat_after_as_many_as_a_layer_has() {
        assert_eq!(period(&[100, 100, 100]), Some(1));
        assert_eq!(period(&[180, 100, 100]), Some(1)); // scratch of the first layer
        assert_eq!(period(&[10, 90, 10, 90]), Some(2));
        assert_eq!(period(&[10, 90, 30, 50]), None);
        assert_eq!(period(&[100]), Some(1));
        assert_eq!(period(&[]), None);
    }
}
