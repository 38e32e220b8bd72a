//! Weights in fp16: half the memory of a model that is not trained.

use super::row::{Alone, Joins, Levels, Operators, Programs, Row, Shown, Time, Value};
use super::technique::{Numbers, Technique};

pub(super) const ROW: Row = Row {
    technique: Technique::Half,
    name: "half",
    about: "run models with weights and inputs in fp16; only for programs that read no gradients",
    numbers: Numbers::Changed,
    value: Value::Nothing,
    effort: 1,
    excludes: &[],
    replaces: &[],
    programs: Programs::Inference,
    alone: Alone::Changed,
    joins: Joins::Changed,
    levels: Levels::Default,
    is_for_speed: true,
    time: Time::Narrow,
    operators: Operators::Other,
    shown: Shown::Name,
    note: Some(
        "the largest difference between the outputs is unknown here; `plimsoll run --with half` measures it on the first batch",
    ),
};
