//! Saved tensors in pinned host memory. Copies may take less time than recomputation, so the search compares both.

use super::row::{Alone, Joins, Levels, Operators, Programs, Row, Shown, Time, Value};
use super::technique::{Numbers, Technique};

pub(super) const ROW: Row = Row {
    technique: Technique::Offload,
    name: "offload",
    about: "move tensors saved for the backward pass to the host; =PERCENT of their bytes [95]",
    numbers: Numbers::Identical,
    value: Value::Percent { default: 95 },
    effort: 2,
    excludes: &[],
    replaces: &[],
    programs: Programs::Training,
    alone: Alone::Always,
    joins: Joins::Own,
    levels: Levels::Multiples(10),
    is_for_speed: false,
    time: Time::Copies,
    operators: Operators::Same,
    shown: Shown::Percent("of the saved bytes"),
    note: None,
};
