//! Optimizer states in pinned host memory. Their copies do not overlap with computation, so the search uses it only
//! if cheaper techniques are not enough.

use super::row::{Alone, Joins, Levels, Operators, Programs, Row, Shown, Time, Value};
use super::technique::{Numbers, Technique};

pub(super) const ROW: Row = Row {
    technique: Technique::OffloadOptimizer,
    name: "offload-optimizer",
    about: "keep optimizer states on the host, and copy them to the GPU in pieces for the update",
    numbers: Numbers::Identical,
    value: Value::Nothing,
    effort: 4,
    excludes: &[
        (Technique::Fsdp, "it would move sharded states"),
        (Technique::Adam8bit, "the 8-bit update has its own states"),
    ],
    replaces: &[],
    programs: Programs::Training,
    alone: Alone::Always,
    joins: Joins::Identical,
    levels: Levels::Default,
    is_for_speed: false,
    time: Time::StepCopies,
    operators: Operators::Same,
    shown: Shown::Name,
    note: None,
};
