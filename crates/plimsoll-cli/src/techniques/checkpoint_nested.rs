//! Checkpointing of blocks inside of blocks, where a stage of a network is a block. The search takes it where it
//! saves more than the outer ones.

use super::row::{Alone, Joins, Levels, Operators, Programs, Row, Shown, Time, Value};
use super::technique::{Numbers, Technique};

pub(super) const ROW: Row = Row {
    technique: Technique::CheckpointNested,
    name: "checkpoint-nested",
    about: "the same for the repeated blocks inside those blocks, such as the blocks of a network's stages",
    numbers: Numbers::Identical,
    value: Value::Count,
    effort: 2,
    excludes: &[(Technique::Checkpoint, "the nested blocks are inside of the others")],
    replaces: &[],
    programs: Programs::Training,
    alone: Alone::NestedBlocks,
    joins: Joins::Own,
    levels: Levels::Blocks,
    is_for_speed: false,
    time: Time::NestedAgain,
    operators: Operators::Same,
    shown: Shown::Detail,
    note: None,
};
