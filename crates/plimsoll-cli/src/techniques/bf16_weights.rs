//! Weights in bf16, for models whose values exceed the range of fp16.

use super::row::{Alone, Joins, Levels, Operators, Programs, Row, Shown, Time, Value};
use super::technique::{Numbers, Technique};

pub(super) const ROW: Row = Row {
    technique: Technique::Bf16Weights,
    name: "bf16-weights",
    about: "the same in bf16",
    numbers: Numbers::Changed,
    value: Value::Nothing,
    effort: 1,
    excludes: &[(Technique::Half, "both convert the weights")],
    replaces: &[],
    programs: Programs::Inference,
    alone: Alone::Changed,
    joins: Joins::Own,
    levels: Levels::Default,
    is_for_speed: true,
    time: Time::Narrow,
    operators: Operators::Other,
    shown: Shown::Name,
    note: Some(
        "the largest difference between the outputs is unknown here; `plimsoll run --with bf16-weights` measures it on the first batch",
    ),
};
