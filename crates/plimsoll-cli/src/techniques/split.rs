//! The batch in parts inside the model, for models that do not return their loss.

use super::row::{Alone, Joins, Levels, Operators, Programs, Row, Shown, Time, Value};
use super::technique::{Numbers, Technique};

/// Why two techniques that divide the batch exclude each other.
pub(super) const DIVIDES: &str = "both divide the batch";

/// Numbers of parts of the batch, in the order to try.
pub(super) const PARTS: &[u64] = &[2, 4, 8, 16];

pub(super) const ROW: Row = Row {
    technique: Technique::Split,
    name: "split",
    about: "run the batch in N parts inside the model, each recomputed in the backward pass",
    numbers: Numbers::Rounding,
    value: Value::Parts,
    effort: 3,
    excludes: &[(Technique::Accumulate, DIVIDES)],
    replaces: &[],
    programs: Programs::All,
    alone: Alone::Never,
    joins: Joins::Own,
    levels: Levels::Upward(PARTS),
    is_for_speed: false,
    time: Time::PartsAgain,
    operators: Operators::Same,
    shown: Shown::Detail,
    note: Some("a smaller micro-batch inside the model; the loss covers the whole batch"),
};
