//! `--category NAME=REGEX`: user-defined categories, as patterns on frames. The verbs that read snapshots share
//! them.

use std::cell::Cell;

use clap::Args;
use plimsoll_trace::explain::{CustomCategory, Origins};
use plimsoll_trace::snapshot::Snapshot;
use regex_lite::Regex;

use crate::output;

/// User-defined categories.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Categories {
    /// Show blocks as NAME if a frame of their stack, written `FILE:LINE FUNCTION`, matches REGEX. Repeatable: the
    /// first match counts
    #[arg(long = "category", value_name = "NAME=REGEX", value_parser = parse)]
    given: Vec<Pattern>,
}

/// One user-defined category.
#[derive(Debug, Clone)]
struct Pattern {
    name: String,
    regex: Regex,
}

fn parse(text: &str) -> Result<Pattern, String> {
    let (name, regex) =
        text.split_once('=').ok_or("write NAME=REGEX, such as 'experts=moe/experts\\.py'".to_owned())?;
    let name = name.trim();
    if name.is_empty() || regex.is_empty() {
        return Err("both the name and the pattern need at least one character".to_owned());
    }
    let regex = Regex::new(regex).map_err(|why| format!("`{regex}` is not a regular expression: {why}"))?;
    Ok(Pattern { name: name.to_owned(), regex })
}

impl Categories {
    /// The origins of a snapshot's stacks, with these categories. Reports on stderr which categories match
    /// nothing.
    pub(crate) fn origins(&self, snapshot: &mut Snapshot) -> Origins {
        let matched: Vec<Cell<bool>> = self.given.iter().map(|_| Cell::new(false)).collect();
        let matches: Vec<_> = self
            .given
            .iter()
            .zip(&matched)
            .map(|(pattern, matched)| {
                move |frame: &str| {
                    let is_match = pattern.regex.is_match(frame);
                    matched.set(matched.get() || is_match);
                    is_match
                }
            })
            .collect();
        let mut categories = Vec::new();
        for (pattern, matches) in self.given.iter().zip(&matches) {
            // Ids run out only if a file has four billion texts.
            if let Some(name) = snapshot.texts.intern(&pattern.name) {
                categories.push(CustomCategory { name, matches });
            }
        }
        let origins = Origins::of(snapshot).with_categories(snapshot, &categories);
        for (pattern, _) in self.given.iter().zip(&matched).filter(|(_, matched)| !matched.get()) {
            let (name, regex) = (&pattern.name, pattern.regex.as_str());
            output::progress(&format!(
                "--category {name}: no frame matches `{regex}`, or an earlier --category matched it first"
            ));
        }
        origins
    }

    /// Whether no categories are defined.
    pub(crate) fn is_empty(&self) -> bool {
        self.given.is_empty()
    }

    /// The options as shell words, for a command that repeats the request.
    pub(crate) fn words(&self) -> impl Iterator<Item = String> {
        let quoted = |text: String| format!("--category '{}'", text.replace('\'', "'\\''"));
        self.given.iter().map(move |pattern| quoted(format!("{}={}", pattern.name, pattern.regex.as_str())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_has_a_name_and_everything_behind_the_first_equals_sign() {
        let pattern = parse("kv cache=cache\\.py:(12|13) update=?").expect("a pattern");
        assert_eq!(
            (pattern.name.as_str(), pattern.regex.as_str()),
            ("kv cache", "cache\\.py:(12|13) update=?")
        );
    }

    #[test]
    fn what_is_no_pattern_is_refused_with_what_is_wrong() {
        for (text, why) in
            [("experts", "NAME=REGEX"), ("=x", "name"), ("x=", "pattern"), ("x=(", "regular expression")]
        {
            let refused = parse(text).expect_err(text);
            assert!(refused.contains(why), "{text}: {refused}");
        }
    }
}
