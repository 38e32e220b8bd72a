//! Weights on the host, for models that are larger than the GPU.

use super::row::{Alone, Joins, Levels, Operators, Programs, Row, Shown, Time, Value};
use super::technique::{Numbers, Technique};

pub(super) const ROW: Row = Row {
    technique: Technique::OffloadWeights,
    name: "offload-weights",
    about: "keep weights of repeated blocks in pinned host memory; only for programs that read no gradients",
    numbers: Numbers::Identical,
    value: Value::Nothing,
    effort: 3,
    excludes: &[],
    replaces: &[],
    programs: Programs::Inference,
    alone: Alone::Always,
    joins: Joins::Identical,
    levels: Levels::Default,
    is_for_speed: false,
    time: Time::WeightCopies,
    operators: Operators::Same,
    shown: Shown::Name,
    note: None,
};
