//! The next command: [`command`].

use std::path::Path;

use plimsoll_trace::explain::Cause;

use crate::page::quoted;
use crate::predict::analysis::growth::{Each, Growth};
use crate::predict::analysis::shortage::Shortage;
use crate::predict::analysis::verdict::Verdict;
use crate::predict::answer::Outcome;
use crate::predict::args::PredictArgs;
use crate::predict::gpu::Target;

/// The command that is suggested next, if the verdict calls for a command.
pub(super) fn command(outcome: &Outcome, target: &Target, args: &PredictArgs) -> Option<String> {
    let words: Vec<String> = args.command.iter().map(|word| quoted(word.as_ref())).collect();
    let devices = if args.devices > 1 { format!(" --devices {}", args.devices) } else { String::new() };
    let (options, command) = (format!("{}{devices}", target.options), words.join(" "));
    let is_unplanned = args.rank.is_some() || args.find.is_some();
    match &outcome.verdict {
        // No technique changes a limit that the program itself set, and `plan` cannot run a single rank of a job.
        Verdict::RunsOut(Shortage { cause: Cause::Limit { .. }, .. }) => None,
        Verdict::RunsOut(_)
        | Verdict::Grows(Growth { each: Each::Batch | Each::Epoch | Each::Round, total: Some(_), .. })
            if !is_unplanned =>
        {
            Some(format!("plimsoll plan {options} -- {command}"))
        }
        Verdict::Grows(Growth { each: Each::Step, is_peak: false, .. }) if !is_unplanned => {
            Some(leaks(&options, &command, |name| Path::new(name).exists()))
        }
        Verdict::Grows(_) => Some(format!("plimsoll predict {options} --whole -- {command}")),
        _ => None,
    }
}

/// The commands that record more steps, and show what grows in them. They are joined with `;`, because `predict`
/// exits with 4 here, and `&&` would stop there. They do not replace any file.
fn leaks(options: &str, command: &str, exists: impl Fn(&str) -> bool) -> String {
    let names = (2..100).map(|nth| format!("grows-{nth}.pickle"));
    let mut names = std::iter::once("grows.pickle".to_owned()).chain(names);
    let file = names.find(|name| !exists(name)).unwrap_or_else(|| "FILE".to_owned());
    format!("plimsoll predict {options} --steps 8 --snapshot {file} -- {command}; plimsoll leaks {file}")
}

#[cfg(test)]
mod tests {
    use super::leaks;

    #[test]
    fn leaks_is_run_after_an_exit_code_of_4_and_no_file_is_replaced() {
        let command = leaks("--gpu H100", "python train.py", |name| name == "grows.pickle");
        let (predict, leaks) = command.split_once("; ").expect("two commands, whatever the first exits with");
        assert!(
            predict.starts_with("plimsoll predict --gpu H100 ") && predict.ends_with(" -- python train.py"),
            "{predict}"
        );
        let options = predict.split(" -- ").next().unwrap_or_default();
        assert!(options.contains(" --snapshot grows-2.pickle") && !options.contains("--force"), "{options}");
        assert_eq!(leaks, "plimsoll leaks grows-2.pickle");
    }
}
