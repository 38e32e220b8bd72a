//! `--assume FILE:LINE=VALUE`: the value that the program gets instead of zero when this line reads from the GPU.

use serde::Serialize;
use serde_json::Value;

use crate::protocol::Warning;

/// A line that reads from the GPU, and the value that the program gets there.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Assumption(String, u64, Value);

impl Assumption {
    /// Parses `train.py:12=300`, `train.py:12=max`, `models/moe.py:7=true`.
    ///
    /// # Errors
    /// The error is a message that says what is missing.
    pub(crate) fn parse(text: &str) -> Result<Assumption, String> {
        let usage = || {
            format!(
                "`{text}` is not FILE:LINE=VALUE, such as train.py:12=300, train.py:12=max or train.py:12=half"
            )
        };
        let (place, value) = text.rsplit_once('=').ok_or_else(usage)?;
        let (file, line) = place.rsplit_once(':').ok_or_else(usage)?;
        let line: u64 = line.trim().parse().map_err(|_| usage())?;
        let value = match value.trim() {
            "max" | "half" => Value::from(value.trim()),
            "true" | "True" => Value::from(true),
            "false" | "False" => Value::from(false),
            number => match (number.parse::<i64>(), number.parse::<f64>()) {
                (Ok(number), _) => number.into(),
                (_, Ok(number)) if number.is_finite() => number.into(),
                _ => return Err(usage()),
            },
        };
        if file.trim().is_empty() || line == 0 {
            return Err(usage());
        }
        Ok(Assumption(file.trim().to_owned(), line, value))
    }
}

impl Assumption {
    /// Assumes the largest value at every line where the value decides a size (`EVERYWHERE` in `reads.py`). This
    /// includes lines that the program reaches only with such values.
    pub(crate) fn largest() -> Assumption {
        Assumption(String::new(), 0, Value::from("max"))
    }

    /// Assumes the value 1 at every line where the value decides a size: `nms` keeps at least one box.
    pub(crate) fn least() -> Assumption {
        Assumption(String::new(), 0, Value::from(1))
    }

    /// Assumes, at the line of a warning, the value with which memory is largest; `None` if the line is unknown.
    pub(crate) fn most(warning: &Warning) -> Option<Assumption> {
        let (file, line) = warning.place.as_ref()?;
        Some(Assumption(file.clone(), *line, Value::from(warning.most)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_assumption_is_a_line_and_a_value() {
        for (text, line, value) in [
            ("train.py:12=300", 12, Value::from(300)),
            ("train.py:1=0.5", 1, Value::from(0.5)),
            ("train.py:3=max", 3, Value::from("max")),
            ("train.py:3=True", 3, Value::from(true)),
        ] {
            assert_eq!(Assumption::parse(text), Ok(Assumption("train.py".to_owned(), line, value)), "{text}");
        }
        for text in [
            "",
            "train.py",
            "train.py:12",
            "train.py=3",
            "train.py:x=3",
            ":3=1",
            "train.py:0=1",
            "a:1=most",
            "a:1=inf",
        ] {
            assert!(Assumption::parse(text).is_err(), "{text}");
        }
    }
}
