//! Optimizers that update in one fused kernel.

use super::row::{Alone, Joins, Levels, Operators, Programs, Row, Shown, Time, Value};
use super::technique::{Numbers, Technique};

pub(super) const ROW: Row = Row {
    technique: Technique::Fused,
    name: "fused",
    about: "update in one fused kernel, without temporary copies",
    numbers: Numbers::Rounding,
    value: Value::Nothing,
    effort: 1,
    excludes: &[(Technique::NoForeach, "a fused optimizer makes no copies")],
    replaces: &[Technique::NoForeach],
    programs: Programs::Training,
    alone: Alone::Optimizer,
    joins: Joins::Rounding,
    levels: Levels::Default,
    is_for_speed: true,
    time: Time::Same,
    operators: Operators::Other,
    shown: Shown::Name,
    note: None,
};
