//! The program's own `torch.compile` compiles nothing. It saves no memory itself; it lets others act inside of the
//! model.

use super::row::{Alone, Joins, Levels, Operators, Programs, Row, Shown, Time, Value};
use super::technique::{Numbers, Technique};

pub(super) const ROW: Row = Row {
    technique: Technique::NoCompile,
    name: "no-compile",
    about: "switch off the program's own torch.compile, so that other techniques can act",
    numbers: Numbers::Rounding,
    value: Value::Nothing,
    effort: 1,
    excludes: &[
        (Technique::Compile, "the second is for programs that compile their model"),
        (Technique::MemoryBudget, "the first is for what is compiled"),
    ],
    replaces: &[],
    programs: Programs::Compiled,
    alone: Alone::Never,
    joins: Joins::Own,
    levels: Levels::Default,
    is_for_speed: false,
    time: Time::Same,
    operators: Operators::Other,
    shown: Shown::Name,
    note: Some(
        "how much slower the program is uncompiled is not estimated; the times are as if it were as fast",
    ),
};
