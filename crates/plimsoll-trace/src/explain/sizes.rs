//! Infers the purpose of blocks from their sizes, if neither the stack nor the lifetime shows it.

use std::collections::{BTreeMap, BTreeSet};

use plimsoll_alloc::Category;

use super::passes::{PassKind, Passes};
use super::purpose::{Purpose, Why};
use crate::snapshot::{EventIndex, StackId};
use crate::timeline::Life;

/// The workspace that cuBLAS requests once for each stream and thread, unless `CUBLAS_WORKSPACE_CONFIG` is set: first
/// the size on Hopper and newer, then the size on older GPUs. In PyTorch: `parseChosenWorkspaceSize` in
/// `CublasHandlePool.cpp`.
const WORKSPACE_BYTES: [u64; 2] = [32 << 20, (2 * 4096 + 8 * 16) << 10];

/// Finds cuBLAS workspaces in recordings without C++ frames: for each stream, one on the forward pass's thread and one
/// on the backward pass's thread.
pub(super) fn workspaces(lives: &[Life], purposes: &mut [Purpose], passes: &Passes) {
    let parameters = lives.iter().zip(&*purposes);
    let parameters = parameters.filter(|(_, purpose)| purpose.category == Some(Category::Parameter));
    let parameters: BTreeSet<u64> = parameters.map(|(life, _)| size(life)).collect();
    // Repeated requests are not for workspaces. If requests have no stack, it is unknown which of them are repeated.
    let mut asked: BTreeMap<_, usize> = BTreeMap::new();
    let key = |life: &Life| (life.stack, life.stream, life.pool, size(life));
    for life in lives.iter().filter(|life| WORKSPACE_BYTES.contains(&size(life))) {
        *asked.entry(key(life)).or_default() += 1;
    }
    let has_stack = |life: &Life| life.stack.is_some_and(|stack| stack != StackId::EMPTY);
    let is_alone = |life: &Life| !has_stack(life) || asked.get(&key(life)) == Some(&1);
    let mut seen = BTreeSet::new();
    for (life, purpose) in lives.iter().zip(purposes) {
        let Some(born) = life.born else { continue };
        let is_open = matches!(purpose.why, Why::Unknown | Why::OutlivesPass) && is_alone(life);
        let kind = passes.kind_at(born).filter(|&kind| kind != PassKind::Optimizer);
        let (Some(kind), true, None) = (kind, is_open, life.freed) else { continue };
        let bytes = size(life);
        if WORKSPACE_BYTES.contains(&bytes)
            && !parameters.contains(&bytes)
            && seen.insert((kind, life.stream, life.pool))
        {
            *purpose = Purpose { category: Some(Category::Workspace), why: Why::SizeOfWorkspace };
        }
    }
}

/// The requested bytes, rounded up to 512. The block may be larger.
pub(super) fn size(life: &Life) -> u64 {
    life.requested_bytes.get().map_or(life.bytes, |bytes| bytes.div_ceil(512).saturating_mul(512))
}

/// Finds the purpose of blocks from before the recording, by the sizes of the gradients of one backward pass.
pub(super) fn before(lives: &[Life], purposes: &mut [Purpose], passes: &Passes) {
    let mut before: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    // If only some blocks have frames, blocks whose frames show their purpose count as well.
    let mut certain: BTreeMap<u64, usize> = BTreeMap::new();
    for (place, (life, purpose)) in lives.iter().zip(purposes.iter()).enumerate() {
        match purpose.category {
            None if life.born.is_none() => before.entry(size(life)).or_default().push(place),
            Some(Category::Parameter) => *certain.entry(size(life)).or_default() += 1,
            _ => {}
        }
    }
    // Long-lived blocks come first: parameters and states, not the batch and loss of a step.
    for places in before.values_mut() {
        places.sort_by_key(|&place| (lives[place].freed.is_some(), std::cmp::Reverse(lives[place].freed)));
    }
    let gradients = gradients_by_size(lives, purposes, passes);
    let of = |counts: &BTreeMap<u64, usize>, bytes: &u64| counts.get(bytes).copied().unwrap_or(0);
    let split = |bytes: &u64, places: &[usize]| {
        let parameters = of(&gradients, bytes).saturating_sub(of(&certain, bytes)).min(places.len());
        (parameters, places.len() - parameters)
    };
    // An optimizer has the same number of states for each parameter. The number that fits the most bytes of parameters
    // is chosen.
    let mut votes: BTreeMap<usize, u64> = BTreeMap::new();
    for (bytes, places) in &before {
        let (parameters, others) = split(bytes, places);
        if let Some(states) = others.checked_div(parameters) {
            let vote = votes.entry(states).or_default();
            *vote = vote.saturating_add(bytes.saturating_mul(parameters as u64));
        }
    }
    let most = votes.iter().max_by_key(|&(states, bytes)| (bytes, std::cmp::Reverse(states)));
    let states_of_each = most.map_or(0, |(&states, _)| states);
    let mut beyond: Vec<usize> = Vec::new();
    let mut parameter_bytes = 0_u64;
    for (bytes, places) in &before {
        let (parameters, others) = split(bytes, places);
        let states = others.min(parameters.saturating_mul(states_of_each));
        let (parameters, others) = places.split_at(parameters);
        let (states, others) = others.split_at(states);
        for (places, category) in [(parameters, Category::Parameter), (states, Category::OptimizerState)] {
            for &place in places {
                purposes[place] = Purpose { category: Some(category), why: Why::SizesOfGradients };
            }
        }
        parameter_bytes = parameter_bytes.saturating_add(bytes.saturating_mul(parameters.len() as u64));
        let is_open = |place: &&usize| !parameters.is_empty() && lives[**place].freed.is_none();
        beyond.extend(others.iter().filter(is_open));
    }
    // Frozen parameters also have such sizes, but they usually make up a large part of the parameters.
    let beyond_bytes = beyond.iter().fold(0_u64, |sum, &place| sum.saturating_add(size(&lives[place])));
    if beyond_bytes <= parameter_bytes / 10 {
        for place in beyond {
            purposes[place] = Purpose { category: Some(Category::Buffer), why: Why::BeyondStates };
        }
    }
}

/// The number of gradients of each size that a backward pass left. The pass that left the most gradients counts.
fn gradients_by_size(lives: &[Life], purposes: &[Purpose], passes: &Passes) -> BTreeMap<u64, usize> {
    let left_by = |end: EventIndex| {
        let mut sizes: BTreeMap<u64, usize> = BTreeMap::new();
        let gradients =
            lives.iter().zip(purposes).filter(|(_, purpose)| purpose.category == Some(Category::Gradient));
        // If an optimizer makes no request, its start is its first free, which frees a gradient.
        let is_there = |life: &Life| life.born <= Some(end) && life.freed.is_none_or(|freed| freed >= end);
        for (life, _) in gradients.filter(|(life, _)| is_there(life)) {
            *sizes.entry(size(life)).or_default() += 1;
        }
        sizes
    };
    let ends = passes.backward_ends().take(4);
    ends.map(left_by).max_by_key(|sizes| sizes.values().sum::<usize>()).unwrap_or_default()
}
