//! The purpose of each block: [`Purposes`], recorded or inferred, with the reason.
//!
//! PyTorch's files seldom record the purpose of a block. Three things show it. The first is the stack, if there is one
//! (`origin.rs`). The second is the block's lifetime relative to the passes of a training step: what the forward pass
//! allocates and the backward pass frees was saved for the backward pass. The third is the size: gradients and
//! optimizer state have the sizes of parameters. Otherwise the purpose is unknown.

use plimsoll_alloc::Category;

use super::kept::Program;
use super::modules::in_modules;
use super::origin::{Activity, Origins};
use super::passes::{Pass, PassKind, Passes};
use super::purpose::{Purpose, ShownCategory, Why};
use super::sizes;
use super::{buffers, kept, last_pass, results};
use crate::snapshot::{EventIndex, LifeIndex, Snapshot};
use crate::timeline::{Life, Timeline};

/// The purpose of every block of a timeline.
#[derive(Debug, Clone)]
pub struct Purposes(Vec<Purpose>);

impl Purposes {
    /// The recorded purposes and, with `infer`, the inferred purposes of the other blocks.
    pub fn of(
        snapshot: &Snapshot,
        timeline: &Timeline,
        origins: &Origins,
        passes: &Passes,
        infer: bool,
    ) -> Self {
        let recorded = |life: &Life| match life.category.and_then(|id| recorded(snapshot, id)) {
            Some(category) => Purpose { category: Some(category), why: Why::Recorded },
            None => Purpose { category: None, why: Why::Unknown },
        };
        let mut purposes: Vec<Purpose> = timeline.lives.iter().map(recorded).collect();
        if infer {
            let program = Program::of(snapshot, timeline, origins, passes);
            let keeps_graph = keeps_graph(timeline, origins, passes, &program);
            let has_model = has_model(snapshot, passes);
            let are_buffers = buffers::of_stacks(snapshot, &timeline.lives, origins, passes);
            let unknown = |purpose: &Purpose| purpose.category.is_none();
            for (purpose, life) in
                purposes.iter_mut().zip(&timeline.lives).filter(|(purpose, _)| unknown(purpose))
            {
                let activity = origins.get(life.stack).activity;
                if life.stack.is_some_and(|stack| are_buffers[stack.index()]) {
                    *purpose = Purpose { category: Some(Category::Buffer), why: Why::Frames };
                    continue;
                }
                if let Some((category, why)) =
                    from_frames(activity).or_else(|| from_life(life, activity, passes, keeps_graph))
                    && (has_model || why != Why::HeldAtFailure)
                {
                    *purpose = Purpose { category: Some(category), why };
                }
            }
            last_pass::settle(snapshot, &timeline.lives, &mut purposes, origins, passes);
            sizes::workspaces(&timeline.lives, &mut purposes, passes);
            sizes::before(&timeline.lives, &mut purposes, passes);
            results::settle(&program, &timeline.lives, &mut purposes);
            kept::settle(&program, timeline, &mut purposes);
        }
        Self(purposes)
    }

    /// The category in which a block is shown, and how it is known. The user's own categories take precedence.
    pub fn shown(&self, index: LifeIndex, life: &Life, origins: &Origins) -> (ShownCategory, Why) {
        match origins.get(life.stack).custom {
            Some(name) => (ShownCategory::Custom(name), Why::Pattern),
            None => {
                let Purpose { category, why } = self.get(index);
                (ShownCategory::Purpose(category), why)
            }
        }
    }

    /// The purpose of a block.
    pub fn get(&self, life: LifeIndex) -> Purpose {
        self.0[life.index()]
    }
}

/// The category that the recording names, ours or PyTorch's.
fn recorded(snapshot: &Snapshot, id: crate::snapshot::CategoryId) -> Option<Category> {
    let name =
        snapshot.texts.get(*snapshot.categories.get(id.index())?).to_ascii_lowercase().replace('_', " ");
    let plural =
        |category: &Category| name == category.name() || name.strip_suffix('s') == Some(category.name());
    Category::ALL.into_iter().find(plural)
}

