//! Trains only the end of the model. Like `lora`, it changes which parameters are trained, so a plan suggests it but
//! never chooses it.

use super::row::{Alone, Joins, Levels, Operators, Programs, Row, Shown, Time, Value};
use super::technique::{Numbers, Technique};

/// Why two techniques that change which parameters are trained exclude each other.
pub(super) const TRAINED: &str = "both decide what is trained";
/// Why techniques that act on every parameter exclude them.
pub(super) const PARAMETERS: &str = "it acts on all parameters before the first step";
/// The text of a plan about these techniques.
pub(super) const OFFER: &str =
    "a different training, not the same one with less memory: it is offered, but never chosen";

pub(super) const ROW: Row = Row {
    technique: Technique::Freeze,
    name: "freeze",
    about: "train only the last repeated block and what follows it",
    numbers: Numbers::Changed,
    value: Value::Nothing,
    effort: 2,
    excludes: &[
        (Technique::Lora, TRAINED),
        (Technique::StepInBackward, PARAMETERS),
        (Technique::Fsdp, PARAMETERS),
        (Technique::Compile, super::compile::INSIDE),
    ],
    replaces: &[],
    programs: Programs::Uncompiled,
    alone: Alone::Offered,
    joins: Joins::Own,
    levels: Levels::Default,
    is_for_speed: false,
    time: Time::Same,
    operators: Operators::Other,
    shown: Shown::Detail,
    note: Some(OFFER),
};
