//! Saved tensors in files, for a host whose memory has no room for them. Disks are slow and copies do not overlap, so the search
//! uses it last.

use super::row::{Alone, Joins, Levels, Operators, Programs, Row, Shown, Time, Value};
use super::technique::{Numbers, Technique};

pub(super) const ROW: Row = Row {
    technique: Technique::OffloadDisk,
    name: "offload-disk",
    about: "move tensors saved for the backward pass to a file on disk; =PERCENT of their bytes [95]",
    numbers: Numbers::Identical,
    value: Value::Percent { default: 95 },
    effort: 4,
    excludes: &[
        (Technique::Offload, "a saved tensor can be in only one place"),
        (Technique::Fsdp, "it would move sharded parameters"),
        (Technique::Compile, "tensors saved inside a compiled model cannot be moved"),
        (Technique::TensorParallel, "it would move parts of tensors"),
    ],
    replaces: &[],
    programs: Programs::Training,
    alone: Alone::LastResort,
    joins: Joins::Own,
    levels: Levels::Default,
    is_for_speed: false,
    time: Time::DiskCopies,
    operators: Operators::Same,
    shown: Shown::Percent("of the saved bytes"),
    note: Some("the time assumes a disk with 2 GB/s; PLIMSOLL_OFFLOAD_FOLDER names the folder"),
};
