//! Expandable segments of the allocator. They may save nothing alone, but may save memory when activations are no
//! longer kept.

use super::row::{Alone, Joins, Levels, Operators, Programs, Row, Shown, Time, Value};
use super::technique::{Numbers, Technique};

pub(super) const ROW: Row = Row {
    technique: Technique::Expandable,
    name: "expandable",
    about: "use the allocator's expandable segments: less fragmentation",
    numbers: Numbers::Identical,
    value: Value::Nothing,
    effort: 1,
    excludes: &[],
    replaces: &[],
    programs: Programs::All,
    alone: Alone::Always,
    joins: Joins::Free,
    levels: Levels::Default,
    is_for_speed: true,
    time: Time::Same,
    operators: Operators::Same,
    shown: Shown::Name,
    note: None,
};
