//! The next command: [`command`].

use plimsoll_trace::explain::Cause;

use crate::page::quoted;
use crate::predict::analysis::growth::{Each, Growth};
use crate::predict::analysis::shortage::Shortage;
use crate::predict::analysis::verdict::Verdict;
use crate::predict::answer::Outcome;
use crate::predict::args::PredictArgs;
use crate::predict::gpu::Target;

/// The next command, if the verdict calls for one.
pub(super) fn command(outcome: &Outcome, target: &Target, args: &PredictArgs) -> Option<String> {
    let words: Vec<String> = args.command.iter().map(|word| quoted(word.as_ref())).collect();
    let devices = if args.devices > 1 { format!(" --devices {}", args.devices) } else { String::new() };
    let (options, command) = (format!("{}{devices}", target.options), words.join(" "));
    let is_unplanned = args.rank.is_some() || args.find.is_some();
    match &outcome.verdict {
        // No technique changes a limit that the program itself set, and `plan` runs complete jobs.
        Verdict::RunsOut(Shortage { cause: Cause::Limit { .. }, .. }) => None,
        Verdict::RunsOut(_) | Verdict::Grows(Growth { each: Each::Batch, total: Some(_), .. })
            if !is_unplanned =>
        {
            Some(format!("plimsoll plan {options} -- {command}"))
        }
        Verdict::Grows(Growth { each: Each::Step, .. }) if !is_unplanned => Some(format!(
            "plimsoll predict {options} --steps 8 --snapshot grows.pickle -- {command} && plimsoll leaks grows.pickle"
        )),
        Verdict::Grows(_) => Some(format!("plimsoll predict {options} --whole -- {command}")),
        _ => None,
    }
}
