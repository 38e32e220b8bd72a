//! What each block is for: [`Purposes`], as recorded or inferred, with the reason.
//!
//! A file of PyTorch's seldom says what a block is for. Three things tell it: the stack, where there is one
//! (`origin.rs`); the block's life beside the passes of a training step (what is asked for in the forward pass
//! and freed in the backward pass was kept for it); and sizes (the gradients of a model have the sizes of its
//! parameters, an optimizer's state has them again). What none of them tells stays unknown.

use plimsoll_alloc::Category;

use super::modules::in_modules;
use super::origin::{Activity, Origins};
use super::passes::{Pass, PassKind, Passes};
use super::sizes;
use super::{buffers, last_pass};
use crate::snapshot::{EventIndex, LifeIndex, Snapshot, TextId};
use crate::timeline::{Life, Timeline};

/// What a block is for, and how that is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Purpose {
    /// What for; `None` if nothing tells.
    pub category: Option<Category>,
    /// How that is known.
    pub why: Why,
}

/// What blocks are shown as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ShownCategory {
    /// What they are for; `None` if nothing tells.
    Purpose(Option<Category>),
    /// The user's own category, by its name.
    Custom(TextId),
}

impl ShownCategory {
    /// Its name, for one block: what it is for, or `None` if nothing tells.
    pub fn name(self, snapshot: &Snapshot) -> Option<&str> {
        match self {
            Self::Purpose(category) => category.map(|category| category.name()),
            Self::Custom(name) => Some(snapshot.texts.get(name)),
        }
    }

    /// Its name, for several blocks.
    pub fn plural(self, snapshot: &Snapshot) -> Option<&str> {
        match self {
            Self::Purpose(category) => category.map(|category| category.plural()),
            Self::Custom(name) => Some(snapshot.texts.get(name)),
        }
    }

    /// What they are for, where the user gave them no category.
    pub fn purpose(self) -> Option<Category> {
        match self {
            Self::Purpose(category) => category,
            Self::Custom(_) => None,
        }
    }
}

/// How a purpose is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Why {
    /// The recording says so.
    Recorded,
    /// A frame matches the pattern that the user gave for a category.
    Pattern,
    /// A frame of its stack says so.
    Frames,
    /// It was asked for outside the backward pass and freed during one.
    FreedInBackward,
    /// It was asked for in a backward pass or an optimizer's step and outlived it.
    OutlivesPass,
    /// It was asked for in a backward pass or an optimizer's step and freed before that ended.
    FreedSoon,
    /// The recording ends behind the optimizer's step that asked for it; others of its stack were freed before theirs
    /// ended.
    OthersFreedSoon,
    /// As before, and PyTorch's optimizer of that name makes its state elsewhere.
    BesideState,
    /// A checkpoint computed it again and kept it until derivatives were computed.
    Recomputed,
    /// It was asked for in the forward pass and freed before a backward pass began.
    FreedInForward,
    /// It was asked for by an operator of a program that has a model, and held when memory ran out before a
    /// backward pass came.
    HeldAtFailure,
    /// It was asked for by an operator, and is held, like most that was, as a recording without a backward pass
    /// ends.
    HeldAtEnd,
    /// It was there before the recording, and as many gradients have its size.
    SizesOfGradients,
    /// It was there before the recording and all through it, of parameters' sizes and beyond their states.
    BeyondStates,
    /// It alone has the size of cuBLAS's workspace in its pass and stream, is never freed, and no parameter has
    /// that size.
    SizeOfWorkspace,
    /// Nothing tells.
    Unknown,
}

