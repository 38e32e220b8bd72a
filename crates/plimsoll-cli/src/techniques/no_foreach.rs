//! Optimizers that update one parameter at a time.

use super::row::{Alone, Joins, Levels, Operators, Programs, Row, Shown, Time, Value};
use super::technique::{Numbers, Technique};

pub(super) const ROW: Row = Row {
    technique: Technique::NoForeach,
    name: "no-foreach",
    about: "update one parameter at a time, without temporary copies of all parameters",
    numbers: Numbers::Rounding,
    value: Value::Nothing,
    effort: 1,
    excludes: &[],
    replaces: &[],
    programs: Programs::Training,
    alone: Alone::Optimizer,
    joins: Joins::Rounding,
    levels: Levels::Default,
    is_for_speed: false,
    time: Time::Same,
    operators: Operators::Other,
    shown: Shown::Name,
    note: None,
};
