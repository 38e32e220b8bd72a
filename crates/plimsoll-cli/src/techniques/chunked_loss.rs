//! Computes the last linear layer and its cross-entropy in chunks, so the complete logits are never in memory.

use super::row::{Alone, Joins, Levels, Operators, Programs, Row, Shown, Time, Value};
use super::technique::{Numbers, Technique};

pub(super) const ROW: Row = Row {
    technique: Technique::ChunkedLoss,
    name: "chunked-loss",
    about: "compute the last linear layer and its cross-entropy in chunks; =ROWS: the number of rows in a chunk",
    numbers: Numbers::Rounding,
    value: Value::Count,
    effort: 3,
    excludes: &[],
    replaces: &[],
    programs: Programs::Training,
    alone: Alone::Always,
    joins: Joins::Rounding,
    levels: Levels::Default,
    is_for_speed: false,
    time: Time::Same,
    operators: Operators::Other,
    shown: Shown::Name,
    note: None,
};
