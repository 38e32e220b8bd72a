//! The purpose of a block ([`Purpose`]), how it is known ([`Why`]), and the category in which the block is shown
//! ([`ShownCategory`]).

use plimsoll_alloc::Category;

use crate::snapshot::{Snapshot, TextId};

/// The purpose of a block, and how the purpose is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Purpose {
    /// The category; `None` if unknown.
    pub category: Option<Category>,
    /// How the category is known.
    pub why: Why,
}

/// The category in which a block is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ShownCategory {
    /// A built-in category; `None` if the category is unknown.
    Purpose(Option<Category>),
    /// A category that the user defined, by its name.
    Custom(TextId),
}

impl ShownCategory {
    /// The name for one block; `None` if the category is unknown.
    pub fn name(self, snapshot: &Snapshot) -> Option<&str> {
        match self {
            Self::Purpose(category) => category.map(|category| category.name()),
            Self::Custom(name) => Some(snapshot.texts.get(name)),
        }
    }

    /// The name for several blocks.
    pub fn plural(self, snapshot: &Snapshot) -> Option<&str> {
        match self {
            Self::Purpose(category) => category.map(|category| category.plural()),
            Self::Custom(name) => Some(snapshot.texts.get(name)),
        }
    }

    /// The built-in category; `None` if the category is unknown or the user's own.
    pub fn purpose(self) -> Option<Category> {
        match self {
            Self::Purpose(category) => category,
            Self::Custom(_) => None,
        }
    }
}

/// How a category is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Why {
    /// The recording contains the category.
    Recorded,
    /// A stack frame matches the pattern of the user's category.
    Pattern,
    /// A stack frame shows the category.
    Frames,
    /// Allocated outside the backward pass and freed during a backward pass.
    FreedInBackward,
    /// Allocated in a backward pass or an optimizer step, and freed after that pass or step.
    OutlivesPass,
    /// Allocated in a backward pass or an optimizer step, and freed before that pass or step ended.
    FreedSoon,
    /// Allocated in a backward pass, and freed between the pass's last request and its end. No tensor from before the
    /// pass has this size, so the block is not a gradient.
    FreedAsPassEnds,
    /// Allocated in a backward pass, and freed between the pass's last request and its end. All tensors of its size
    /// already have a gradient, which is freed later.
    BeyondGradients,
    /// Created by the program outside every module and never freed, and there is a gradient of the block's size, in a
    /// program with an optimizer.
    HasGradient,
    /// Allocated in a forward pass that is not followed by a backward pass, and live at the same time as other blocks
    /// with the same stack.
    LiveTogether,
    /// The recording ends after the optimizer step that allocated the block; other blocks with the same stack were
    /// freed before their step ended.
    OthersFreedSoon,
    /// The recording ends after the optimizer step that allocated the block, and this optimizer of PyTorch creates its
    /// state elsewhere.
    BesideState,
    /// Recomputed by a checkpoint, and kept for the backward pass.
    Recomputed,
    /// Allocated in the forward pass and freed before a backward pass began.
    FreedInForward,
    /// Allocated by an operator of a program with a model, and live when memory ran out before a backward pass.
    HeldAtFailure,
    /// Allocated by an operator, and live when a recording without a backward pass ends, like most blocks of operators.
    HeldAtEnd,
    /// Older than the recording. The number of gradients of the block's size shows whether the block is a parameter or
    /// an optimizer state.
    SizesOfGradients,
    /// Older than the recording and live throughout. The block has the size of a parameter, but all optimizer states of
    /// that size are already known.
    BeyondStates,
    /// The program created or copied the block outside every module. It is still live at the end of the next backward
    /// pass or of the recording.
    MadeOutsideModules,
    /// Allocated in the forward pass, and still live at the end of the next backward pass or of the recording.
    OutlivesBackward,
    /// Kept like `OutlivesBackward`, but copied outside every module, and with the size of a parameter.
    SizeOfParameter,
    /// Older than the recording, which contains only inference, and live throughout.
    HeldThroughout,
    /// The only block of its pass and stream with the size of a cuBLAS workspace. It is never freed, and no parameter
    /// has that size.
    SizeOfWorkspace,
    /// There is no evidence for any category.
    Unknown,
}

impl Why {
    /// The confidence, in a word or two.
    pub fn confidence(self) -> &'static str {
        match self {
            Self::Recorded | Self::Pattern | Self::Frames => "certain",
            Self::FreedInBackward
            | Self::OutlivesPass
            | Self::FreedSoon
            | Self::FreedAsPassEnds
            | Self::BeyondGradients
            | Self::HasGradient
            | Self::LiveTogether
            | Self::MadeOutsideModules
            | Self::OutlivesBackward
            | Self::OthersFreedSoon
            | Self::BesideState
            | Self::Recomputed
            | Self::SizesOfGradients
            | Self::SizeOfWorkspace => "likely",
            Self::FreedInForward
            | Self::HeldAtFailure
            | Self::HeldAtEnd
            | Self::BeyondStates
            | Self::SizeOfParameter
            | Self::HeldThroughout => "a guess",
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
            Self::FreedAsPassEnds => "freed as the backward pass ended, and of a size that no parameter has",
            Self::BeyondGradients => {
                "freed as the backward pass ended, when all tensors of that size had their gradients"
            }
            Self::HasGradient => {
                "created by the program and kept, with gradients of the same size that an optimizer uses"
            }
            Self::LiveTogether => "several from the same line live at once, so a variable keeps them",
            Self::MadeOutsideModules => "created or copied by the program, outside the model",
            Self::OutlivesBackward => "kept by the program after the passes that used them",
            Self::SizeOfParameter => "kept copies with the size of a parameter",
            Self::HeldThroughout => {
                "allocated before the recording and live throughout, without a backward pass"
            }
            Self::OthersFreedSoon => {
                "allocated in the last optimizer step; other blocks with the same stacks were freed within a step"
            }
            Self::BesideState => {
                "allocated in the last optimizer step, where this optimizer creates no state"
            }
            Self::BeyondStates => {
                "allocated before the recording, of parameter sizes, in addition to parameters and optimizer states"
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
