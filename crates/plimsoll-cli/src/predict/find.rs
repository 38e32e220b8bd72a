//! `--find`: searches for the largest value of a [`Placeholder`] in the command that fits.

use std::ffi::OsString;

use serde_json::{Value, json};

use super::answer::{Outcome, Verdict};
use super::gpu::Target;
use super::report::Peaks;
use super::run::{Ended, Run, Session};
use super::{PredictArgs, json, search, sentences};
use crate::exit::{Answer, Exit, Failure};
use crate::output::{self, BOLD, RESET};

/// `BATCH=1..512`: the name in the command, and its range, both ends included.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Placeholder {
    name: String,
    from: u64,
    to: u64,
}

impl Placeholder {
    /// Reads one.
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

    /// The command with a value in place of `{NAME}`; `None` if it does not contain that.
    fn command(&self, command: &[OsString], value: u64) -> Option<Vec<OsString>> {
        let mark = format!("{{{}}}", self.name);
        let replaced = |word: &OsString| match word.to_str() {
            Some(text) => text.replace(&mark, &value.to_string()).into(),
            None => word.clone(),
        };
        let new: Vec<OsString> = command.iter().map(replaced).collect();
        (new != command).then_some(new)
    }
}

/// A value that was tried.
struct Tried {
    value: u64,
    verdict: Verdict,
    peaks: Option<Peaks>,
    /// The verdict as text.
    said: String,
}

impl Tried {
    fn fits(&self) -> bool {
        matches!(self.verdict, Verdict::Fits { .. })
    }
}

/// Runs the command with one value after the other; returns the text for stdout.
pub(super) fn run(
    args: &PredictArgs,
    placeholder: &Placeholder,
    target: &Target,
    session: &Session,
) -> Result<Answer, Failure> {
    let Placeholder { name, from, to } = placeholder;
    let mut tried: Vec<Tried> = Vec::new();
    let size = |bytes| args.shown.size(bytes);
    let largest = search::largest(*from, *to, target.capacity_bytes(), |value| {
        let command = placeholder.command(&args.command, value).ok_or_else(|| {
            Failure::new(Exit::Usage, format!("--find {name}: the command does not contain {{{name}}}"))
        })?;
        let run = Run::of(args, &command, target, session, &args.assume)?;
        let outcome = Outcome::of(run.ended, &run.reports, target)?;
        let said = format!("{name}={value}: {}", sentences::verdict(&outcome, target, size));
        output::progress(&said);
        let Outcome { verdict, judged, .. } = outcome;
        if run.ended == Ended::Interrupted {
            return Err(Failure::new(Exit::OutOfMemory, format!("interrupted at {said}")));
        }
        if let Verdict::Failed { .. } | Verdict::Refused(_) | Verdict::Unknown(_) = verdict {
            return Err(Failure::new(verdict.exit(), format!("at {said}")));
        }
        let peaks = judged.map(|judged| judged.peaks);
        let now = Tried { value, verdict, peaks, said };
        let peak_bytes = now.peaks.filter(|_| now.fits()).map(|peaks| peaks.reserved_bytes);
        tried.push(now);
        Ok(peak_bytes)
    })?;
    tried.sort_by_key(|tried| tried.value);
    let found = tried.iter().rfind(|tried| tried.fits());
    let first_not = tried.iter().find(|tried| !tried.fits());
    let exit = largest.map_or(Exit::OutOfMemory, |_| Exit::Done);
    let text = if args.json {
        let value = as_json(placeholder, largest, &tried, exit);
        format!("{value:#}")
    } else {
        let verdict = match largest {
            Some(value) if value == *to => {
                format!(
                    "{name}={value}, the upper end of {from}..{to}, fits {}: no larger value was tried",
                    target.name
                )
            }
            Some(value) => format!("{name}={value} is the largest of {from}..{to} that fits {}", target.name),
            None => format!("no {name} of {from}..{to} fits {}", target.name),
        };
        let rows: Vec<&str> = found.into_iter().chain(first_not).map(|tried| tried.said.as_str()).collect();
        format!("{BOLD}{verdict}{RESET}\n{}\n({} runs)", rows.join("\n"), tried.len())
    };
    Ok(Answer { text, exit })
}

fn as_json(placeholder: &Placeholder, largest: Option<u64>, tried: &[Tried], exit: Exit) -> Value {
    let tried = tried.iter().map(|tried| {
        let peaks = tried.peaks;
        json!({
            "value": tried.value,
            "verdict": json::verdict(&tried.verdict),
            "peak_allocated_bytes": peaks.map(|peaks| peaks.allocated_bytes),
            "peak_reserved_bytes": peaks.map(|peaks| peaks.reserved_bytes),
        })
    });
    json!({
        "schema": "plimsoll.predict.find/1",
        "name": placeholder.name,
        "from": placeholder.from,
        "to": placeholder.to,
        "largest": largest,
        "upper_end_fits": largest == Some(placeholder.to),
        "exit": exit as u8,
        "tried": tried.collect::<Vec<_>>(),
    })
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
