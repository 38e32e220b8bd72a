//! Adam with moments in 8 bits, with our own update.

use super::row::{Alone, Joins, Levels, Operators, Programs, Row, Shown, Time, Value};
use super::technique::{Numbers, Technique};

pub(super) const ROW: Row = Row {
    technique: Technique::Adam8bit,
    name: "adam-8bit",
    about: "keep the moments of Adam and AdamW in 8 bits",
    numbers: Numbers::Changed,
    value: Value::Nothing,
    effort: 2,
    excludes: &[(Technique::Fsdp, "the 8-bit update does not support sharded parameters")],
    replaces: &[Technique::NoForeach, Technique::Fused],
    programs: Programs::Training,
    alone: Alone::Changed,
    joins: Joins::Changed,
    levels: Levels::Default,
    is_for_speed: false,
    time: Time::Same,
    operators: Operators::Other,
    shown: Shown::Name,
    note: None,
};
