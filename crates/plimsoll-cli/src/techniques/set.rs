//! The techniques of a `--with`: [`Set`], in the order of the table, so that equal sets are written equally.

use std::fmt;

use serde_json::{Map, json};

use super::{Numbers, TECHNIQUES, Value, named};

/// Techniques with their values.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Set {
    /// Names and values, in the order of the table.
    entries: Vec<(&'static str, Option<u64>)>,
}

/// Why some techniques exclude `compile`.
const COMPILED: &str = "inside of a compiled model no calls can be changed";

impl Set {
    /// Reads `checkpoint=4,chunked-loss`.
    ///
    /// # Errors
    /// An unknown name, a name that occurs twice, a value that is missing or of the wrong kind.
    pub(crate) fn parse(text: &str) -> Result<Set, String> {
        let mut set = Set::default();
        for word in text.split([',', '+']).map(str::trim).filter(|word| !word.is_empty()) {
            let (name, value) =
                word.split_once('=').map_or((word, None), |(name, value)| (name, Some(value)));
            let technique = named(name).ok_or_else(|| {
                let names: Vec<&str> = TECHNIQUES.iter().map(|it| it.name).collect();
                format!("`{name}` is not a technique; known are {}", names.join(", "))
            })?;
            if set.has(name) {
                return Err(format!("{name} occurs twice"));
            }
            set = set.with(technique.name, parsed(name, technique.value, value)?);
        }
        match set.conflict() {
            _ if set.entries.is_empty() => {
                Err("name a technique, such as checkpoint (see `plimsoll run --help`)".to_owned())
            }
            Some(why) => Err(why),
            None => Ok(set),
        }
    }

    /// The same set with one more technique, or with another value of it.
    pub(crate) fn with(&self, name: &'static str, value: Option<u64>) -> Set {
        let mut entries: Vec<_> = self.entries.iter().copied().filter(|(own, _)| *own != name).collect();
        entries.push((name, value));
        entries.sort_by_key(|(name, _)| TECHNIQUES.iter().position(|it| it.name == *name));
        Set { entries }
    }

    /// The same set without a technique.
    pub(crate) fn without(&self, name: &str) -> Set {
        Set { entries: self.entries.iter().copied().filter(|(own, _)| *own != name).collect() }
    }

    /// The same set with these techniques alone.
    pub(crate) fn only(&self, names: &[&str]) -> Set {
        Set { entries: self.entries.iter().copied().filter(|(own, _)| names.contains(own)).collect() }
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.entries.iter().any(|(own, _)| *own == name)
    }

    /// The value of a technique, if it has one.
    pub(crate) fn value(&self, name: &str) -> Option<u64> {
        self.entries.iter().find(|(own, _)| *own == name).and_then(|(_, value)| *value)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.entries.iter().map(|(name, _)| *name)
    }

    /// What the set does to the numbers.
    pub(crate) fn numbers(&self) -> Numbers {
        let all = self.names().filter_map(named).map(|technique| technique.numbers);
        all.max().unwrap_or(Numbers::Identical)
    }

    /// How much of a program an engineer changes to do the same by hand.
    pub(crate) fn effort(&self) -> u32 {
        self.names().filter_map(named).map(|technique| technique.effort).sum()
    }

    /// Why two of its techniques exclude each other.
    pub(crate) fn conflict(&self) -> Option<String> {
        let pairs = [
            ("checkpoint", "checkpoint-nested", "the nested blocks are inside of the others"),
            ("no-foreach", "fused", "a fused optimizer makes no copies"),
            ("accumulate", "split", "both divide the batch"),
            ("compile", "memory-budget", "the second is for programs that compile their model"),
            ("compile", "no-compile", "the second is for programs that compile their model"),
            ("memory-budget", "no-compile", "the first is for what is compiled"),
            ("checkpoint", "compile", COMPILED),
            ("checkpoint-nested", "compile", COMPILED),
            ("offload", "compile", COMPILED),
            ("chunked-loss", "compile", COMPILED),
            ("accumulate", "compile", COMPILED),
            ("split", "compile", COMPILED),
            ("compile", "fsdp", COMPILED),
            ("accumulate", "step-in-backward", "accumulate adds all gradients at the end"),
            ("accumulate", "fsdp", "both divide the batch"),
            ("split", "fsdp", "both divide the batch"),
            (
                "step-in-backward",
                "fsdp",
                "gradients are reduced over the ranks after the backward pass of a block",
            ),
            ("offload", "fsdp", "it would move sharded parameters"),
            ("chunked-loss", "fsdp", "a rank has only a part of the weight"),
            ("adam-8bit", "fsdp", "the 8-bit update knows no sharded parameters"),
        ];
        let both = pairs.into_iter().find(|(one, other, _)| self.has(one) && self.has(other));
        both.map(|(one, other, why)| format!("{one} and {other} exclude each other: {why}"))
    }

    /// As the Python package reads it.
    pub(crate) fn json(&self) -> String {
        serde_json::Value::Object(self.map()).to_string()
    }

    /// The same, and the operators of a step are counted.
    pub(crate) fn counted(&self) -> String {
        let mut map = self.map();
        map.insert("count".to_owned(), json!(null));
        serde_json::Value::Object(map).to_string()
    }

    fn map(&self) -> Map<String, serde_json::Value> {
        self.entries.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect()
    }
}

/// The value of a technique.
fn parsed(name: &str, kind: Value, value: Option<&str>) -> Result<Option<u64>, String> {
    let number = |text: &str, least: u64| {
        let number = text.parse::<u64>().ok().filter(|number| *number >= least);
        number.map(Some).ok_or_else(|| format!("{name}={text}: expected a whole number, at least {least}"))
    };
    match (kind, value) {
        (Value::Nothing, Some(_)) => Err(format!("{name} takes no value")),
        (Value::Parts, None) => Err(format!("{name} needs a number of parts, such as {name}=4")),
        (_, None) => Ok(None),
        (Value::Count, Some(text)) => number(text, 1),
        (Value::Percent, Some(text)) => match number(text, 1)? {
            Some(percent) if percent > 100 => {
                Err(format!("{name}={text}: expected a percentage from 1 to 100"))
            }
            percent => Ok(percent),
        },
        (Value::Parts, Some(text)) => number(text, 2),
    }
}

/// As `--with` reads it.
impl fmt::Display for Set {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = |(name, value): &(&str, Option<u64>)| match value {
            Some(value) => format!("{name}={value}"),
            None => (*name).to_owned(),
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
            ("compile,checkpoint", "inside of a compiled model"),
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

    #[test]
    fn python_reads_names_and_values() {
        assert_eq!(
            Set::parse("checkpoint=4,expandable").unwrap().json(),
            r#"{"checkpoint":4,"expandable":null}"#
        );
    }
}
