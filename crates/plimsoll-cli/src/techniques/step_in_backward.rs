//! The optimizer's step inside the backward pass, which leaves no gradients to free.

use super::row::{Alone, Joins, Levels, Operators, Programs, Row, Shown, Time, Value};
use super::technique::{Numbers, Technique};

pub(super) const ROW: Row = Row {
    technique: Technique::StepInBackward,
    name: "step-in-backward",
    about: "update each parameter as soon as its gradient is complete, and free the gradient",
    numbers: Numbers::Identical,
    value: Value::Nothing,
    effort: 4,
    excludes: &[],
    replaces: &[Technique::FreeGrads],
    programs: Programs::Training,
    alone: Alone::Always,
    joins: Joins::Identical,
    levels: Levels::Default,
    is_for_speed: false,
    time: Time::Same,
    operators: Operators::Same,
    shown: Shown::Name,
    note: None,
};
