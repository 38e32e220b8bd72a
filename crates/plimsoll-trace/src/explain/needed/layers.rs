//! A forward pass that runs out of memory in one of several identical layers: each layer needs as much memory as the
//! layer before it.
//!
//! Each layer reaches the failing line once, or a few times. Between two visits, the level rises by the memory that a
//! layer takes. The number of layers follows from an earlier pass, or from the number of parameters of each size.

use std::collections::{BTreeMap, BTreeSet};

use plimsoll_alloc::Category;

use super::{rounded, size};
use crate::explain::fragmentation::DeviceAnalysis;
use crate::explain::owners::held;
use crate::explain::passes::Passes;
use crate::explain::purpose::{Purpose, Why};
use crate::failure::Failure;
use crate::snapshot::{Action, EventIndex};
use crate::still_needed::{Rest, StillNeeded};

/// How often a layer may reach one line.
const MOST_IN_A_LAYER: usize = 4;

/// One visit to the line that failed: the event, and the bytes allocated right before it.
#[derive(Debug, Clone, Copy)]
struct Visit {
    at: EventIndex,
    level: u64,
}

/// Finds the memory that the rest of the layer and the later layers need in addition to the failed request.
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
    // From this visit on, each interval between two visits needs the same number of bytes.
    let left = (all + 1).checked_sub(visited)? as u64;
    let bytes = bytes_each.saturating_mul(left) / in_a_layer as u64;
    let bytes = bytes.saturating_sub(rounded(failure.asked_bytes));
    let layers = all.div_ceil(in_a_layer);
    (bytes > 0).then_some(StillNeeded {
        bytes,
        requests: Vec::new(),
        rest: Rest::Layers { layer, layers, bytes_each },
        confidence,
    })
}

/// All requests like the failed one, up to and including it.
fn visits(analysis: DeviceAnalysis<'_>, failure: &Failure) -> Vec<Visit> {
    let trace = analysis.snapshot.trace(analysis.timeline.device);
    let mut level = analysis.timeline.start.allocated_bytes;
    let mut visits = Vec::new();
    for (moment, event) in analysis.timeline.curve(trace).zip(trace) {
        let before = std::mem::replace(&mut level, moment.level.allocated_bytes);
        let Some(at) = moment.after.filter(|&at| at <= failure.at) else { break };
        // Without C++ frames, all operators of one line have the same stack, so sizes are compared too.
        let is_one = event.stack == failure.stack && rounded(event.size) == rounded(failure.asked_bytes);
        if is_one && (event.action == Action::Alloc || at == failure.at) {
            visits.push(Visit { at, level: before });
        }
    }
    visits
}

/// Groups of consecutive visits in one pass. The level rises between the visits of a group.
fn runs(visits: &[Visit], passes: &Passes) -> Vec<Vec<Visit>> {
    let pass = |visit: &Visit| passes.at(visit.at);
    let follows = |a: &Visit, b: &Visit| b.level > a.level && pass(a) == pass(b);
    visits.chunk_by(follows).map(<[Visit]>::to_vec).collect()
}

/// The period with which the rises repeat. The first rises may differ, because libraries allocate workspaces at the
/// same time.
fn period(rises: &[u64]) -> Option<usize> {
    let alike = |a: u64, b: u64| a.abs_diff(b) <= a.max(b) / 64;
    let repeats = |period: &usize| {
        let pairs = rises.iter().rev().zip(rises.iter().rev().skip(*period));
        pairs.take(*period).all(|(&a, &b)| alike(a, b))
    };
    (1..=MOST_IN_A_LAYER.min(rises.len() / 2)).find(repeats).or((rises.len() == 1).then_some(1))
}

/// The number of layers, inferred from the parameters. Counts the parameters of each size, and returns the number that
/// divides the counts of those sizes that have the most bytes in total; `None` if these sizes have less than half of
/// all bytes of parameters.
fn equal_layers(analysis: DeviceAnalysis<'_>, failure: &Failure, least: usize) -> Option<usize> {
    let mut sizes: BTreeMap<u64, usize> = BTreeMap::new();
    for (index, life) in held(analysis.timeline, Some(failure.at)) {
        let Purpose { category, why } = analysis.purposes.get(index);
        // Blocks that count as parameters only because nothing else is known about them might add a layer, so they are
        // left out.
        let is_guess = matches!(why, Why::HeldThroughout | Why::SizeOfParameter);
        if category == Some(Category::Parameter) && !is_guess {
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
        assert_eq!(period(&[180, 100, 100]), Some(1)); // workspace of the first layer
        assert_eq!(period(&[10, 90, 10, 90]), Some(2));
        assert_eq!(period(&[10, 90, 30, 50]), None);
        assert_eq!(period(&[100]), Some(1));
        assert_eq!(period(&[]), None);
    }
}
