//! Checkpointing of repeated blocks. The savings are about linear in the number of blocks, so the search can
//! solve for this number.

use super::row::{Alone, Joins, Levels, Operators, Programs, Row, Shown, Time, Value};
use super::technique::{Numbers, Technique};

pub(super) const ROW: Row = Row {
    technique: Technique::Checkpoint,
    name: "checkpoint",
    about: "recompute activations of the model's repeated blocks in the backward pass; =K: only of the first K blocks",
    numbers: Numbers::Identical,
    value: Value::Count,
    effort: 2,
    excludes: &[],
    replaces: &[],
    programs: Programs::Training,
    alone: Alone::Always,
    joins: Joins::Own,
    levels: Levels::Blocks,
    is_for_speed: false,
    time: Time::Again,
    operators: Operators::Same,
    shown: Shown::Detail,
    note: None,
};
