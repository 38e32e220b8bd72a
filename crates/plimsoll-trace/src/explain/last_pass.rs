//! Finds the temporaries among the blocks of an optimizer's last step, if the recording ends before they are freed.
//!
//! A block that outlives an optimizer step is usually state. But the recording may end at any moment after the last
//! step, and a program that ends frees everything. So a block of the last step is not state if other blocks of its
//! stack were freed within their steps, or if the PyTorch optimizer of that name creates no state there.

use std::collections::BTreeSet;

use plimsoll_alloc::Category;

use super::origin::{Activity, Origins};
use super::passes::{PassKind, Passes};
use super::purpose::{Purpose, Why};
use crate::snapshot::{Snapshot, StackId};
use crate::timeline::Life;

/// PyTorch's optimizers that create all their state in `_init_group` or in their constructor.
const STATE_IS_MADE_FIRST: [&str; 11] = [
    "_muon.py",
    "adadelta.py",
    "adagrad.py",
    "adam.py",
    "adamax.py",
    "adamw.py",
    "nadam.py",
    "radam.py",
    "rmsprop.py",
    "rprop.py",
    "sparse_adam.py",
];

/// If the last pass is an optimizer step, finds the temporaries among the blocks that look like its state.
pub(super) fn settle(
    snapshot: &Snapshot,
    lives: &[Life],
    purposes: &mut [Purpose],
    origins: &Origins,
    passes: &Passes,
) {
    let Some(last) = passes.iter().last().filter(|pass| pass.kind == PassKind::Optimizer) else { return };
    let is_of_step = |life: &Life| origins.get(life.stack).activity == Activity::OptimizerStep;
    let of_step = lives.iter().zip(&*purposes).filter(|(life, _)| is_of_step(life));
    let freed: BTreeSet<Option<StackId>> =
        of_step.filter(|(_, purpose)| purpose.why == Why::FreedSoon).map(|(life, _)| life.stack).collect();
    for (life, purpose) in lives.iter().zip(purposes) {
        if purpose.why != Why::OutlivesPass || life.born < Some(last.first) || !is_of_step(life) {
            continue;
        }
        if freed.contains(&life.stack) {
            *purpose = Purpose { category: Some(Category::Temporary), why: Why::OthersFreedSoon };
        } else if makes_state_first(snapshot, life.stack) {
            *purpose = Purpose { category: Some(Category::Temporary), why: Why::BesideState };
        }
    }
}

/// Whether the innermost frame of an optimizer belongs to a PyTorch optimizer that creates its state before its step.
fn makes_state_first(snapshot: &Snapshot, stack: Option<StackId>) -> bool {
    let frames = stack.into_iter().flat_map(|stack| snapshot.stacks.frame_ids(stack));
    let files = frames.map(|frame| snapshot.texts.get(snapshot.stacks.get_frame(frame).filename));
    let mut names = files.filter_map(|file| {
        let file = file.replace('\\', "/");
        file.split_once("/torch/optim/").map(|(_, name)| name.to_owned())
    });
    // PyTorch wraps the step of every optimizer, including the user's own.
    names.next().is_some_and(|name| STATE_IS_MADE_FIRST.contains(&name.as_str()))
}
