//! The names of the techniques, and how much techniques change the numbers. All other facts about them are in
//! their rows (`row.rs`).

use clap::ValueEnum;
pub(crate) use plimsoll::fit::Numbers;

/// A technique, in the order of the help.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Technique {
    Expandable,
    FreeGrads,
    StepInBackward,
    Checkpoint,
    CheckpointNested,
    Offload,
    OffloadOptimizer,
    ChunkedLoss,
    NoForeach,
    Fused,
    Accumulate,
    Split,
    Compile,
    MemoryBudget,
    NoCompile,
    Fsdp,
    Adam8bit,
    Bf16,
    CheckpointSegments,
    NoGrad,
    HostOutputs,
    OffloadWeights,
    Half,
    Bf16Weights,
    Freeze,
    Lora,
    TensorParallel,
    OffloadDisk,
}

/// The techniques that a user allows, by how much they may change losses and parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Allowed {
    /// Losses and parameters are bit-identical
    Identical,
    /// The same formulas, rounded differently
    Rounding,
    /// Other formulas, such as bf16 autocast
    Changed,
}

impl Allowed {
    pub(crate) fn numbers(self) -> Numbers {
        match self {
            Allowed::Identical => Numbers::Identical,
            Allowed::Rounding => Numbers::Rounding,
            Allowed::Changed => Numbers::Changed,
        }
    }
}
