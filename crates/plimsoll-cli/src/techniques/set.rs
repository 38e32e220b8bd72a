//! The techniques of a `--with` option: [`Set`]. They are kept in the order of the table, so that equal
//! sets are printed in the same way.

use std::fmt;

use super::row::{Alone, Value};
use super::technique::{Numbers, Technique};

/// Techniques with their values.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Set {
    /// The techniques with their values, in the order of the table.
    entries: Vec<(Technique, Option<u64>)>,
}

impl Set {
    /// Reads `checkpoint=4,chunked-loss`.
    ///
    /// # Errors
    /// If a name is unknown or occurs twice, or a value is missing or of the wrong kind.
    pub(crate) fn parse(text: &str) -> Result<Set, String> {
        let mut set = Set::default();
        for word in text.split([',', '+']).map(str::trim).filter(|word| !word.is_empty()) {
            let (name, value) =
                word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
            let technique = Technique::named(name).ok_or_else(|| {
                let names: Vec<&str> = Technique::all().map(Technique::name).collect();
                format!("`{name}` is not a technique; known are {}", names.join(", "))
            })?;
            if set.has(technique) {
                return Err(format!("{name} occurs twice"));
            }
            set = set.with(technique, parsed(technique, value)?);
        }
        match set.conflict() {
            _ if set.entries.is_empty() => {
                Err("name a technique, such as checkpoint (see `plimsoll run --help`)".to_owned())
            }
            Some(why) => Err(why),
            None => Ok(set),
        }
    }

    /// The same set with one more technique, or with a different value of that technique.
    pub(crate) fn with(&self, technique: Technique, value: Option<u64>) -> Set {
        let mut set = self.without(technique);
        set.entries.push((technique, value));
        set.entries.sort_by_key(|(technique, _)| *technique);
        set
    }

    /// The same set without a technique.
    pub(crate) fn without(&self, technique: Technique) -> Set {
        self.only(|it| it != technique)
    }

    /// The same set with only some of its techniques.
    pub(crate) fn only(&self, keeps: impl Fn(Technique) -> bool) -> Set {
        Set { entries: self.entries.iter().copied().filter(|&(it, _)| keeps(it)).collect() }
    }

    pub(crate) fn has(&self, technique: Technique) -> bool {
        self.techniques().any(|it| it == technique)
    }

    /// The value of a technique, if it has one.
    pub(crate) fn value(&self, technique: Technique) -> Option<u64> {
        self.entries.iter().find(|(it, _)| *it == technique).and_then(|(_, value)| *value)
    }

    /// Whether the set needs several GPUs, with a process for each.
    pub(crate) fn needs_ranks(&self) -> bool {
        self.techniques().any(|it| it.row().alone == Alone::SeveralGpus)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(crate) fn techniques(&self) -> impl Iterator<Item = Technique> {
        self.entries.iter().map(|(technique, _)| *technique)
    }

    /// The techniques with their values.
    pub(crate) fn entries(&self) -> &[(Technique, Option<u64>)] {
        &self.entries
    }

    /// How much the set changes the numbers.
    pub(crate) fn numbers(&self) -> Numbers {
        self.techniques().map(|it| it.row().numbers).max().unwrap_or(Numbers::Identical)
    }

    /// How much of the program an engineer would have to change to do the same by hand.
    pub(crate) fn effort(&self) -> u32 {
        self.techniques().map(|it| it.row().effort).sum()
    }

    /// Why two techniques of the set cannot be combined; `None` if all can.
    pub(crate) fn conflict(&self) -> Option<String> {
        let mut pairs = self.techniques().flat_map(|one| self.techniques().map(move |other| (one, other)));
        pairs.find_map(|(one, other)| {
            let why = one.excluded_by(other)?;
            Some(format!("{} and {} exclude each other: {why}", one.name(), other.name()))
        })
    }
}

/// The value of a technique.
fn parsed(technique: Technique, value: Option<&str>) -> Result<Option<u64>, String> {
    let name = technique.name();
    let number = |text: &str, least: u64| {
        let number = text.parse::<u64>().ok().filter(|number| *number >= least);
        number.map(Some).ok_or_else(|| format!("{name}={text}: expected a whole number, at least {least}"))
    };
    match (technique.row().value, value) {
        (Value::Nothing, Some(_)) => Err(format!("{name} takes no value")),
        (Value::Parts, None) => Err(format!("{name} needs a number of parts, such as {name}=4")),
        (_, None) => Ok(None),
        (Value::Count, Some(text)) => number(text, 1),
        (Value::Percent { .. }, Some(text)) => match number(text, 1)? {
            Some(percent) if percent > 100 => {
                Err(format!("{name}={text}: expected a percentage from 1 to 100"))
            }
            percent => Ok(percent),
        },
        (Value::Parts, Some(text)) => number(text, 2),
    }
}

/// The set in the form that `--with` reads.
impl fmt::Display for Set {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = |(technique, value): &(Technique, Option<u64>)| match value {
            Some(value) => format!("{}={value}", technique.name()),
            None => technique.name().to_owned(),
        };
        out.write_str(&self.entries.iter().map(word).collect::<Vec<_>>().join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_is_read_in_any_order_and_written_in_the_tables() {
        for (text, written) in [
            ("checkpoint", "checkpoint"),
            ("chunked-loss, checkpoint=4", "checkpoint=4,chunked-loss"),
            ("split=4+expandable", "expandable,split=4"),
            ("offload=60+checkpoint", "checkpoint,offload=60"),
        ] {
            let set = Set::parse(text).unwrap();
            assert_eq!(set.to_string(), written);
            assert_eq!(Set::parse(written), Ok(set));
        }
    }

    #[test]
    fn what_is_no_set_is_an_error_that_says_why() {
        for (text, said) in [
            ("", "name a technique"),
            ("magic", "not a technique"),
            ("checkpoint,checkpoint=2", "twice"),
            ("checkpoint=0", "at least 1"),
            ("checkpoint=many", "whole number"),
            ("split", "number of parts"),
            ("split=1", "at least 2"),
            ("fused=3", "no value"),
            ("offload=big", "offload=big"),
            ("fused,no-foreach", "exclude each other"),
            ("accumulate=2,split=2", "exclude each other"),
            ("fsdp,offload", "exclude each other"),
            ("checkpoint,checkpoint-nested=2", "exclude each other"),
            ("memory-budget=101", "from 1 to 100"),
            ("compile,checkpoint", "inside a compiled model"),
            ("memory-budget,no-compile", "exclude each other"),
        ] {
            let why = Set::parse(text).unwrap_err();
            assert!(why.contains(said), "{text}: {why}");
        }
    }

    #[test]
    fn a_set_changes_the_numbers_as_much_as_the_technique_that_does_most() {
        for (text, numbers) in [
            ("checkpoint,offload", Numbers::Identical),
            ("checkpoint,chunked-loss", Numbers::Rounding),
            ("checkpoint,bf16", Numbers::Changed),
        ] {
            assert_eq!(Set::parse(text).unwrap().numbers(), numbers, "{text}");
        }
    }
}
