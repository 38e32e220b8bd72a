//! Frees gradients before the forward pass.

use super::row::{Alone, Joins, Levels, Operators, Programs, Row, Shown, Time, Value};
use super::technique::{Numbers, Technique};

pub(super) const ROW: Row = Row {
    technique: Technique::FreeGrads,
    name: "free-grads",
    about: "free gradients before the forward pass, not after it",
    numbers: Numbers::Identical,
    value: Value::Nothing,
    effort: 1,
    excludes: &[],
    replaces: &[],
    programs: Programs::Training,
    alone: Alone::Always,
    joins: Joins::Free,
    levels: Levels::Default,
    is_for_speed: true,
    time: Time::Same,
    operators: Operators::Same,
    shown: Shown::Name,
    note: None,
};