/// The category that stack frames show, including for blocks from before the recording.
fn from_frames(activity: Activity) -> Option<(Category, Why)> {
    let category = match activity {
        Activity::Workspace => Category::Workspace,
        Activity::OptimizerState => Category::OptimizerState,
        Activity::Accumulating | Activity::Bucketing => Category::Gradient,
        Activity::Building | Activity::Gathering => Category::Parameter,
        _ => return None,
    };
    Some((category, Why::Frames))
}

fn from_life(life: &Life, activity: Activity, passes: &Passes, keeps_graph: bool) -> Option<(Category, Why)> {
    let born = life.born?;
    Some(match activity {
        Activity::OptimizerStep if passes.is_freed_before_next(life, born) => {
            (Category::Temporary, Why::FreedSoon)
        }
        Activity::OptimizerStep => (Category::OptimizerState, Why::OutlivesPass),
        Activity::Backward => from_backward(life, born, passes),
        Activity::Recomputing => from_checkpoint(life, born, passes),
        Activity::Unknown if passes.is_backward(born) => from_backward(life, born, passes),
        _ => from_forward(life, born, passes, keeps_graph)?,
    })
}

fn from_backward(life: &Life, born: EventIndex, passes: &Passes) -> (Category, Why) {
    if passes.is_freed_within(life, born) {
        (Category::Temporary, Why::FreedSoon)
    } else {
        (Category::Gradient, Why::OutlivesPass)
    }
}

fn from_checkpoint(life: &Life, born: EventIndex, passes: &Passes) -> (Category, Why) {
    if life.freed.zip(passes.recomputed_until(born)).is_some_and(|(freed, end)| freed <= end) {
        (Category::Temporary, Why::FreedSoon)
    } else {
        (Category::Activation, Why::Recomputed)
    }
}

fn from_forward(
    life: &Life,
    born: EventIndex,
    passes: &Passes,
    keeps_graph: bool,
) -> Option<(Category, Why)> {
    let (freed, backward) = (life.freed, passes.next_backward(born));
    // A backward pass that runs out of memory does not free what was saved for it.
    let backward = backward.filter(|pass| !fails_in(life, passes, pass));
    match backward {
        Some(backward) if freed? < backward.first => Some((Category::Temporary, Why::FreedInForward)),
        Some(backward) if freed? <= backward.last => Some((Category::Activation, Why::FreedInBackward)),
        Some(_) => None,
        None if passes
            .failure_behind(born)
            .is_some_and(|failure| freed.is_none_or(|freed| freed > failure)) =>
        {
            Some((Category::Activation, Why::HeldAtFailure))
        }
        None if freed.is_some() => Some((Category::Temporary, Why::FreedInForward)),
        None => keeps_graph.then_some((Category::Activation, Why::HeldAtEnd)),
    }
}

/// Whether memory ran out in a pass while an older block was live.
fn fails_in(life: &Life, passes: &Passes, pass: &Pass) -> bool {
    let failure = passes.failure_behind(pass.first).filter(|&failure| failure <= pass.last);
    failure.is_some_and(|failure| life.freed.is_none_or(|freed| freed > pass.last && freed > failure))
}

/// Whether the program calls a module, computes derivatives or has an optimizer.
fn has_model(snapshot: &Snapshot, passes: &Passes) -> bool {
    passes.iter().any(|pass| pass.kind != PassKind::Forward) || in_modules(snapshot).contains(&true)
}

/// Whether a recording without a backward pass ends while a third of all bytes that operators allocated is live. If so,
/// a graph waits for its backward pass: inference would have freed these blocks.
fn keeps_graph(timeline: &Timeline, origins: &Origins, passes: &Passes, program: &Program<'_>) -> bool {
    if passes.iter().any(|pass| pass.kind == PassKind::Backward) {
        return false;
    }
    let (mut asked, mut held) = (0_u64, 0_u64);
    let of_operators =
        |life: &&Life| life.born.is_some() && origins.get(life.stack).activity <= Activity::Forward;
    for life in timeline.lives.iter().filter(of_operators).filter(|life| !program.is_input(life)) {
        asked = asked.saturating_add(life.bytes);
        held = held.saturating_add(if life.freed.is_none() { life.bytes } else { 0 });
    }
    held > asked / 3
}
