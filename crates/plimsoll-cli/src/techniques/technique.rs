//! The names of the techniques, and how much techniques change the numbers. All other facts about them are in
//! their rows (`row.rs`).

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

/// How much a technique changes losses and parameters, in ascending order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Numbers {
    /// The same bits.
    Identical,
    /// The same formulas, rounded differently.
    Rounding,
    /// Other formulas.
    Changed,
}

impl Numbers {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Numbers::Identical => "identical",
            Numbers::Rounding => "rounding",
            Numbers::Changed => "changed",
        }
    }
}
