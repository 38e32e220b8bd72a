//! The techniques by name, and what techniques do to the numbers. What else is known of them is in their rows
//! (`row.rs`).

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
}

/// What a technique does to losses and parameters, from the least to the most.
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
