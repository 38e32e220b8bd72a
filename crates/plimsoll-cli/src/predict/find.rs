//! `--find`: searches for the largest value of a [`Placeholder`] in the command that fits.

use serde_json::{Value, json};

use super::analysis::verdict::Verdict;
use super::answer::Outcome;
use super::args::PredictArgs;
use super::gpu::Target;
use super::launch::ended::Ended;
use super::launch::session::Session;
use super::placeholder::Placeholder;
use super::render::{json, sentences};
use super::run::Run;
use super::search;
use crate::exit::{Answer, Exit, Failure};
use crate::output::{self, BOLD, RESET};
use crate::protocol::Peaks;

/// A value that was tried, and the result.
struct Tried {
    value: u64,
    verdict: Verdict,
    peaks: Option<Peaks>,
    /// Whether the machine has enough host memory.
    has_host: bool,
    /// The verdict as text.
    said: String,
}

impl Tried {
    fn fits(&self) -> bool {
        matches!(self.verdict, Verdict::Fits { .. }) && self.has_host
    }
}

/// Runs the command with different values until the largest value that fits is found. Returns the text for stdout.
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
        let outcome = Outcome::of(&run.job, target)?;
        let said = format!("{name}={value}: {}", sentences::verdict(&outcome, target, size));
        output::progress(&said);
        let has_host = !outcome.lacks_host();
        let Outcome { verdict, judged, .. } = outcome;
        if run.job.ended == Ended::Interrupted {
            return Err(Failure::new(Exit::OutOfMemory, format!("interrupted at {said}")));
        }
        if let Verdict::Failed { .. } | Verdict::Refused(_) | Verdict::Unknown(_) = verdict {
            return Err(Failure::new(verdict.exit(), format!("at {said}")));
        }
        let peaks = judged.map(|judged| judged.peaks);
        let now = Tried { value, verdict, peaks, has_host, said };
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
