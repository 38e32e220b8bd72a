//! The activation memory budget of a program that compiles its model. It is the first technique that is tried
//! on such a program.

use super::compile::BUDGETS;
use super::row::{Alone, Joins, Levels, Operators, Programs, Row, Shown, Time, Value};
use super::technique::{Numbers, Technique};

pub(super) const ROW: Row = Row {
    technique: Technique::MemoryBudget,
    name: "memory-budget",
    about: "make the program's own torch.compile keep only a part of the activations; =PERCENT of them [50]",
    numbers: Numbers::Rounding,
    value: Value::Percent { default: 50 },
    effort: 1,
    excludes: &[(Technique::Compile, "memory-budget is for programs that compile their model")],
    replaces: &[],
    programs: Programs::Compiled,
    alone: Alone::Never,
    joins: Joins::Own,
    levels: Levels::Downward(BUDGETS),
    is_for_speed: false,
    time: Time::Budget,
    operators: Operators::Same,
    shown: Shown::Detail,
    note: None,
};
