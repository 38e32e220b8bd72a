//! Trains only the end of the model. Like `lora`, it changes what is trained, so a plan offers it but never chooses it.

use super::row::{Alone, Joins, Levels, Operators, Programs, Row, Shown, Time, Value};
use super::technique::{Numbers, Technique};

/// Why two techniques that change what is trained exclude each other.
pub(super) const TRAINED: &str = "both decide what is trained";
/// Why techniques that act on every parameter exclude them.
pub(super) const PARAMETERS: &str = "it acts on all parameters before the first step";
/// What a plan says of them.
pub(super) const OFFER: &str =
    "another training, not this one with less memory: an offer, which is never chosen";

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
