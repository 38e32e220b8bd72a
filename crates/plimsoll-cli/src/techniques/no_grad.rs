//! Runs without an autograd graph, for programs that read no gradient.

use super::row::{Alone, Joins, Levels, Operators, Programs, Row, Shown, Time, Value};
use super::technique::{Numbers, Technique};

pub(super) const ROW: Row = Row {
    technique: Technique::NoGrad,
    name: "no-grad",
    about: "run models without a graph (torch.no_grad()); only for programs that read no gradients",
    numbers: Numbers::Identical,
    value: Value::Nothing,
    effort: 1,
    excludes: &[],
    replaces: &[],
    programs: Programs::Inference,
    alone: Alone::Always,
    joins: Joins::Free,
    levels: Levels::Default,
    is_for_speed: true,
    time: Time::Same,
    operators: Operators::Same,
    shown: Shown::Name,
    note: None,
};
