//! Splits the linear layers of transformer blocks over several GPUs.

use super::compile::INSIDE;
use super::freeze::PARAMETERS;
use super::row::{Alone, Joins, Levels, Operators, Programs, Row, Shown, Time, Value};
use super::technique::{Numbers, Technique};

/// The reason why it cannot be combined with techniques that act on complete weights.
const PART: &str = "a rank has only a part of the weights";

pub(super) const ROW: Row = Row {
    technique: Technique::TensorParallel,
    name: "tensor-parallel",
    about: "split the linear layers of transformer blocks over --devices GPUs; each computes the whole batch",
    numbers: Numbers::Rounding,
    value: Value::Nothing,
    effort: 4,
    excludes: &[
        (Technique::Fsdp, "both divide the model over the ranks"),
        (Technique::StepInBackward, PART),
        (Technique::Offload, PART),
        (Technique::OffloadOptimizer, PART),
        (Technique::ChunkedLoss, PART),
        (Technique::Fused, "an optimizer's step cannot mix whole and split parameters"),
        (Technique::Adam8bit, PART),
        (Technique::Compile, INSIDE),
        (Technique::Freeze, PARAMETERS),
        (Technique::Lora, PARAMETERS),
    ],
    replaces: &[],
    programs: Programs::Uncompiled,
    alone: Alone::SeveralGpus,
    joins: Joins::Own,
    levels: Levels::Default,
    is_for_speed: false,
    time: Time::Sharded,
    operators: Operators::Same,
    shown: Shown::Detail,
    note: None,
};
