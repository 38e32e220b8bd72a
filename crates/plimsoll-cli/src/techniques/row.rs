//! The facts about a technique: [`Row`]. The help, the search, the time estimate and the reports read it, so a new
//! technique only needs a file here, a Python file, and a line in `mod.rs`.

use super::{Numbers, Technique};

/// The facts of one technique.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) technique: Technique,
    /// The name in `--with`.
    pub(crate) name: &'static str,
    /// Its effect in a few words, for the help text.
    pub(crate) about: &'static str,
    /// Its effect on losses and parameters.
    pub(crate) numbers: Numbers,
    pub(crate) value: Value,
    /// How much of a program an engineer would have to change to do the same by hand: from 1 (a setting) to 4.
    pub(crate) effort: u32,
    /// The techniques that it cannot be combined with, and why. Each pair is listed in only one of the two rows.
    pub(crate) excludes: &'static [(Technique, &'static str)],
    /// Techniques that save nothing if this one is applied.
    pub(crate) replaces: &'static [Technique],
    /// The programs that it is meant for.
    pub(crate) programs: Programs,
    /// When the search tries the technique alone.
    pub(crate) alone: Alone,
    /// Which of the search's sets it joins, if it has saved memory by itself.
    pub(crate) joins: Joins,
    /// The values that the search tries.
    pub(crate) levels: Levels,
    /// Whether a search for the fastest step adds it: either it may make a step faster, or it costs no time and frees
    /// memory, so that fewer blocks have to be recomputed.
    pub(crate) is_for_speed: bool,
    /// Its effect on the time of a step.
    pub(crate) time: Time,
    pub(crate) operators: Operators,
    pub(crate) shown: Shown,
    /// A note to print below a table that contains it.
    pub(crate) note: Option<&'static str>,
}

/// The value of a technique in `--with`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Value {
    /// No value.
    Nothing,
    /// A number of blocks or rows, at least 1; the default is all blocks, or the number of rows that the technique chooses.
    Count,
    /// A number of parts, at least 2; it is required.
    Parts,
    /// A percentage from 1 to 100.
    Percent { default: u64 },
}

/// The programs that a technique is meant for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Programs {
    All,
    /// Programs that train.
    Training,
    /// Programs that only compute outputs: nothing reads a gradient.
    Inference,
    /// Programs that train a compiled model.
    Compiled,
    /// Programs that train a model that is not compiled.
    Uncompiled,
}

/// When the search tries a technique alone, in the order of the search.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Alone {
    /// At the beginning, on every program.
    Always,
    /// At the beginning, if blocks contain repeated blocks.
    NestedBlocks,
    /// At the beginning, on more than one GPU.
    SeveralGpus,
    /// If the goal is to fit, only once no set that keeps the numbers fits; otherwise at the beginning. It saves an
    /// optimizer's temporary copies.
    Optimizer,
    /// At the beginning, if the numbers may change.
    Changed,
    /// After the search, to show what it would save. It changes which parameters are trained, so it is never chosen.
    Offered,
    /// After all others, if nothing fits because the host has no room for what leaves the GPU.
    LastResort,
    /// Never: the search handles it separately.
    Never,
}

/// The search's sets that a technique joins, from the smallest to the largest change to the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Joins {
    /// All sets: the technique costs no time and keeps the numbers.
    Free,
    /// Sets that keep the numbers.
    Identical,
    /// Sets that round differently.
    Rounding,
    /// Sets that change the numbers.
    Changed,
    /// None automatically: the search handles it separately.
    Own,
}

/// The values of a technique that the search tries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Levels {
    /// No value, only the name.
    Default,
    /// The smallest number of the model's blocks at which a set fits.
    Blocks,
    /// The smallest multiple of this percentage at which a set fits.
    Multiples(u64),
    /// These values in order, until a set fits: more and more parts of the batch.
    Upward(&'static [u64]),
    /// These values: smaller and smaller percentages of the activations, each of which has to be compiled.
    Downward(&'static [u64]),
}

/// The effect of a technique on the time of a step, for the estimate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Time {
    /// Adds only the time of the technique's own operators.
    Same,
    /// The forward pass of some blocks runs twice; the value says how many.
    Again,
    /// The nested blocks inside the blocks are recomputed.
    NestedAgain,
    /// The forward pass of all blocks runs twice.
    AllAgain,
    /// Bytes move to the host and back, overlapped with the computation.
    Copies,
    /// Bytes move to a disk and back, with no computation to hide them.
    DiskCopies,
    /// Bytes move to the GPU in the forward pass, overlapped with the computation.
    WeightCopies,
    /// Bytes move to the GPU and back in the optimizer's step, with no computation to hide them.
    StepCopies,
    /// Each operator runs in parts.
    Parts,
    /// The batch runs in parts, and the complete forward pass runs twice.
    PartsAgain,
    /// The activations that are not kept are recomputed.
    Budget,
    /// Each GPU computes a share of the step, and the GPUs exchange parameters and gradients.
    Sharded,
    /// Products are computed in bf16.
    Narrow,
}

/// The operators of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operators {
    /// The program's own operators.
    Same,
    /// Other operators, which a separate run counts.
    Other,
}

/// How the verdict names a technique.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shown {
    Name,
    /// Its name and the details that the technique reports, such as the modules to which it was applied.
    Detail,
    /// Its name and its percentage; the text names the quantity to which the percentage refers.
    Percent(&'static str),
}
