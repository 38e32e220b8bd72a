//! Shards parameters, gradients and optimizer states over several GPUs. Complete parameters are freed after
//! each use, which leaves gaps in segments of a fixed size.

use super::compile::INSIDE;
use super::row::{Alone, Joins, Levels, Operators, Programs, Row, Shown, Time, Value};
use super::split::DIVIDES;
use super::technique::{Numbers, Technique};

pub(super) const ROW: Row = Row {
    technique: Technique::Fsdp,
    name: "fsdp",
    about: "shard parameters, gradients and optimizer states over --devices GPUs; each computes a part of the batch",
    numbers: Numbers::Rounding,
    value: Value::Nothing,
    effort: 4,
    excludes: &[
        (
            Technique::StepInBackward,
            "gradients are reduced over the ranks after the backward pass of a block",
        ),
        (Technique::Offload, "it would move sharded parameters"),
        (Technique::ChunkedLoss, "a rank has only a part of the weight"),
        (Technique::Accumulate, DIVIDES),
        (Technique::Split, DIVIDES),
        (Technique::Compile, INSIDE),
    ],
    replaces: &[],
    programs: Programs::Training,
    alone: Alone::SeveralGpus,
    joins: Joins::Own,
    levels: Levels::Default,
    is_for_speed: false,
    time: Time::Sharded,
    operators: Operators::Same,
    shown: Shown::Detail,
    note: None,
};
