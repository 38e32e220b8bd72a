//! Divides the batch into parts, each run forward and backward. The search tries it before `split`, which
//! computes more.

use super::row::{Alone, Joins, Levels, Operators, Programs, Row, Shown, Time, Value};
use super::split::PARTS;
use super::technique::{Numbers, Technique};

pub(super) const ROW: Row = Row {
    technique: Technique::Accumulate,
    name: "accumulate",
    about: "run the batch in N parts, forward and backward, if the model returns its loss",
    numbers: Numbers::Rounding,
    value: Value::Parts,
    effort: 3,
    excludes: &[(Technique::StepInBackward, "accumulate adds all gradients at the end")],
    replaces: &[],
    programs: Programs::Training,
    alone: Alone::Never,
    joins: Joins::Own,
    levels: Levels::Upward(PARTS),
    is_for_speed: false,
    time: Time::Parts,
    operators: Operators::Same,
    shown: Shown::Detail,
    note: Some("a smaller micro-batch with more accumulation: the gradients of N parts of each batch add up"),
};
