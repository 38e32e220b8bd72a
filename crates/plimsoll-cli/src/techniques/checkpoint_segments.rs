//! Checkpointing of several consecutive blocks together. The search uses it if a checkpoint of each block is not
//! enough.

use super::row::{Alone, Joins, Levels, Operators, Programs, Row, Shown, Time, Value};
use super::technique::{Numbers, Technique};

/// The reason why it cannot be combined with another checkpointing technique.
const SAME: &str = "both checkpoint the model's blocks";

pub(super) const ROW: Row = Row {
    technique: Technique::CheckpointSegments,
    name: "checkpoint-segments",
    about: "recompute segments of consecutive blocks, keeping only their inputs; =N segments [square root of the number of blocks]",
    numbers: Numbers::Identical,
    value: Value::Count,
    effort: 2,
    excludes: &[
        (Technique::Checkpoint, SAME),
        (Technique::CheckpointNested, SAME),
        (Technique::Fsdp, "a segment needs the complete parameters of all its blocks"),
    ],
    replaces: &[],
    programs: Programs::Training,
    alone: Alone::Never,
    joins: Joins::Own,
    levels: Levels::Default,
    is_for_speed: false,
    time: Time::AllAgain,
    operators: Operators::Same,
    shown: Shown::Detail,
    note: None,
};
