//! `torch.compile` for a model that the program does not compile. A trial takes about a minute, so it comes last.

use super::row::{Alone, Joins, Levels, Operators, Programs, Row, Shown, Time, Value};
use super::technique::{Numbers, Technique};

/// The reason why techniques that act inside the model exclude it.
pub(super) const INSIDE: &str = "calls inside a compiled model cannot be changed";

/// The percentages of its activations that a compiled model keeps, in the order to try.
pub(super) const BUDGETS: &[u64] = &[50, 25, 10];

pub(super) const ROW: Row = Row {
    technique: Technique::Compile,
    name: "compile",
    about: "compile the model with torch.compile, and keep only a part of its activations; =PERCENT of them [50]",
    numbers: Numbers::Rounding,
    value: Value::Percent { default: 50 },
    effort: 1,
    excludes: &[
        (Technique::Checkpoint, INSIDE),
        (Technique::CheckpointNested, INSIDE),
        (Technique::CheckpointSegments, INSIDE),
        (Technique::Offload, INSIDE),
        (Technique::ChunkedLoss, INSIDE),
        (Technique::Accumulate, INSIDE),
        (Technique::Split, INSIDE),
    ],
    replaces: &[],
    programs: Programs::Uncompiled,
    alone: Alone::Never,
    joins: Joins::Own,
    levels: Levels::Downward(BUDGETS),
    is_for_speed: false,
    time: Time::Budget,
    operators: Operators::Same,
    shown: Shown::Detail,
    note: None,
};
