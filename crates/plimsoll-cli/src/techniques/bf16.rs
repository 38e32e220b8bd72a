//! bf16 autocast around the model. It is offered if nothing that keeps the numbers fits.

use super::row::{Alone, Joins, Levels, Operators, Programs, Row, Shown, Time, Value};
use super::technique::{Numbers, Technique};

pub(super) const ROW: Row = Row {
    technique: Technique::Bf16,
    name: "bf16",
    about: "run the model under bf16 autocast",
    numbers: Numbers::Changed,
    value: Value::Nothing,
    effort: 2,
    excludes: &[],
    replaces: &[],
    programs: Programs::Training,
    alone: Alone::Never,
    joins: Joins::Own,
    levels: Levels::Default,
    is_for_speed: true,
    time: Time::Narrow,
    operators: Operators::Other,
    shown: Shown::Name,
    note: None,
};
