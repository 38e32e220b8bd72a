//! Low-rank adapters instead of the model's own weights.

use super::freeze::{OFFER, PARAMETERS};
use super::row::{Alone, Joins, Levels, Operators, Programs, Row, Shown, Time, Value};
use super::technique::{Numbers, Technique};

pub(super) const ROW: Row = Row {
    technique: Technique::Lora,
    name: "lora",
    about: "freeze the model and train adapters of rank N [8] on the linear layers of its blocks",
    numbers: Numbers::Changed,
    value: Value::Count,
    effort: 3,
    excludes: &[
        (Technique::StepInBackward, PARAMETERS),
        (Technique::Fsdp, PARAMETERS),
        (Technique::Compile, super::compile::INSIDE),
    ],
    replaces: &[],
    programs: Programs::Uncompiled,
    alone: Alone::Offered,
    joins: Joins::Own,
    levels: Levels::Default,
    is_for_speed: false,
    time: Time::Same,
    operators: Operators::Other,
    shown: Shown::Detail,
    note: Some(OFFER),
};
