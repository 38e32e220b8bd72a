//! The verbs as the program lists them, so that tests about all verbs include new ones.

use super::{kept, text};

/// The names that `plimsoll --help` lists.
pub(crate) fn all() -> Vec<String> {
    let help = text(&["--help"]);
    let rows =
        help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let names = rows.filter_map(|row| row.split_whitespace().next());
    names.filter(|name| *name != "help").map(str::to_owned).collect()
}

/// A verb that reads a snapshot, with the words of the example in its help.
pub(crate) struct Reads {
    words: Vec<String>,
    /// Whether it has the option `--json`.
    pub(crate) has_json: bool,
}

impl Reads {
    pub(crate) fn verb(&self) -> &str {
        &self.words[0]
    }

    /// Its example, with this file as the last input and good files before it.
    pub(crate) fn words(&self, file: &str) -> Vec<String> {
        let last = self.words.len() - 1;
        let word = |(nth, word): (usize, &String)| match word {
            _ if nth == last => file.to_owned(),
            word if word.ends_with(".pickle") => kept("tiny.pickle.gz"),
            word => word.clone(),
        };
        self.words.iter().enumerate().map(word).collect()
    }
}

/// The verbs whose help has an example with a snapshot. Every verb that reads a file has one.
pub(crate) fn reading_snapshots() -> Vec<Reads> {
    let reads = |verb: String| {
        let help = text(&[&verb, "--help"]);
        let example = help.lines().find_map(|line| line.strip_prefix("Example: plimsoll "));
        let usage = help.lines().find(|line| line.starts_with("Usage:")).unwrap_or_default();
        assert!(example.is_some() || !usage.contains(" <FILE>"), "{verb}: its help needs an example");
        let words = example?.split(' ').map(str::to_owned).collect();
        Some(Reads { words, has_json: help.contains("--json") })
    };
    let verbs: Vec<Reads> = all().into_iter().filter_map(reads).collect();
    assert!(verbs.len() >= 7, "of {:?}", all());
    verbs
}