impl Why {
    /// How sure that is, in one word.
    pub fn confidence(self) -> &'static str {
        match self {
            Self::Recorded | Self::Pattern | Self::Frames => "certain",
            Self::FreedInBackward
            | Self::OutlivesPass
            | Self::FreedSoon
            | Self::OthersFreedSoon
            | Self::BesideState
            | Self::Recomputed
            | Self::SizesOfGradients
            | Self::SizeOfWorkspace => "likely",
            Self::FreedInForward | Self::HeldAtFailure | Self::HeldAtEnd | Self::BeyondStates => "a guess",
            Self::Unknown => "unknown",
        }
    }

    /// The reason, as the end of the sentence "these are … because …".
    pub fn evidence(self) -> &'static str {
        match self {
            Self::Recorded => "recorded in the file",
            Self::Pattern => "a stack frame matches the pattern",
            Self::Frames => "shown by stack frames",
            Self::FreedInBackward => "allocated outside the backward pass, freed during it",
            Self::OutlivesPass => "outlive the pass that allocated them",
            Self::FreedSoon => "freed before the pass that allocated them ended",
            Self::OthersFreedSoon => {
                "allocated in the last optimizer step; other blocks of their stacks were freed within a step"
            }
            Self::BesideState => {
                "allocated in the last optimizer step, where this optimizer creates no state"
            }
            Self::BeyondStates => {
                "allocated before the recording, of parameter sizes, beyond parameters and optimizer states"
            }
            Self::Recomputed => "recomputed by activation checkpointing",
            Self::FreedInForward => "freed before a backward pass began",
            Self::HeldAtFailure => "allocated by operators, live when memory ran out before a backward pass",
            Self::HeldAtEnd => "allocated by operators, live when the recording ends without a backward pass",
            Self::SizesOfGradients => "allocated before the recording, matching gradients in number and size",
            Self::SizeOfWorkspace => "never freed, and of cuBLAS's workspace size, which no parameter has",
            Self::Unknown => "not shown by stack, lifetime or size",
        }
    }
}

/// The purpose of every life of a timeline.
#[derive(Debug, Clone)]
pub struct Purposes(Vec<Purpose>);

impl Purposes {
    /// What is recorded, and, if `infer`, what follows.
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
            let keeps_graph = keeps_graph(timeline, origins, passes);
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
        }
        Self(purposes)
    }

    /// What a life's block is shown as, and how that is known: the user's own category, or else what it is for.
    pub fn shown(&self, index: LifeIndex, life: &Life, origins: &Origins) -> (ShownCategory, Why) {
        match origins.get(life.stack).custom {
            Some(name) => (ShownCategory::Custom(name), Why::Pattern),
            None => {
                let Purpose { category, why } = self.get(index);
                (ShownCategory::Purpose(category), why)
            }
        }
    }

    /// The purpose of a life.
    pub fn get(&self, life: LifeIndex) -> Purpose {
        self.0[life.index()]
    }
}

/// A category by the name that a recording gives it: ours, or PyTorch's.
fn recorded(snapshot: &Snapshot, id: crate::snapshot::CategoryId) -> Option<Category> {
    let name =
        snapshot.texts.get(*snapshot.categories.get(id.index())?).to_ascii_lowercase().replace('_', " ");
    let plural =
        |category: &Category| name == category.name() || name.strip_suffix('s') == Some(category.name());
    Category::ALL.into_iter().find(plural)
}

/// What frames say by themselves, also of a block from before the recording.
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
    // A backward pass in which memory runs out does not come to what it was kept for.
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

/// Whether memory ran out in a pass while a block from before it was held.
fn fails_in(life: &Life, passes: &Passes, pass: &Pass) -> bool {
    let failure = passes.failure_behind(pass.first).filter(|&failure| failure <= pass.last);
    failure.is_some_and(|failure| life.freed.is_none_or(|freed| freed > pass.last && freed > failure))
}

/// Whether the program calls a module, computes derivatives or has an optimizer.
fn has_model(snapshot: &Snapshot, passes: &Passes) -> bool {
    passes.iter().any(|pass| pass.kind != PassKind::Forward) || in_modules(snapshot).contains(&true)
}

/// Whether a recording without a backward pass ends with a third of all that operators asked for still held: a
/// graph that waits for its backward pass keeps what inference lets go of.
fn keeps_graph(timeline: &Timeline, origins: &Origins, passes: &Passes) -> bool {
    if passes.iter().any(|pass| pass.kind == PassKind::Backward) {
        return false;
    }
    let (mut asked, mut held) = (0_u64, 0_u64);
    let of_operators =
        |life: &&Life| life.born.is_some() && origins.get(life.stack).activity <= Activity::Forward;
    for life in timeline.lives.iter().filter(of_operators) {
        asked = asked.saturating_add(life.bytes);
        held = held.saturating_add(if life.freed.is_none() { life.bytes } else { 0 });
    }
    held > asked / 3
}
