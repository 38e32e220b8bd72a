//! A placeholder in the command, and the values that `--find` tries in its place: [`Placeholder`].

use std::ffi::OsString;

/// `BATCH=1..512`: the name in the command, and its range, including both ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Placeholder {
    pub(super) name: String,
    pub(super) from: u64,
    pub(super) to: u64,
}

impl Placeholder {
    /// Parses `BATCH=1..512`.
    pub(super) fn parse(text: &str) -> Result<Placeholder, String> {
        let form = || "expected NAME=FROM..TO, such as BATCH=1..512".to_owned();
        let (name, range) = text.split_once('=').ok_or_else(form)?;
        let (from, to) = range.split_once("..").ok_or_else(form)?;
        let number = |text: &str| text.trim().parse::<u64>().map_err(|_| form());
        let placeholder = Placeholder { name: name.trim().to_owned(), from: number(from)?, to: number(to)? };
        let is_name =
            !placeholder.name.is_empty() && placeholder.name.chars().all(|c| c.is_alphanumeric() || c == '_');
        match is_name {
            true if placeholder.from <= placeholder.to => Ok(placeholder),
            true => Err("the range is empty".to_owned()),
            false => Err(form()),
        }
    }

    /// The command with a value in place of `{NAME}`; `None` if it does not contain `{NAME}`.
    pub(super) fn command(&self, command: &[OsString], value: u64) -> Option<Vec<OsString>> {
        let mark = format!("{{{}}}", self.name);
        let replaced = |word: &OsString| match word.to_str() {
            Some(text) => text.replace(&mark, &value.to_string()).into(),
            None => word.clone(),
        };
        let new: Vec<OsString> = command.iter().map(replaced).collect();
        (new != command).then_some(new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_placeholder_is_a_name_and_a_range_with_both_ends() {
        let read = Placeholder::parse("BATCH=1..512").unwrap();
        assert_eq!(read, Placeholder { name: "BATCH".to_owned(), from: 1, to: 512 });
        for text in ["", "BATCH", "BATCH=1", "BATCH=1..", "=1..2", "B A=1..2", "BATCH=5..4", "BATCH=-1..2"] {
            assert!(Placeholder::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn every_mark_in_the_command_is_replaced() {
        let placeholder = Placeholder::parse("N=1..9").unwrap();
        let command = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        let new = placeholder.command(&command(&["train", "--n={N}", "{N}x{N}"]), 7);
        assert_eq!(new, Some(command(&["train", "--n=7", "7x7"])));
        assert_eq!(placeholder.command(&command(&["train", "{M}"]), 7), None);
    }
}
