//! Moves each result to the host immediately, for programs that collect results.

use super::row::{Alone, Joins, Levels, Operators, Programs, Row, Shown, Time, Value};
use super::technique::{Numbers, Technique};

pub(super) const ROW: Row = Row {
    technique: Technique::HostOutputs,
    name: "host-outputs",
    about: "move the outputs of models to the host immediately; only for programs that read no gradients",
    numbers: Numbers::Rounding,
    value: Value::Nothing,
    effort: 1,
    excludes: &[],
    replaces: &[],
    programs: Programs::Inference,
    alone: Alone::Always,
    joins: Joins::Rounding,
    levels: Levels::Default,
    is_for_speed: false,
    time: Time::Same,
    operators: Operators::Same,
    shown: Shown::Name,
    note: None,
};
