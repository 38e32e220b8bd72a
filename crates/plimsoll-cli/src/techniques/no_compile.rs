//! Turns the program's own `torch.compile` off. That saves no memory itself, but lets other techniques act
//! inside the model.

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
        (Technique::Compile, "no-compile is for programs that compile their model"),
        (Technique::MemoryBudget, "memory-budget needs the compilation"),
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
    note: Some("the slowdown from not compiling is not estimated: times assume the same speed"),
};
