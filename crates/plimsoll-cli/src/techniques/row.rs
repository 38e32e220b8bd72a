//! The facts about a technique: [`Row`]. The help, the search, the estimate of time and the reports read it, so
//! that a new technique is a file here, a file of Python, and its line in `mod.rs`.

use super::{Numbers, Technique};

/// The facts of one technique.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) technique: Technique,
    /// The name in `--with`.
    pub(crate) name: &'static str,
    /// Its effect in a few words, for the help.
    pub(crate) about: &'static str,
    /// Its effect on losses and parameters.
    pub(crate) numbers: Numbers,
    pub(crate) value: Value,
    /// How much of a program an engineer changes to do the same by hand: from 1, a setting, to 4.
    pub(crate) effort: u32,
    /// With which techniques it cannot be combined, and why. A pair is stated in one of its two rows.
    pub(crate) excludes: &'static [(Technique, &'static str)],
    /// Techniques that save nothing in addition to it.
    pub(crate) replaces: &'static [Technique],
    /// The programs that it is for.
    pub(crate) programs: Programs,
    /// When the search tries it alone.
    pub(crate) alone: Alone,
    /// Which sets of the search it joins, once it has saved memory alone.
    pub(crate) joins: Joins,
    /// The values that the search tries.
    pub(crate) levels: Levels,
    /// Whether a search for the fastest step adds it: it may make a step faster, or costs no time and leaves memory,
    /// so that fewer blocks have to be recomputed.
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
    /// A number of parts, at least 2; it cannot be left out.
    Parts,
    /// A percentage from 1 to 100.
    Percent { default: u64 },
}

/// The programs that a technique is for.
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
    /// At the beginning, if blocks have repeated blocks inside.
    NestedBlocks,
    /// At the beginning, on more than one GPU.
    SeveralGpus,
    /// For a fit once nothing that keeps the numbers fits, otherwise at the beginning: it saves an optimizer's
    /// temporary copies.
    Optimizer,
    /// At the beginning, if the numbers may change.
    Changed,
    /// After the search, to show what it would save: it changes what is trained, so it is never chosen.
    Offered,
    /// After all others, if nothing fits because the host has no room for what leaves the GPU.
    LastResort,
    /// Never: the search handles it separately.
    Never,
}

/// The sets of the search that a technique joins, from the smallest to the largest change to the program.
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
    /// The smallest number of the model's blocks with which a set fits.
    Blocks,
    /// The smallest multiple of this percentage with which a set fits.
    Multiples(u64),
    /// These values in order, until a set fits: more parts of the batch.
    Upward(&'static [u64]),
    /// These values: smaller percentages of the activations, each of which is compiled.
    Downward(&'static [u64]),
}

/// The effect of a technique on the time of a step, for the estimate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Time {
    /// Adds only the time of the technique's own operators.
    Same,
    /// The forward pass of some blocks runs twice; the value says how many.
    Again,
    /// The same for the blocks inside blocks.
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
    /// The same, and the complete forward pass runs twice.
    PartsAgain,
    /// The activations that are not kept are recomputed.
    Budget,
    /// Each GPU computes its share, and they exchange parameters and gradients.
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
    /// With the detail that the technique reports about what it was applied to.
    Detail,
    /// With its percentage of what this text names.
    Percent(&'static str),
}
