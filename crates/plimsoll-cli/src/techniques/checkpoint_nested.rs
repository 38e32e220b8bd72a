//! Checkpointing of blocks inside blocks, for networks whose blocks are stages. The search uses it if it saves more
//! than checkpointing the outer blocks.

use super::row::{Alone, Joins, Levels, Operators, Programs, Row, Shown, Time, Value};
use super::technique::{Numbers, Technique};

pub(super) const ROW: Row = Row {
    technique: Technique::CheckpointNested,
    name: "checkpoint-nested",
    about: "the same for the repeated blocks inside those blocks, such as the blocks of a network's stages",
    numbers: Numbers::Identical,
    value: Value::Count,
    effort: 2,
    excludes: &[(Technique::Checkpoint, "the nested blocks are inside the others")],
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
