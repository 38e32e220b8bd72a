//! A program that is Plimsoll itself: `plimsoll plan -- plimsoll train gpt …` is `plimsoll train gpt … --plan`.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use super::PlanArgs;
use super::goal::Goal;
use crate::exit::{Answer, Exit, Failure};
use crate::predict::gpu::Target;
use crate::train;

/// Whether the command is one of `plimsoll train`.
pub(super) fn is_own(command: &[OsString]) -> bool {
    let [program, verb, ..] = command else { return false };
    Path::new(program).file_name() == Some(OsStr::new("plimsoll")) && verb == "train"
}

/// The plan of such a command.
///
/// # Errors
/// Options that only a search with PyTorch's programs has; the errors of `plimsoll train`.
pub(super) fn run(args: &PlanArgs, target: &Target) -> Result<Answer, Failure> {
    if let Some(refused) = refused(args) {
        return Err(refused);
    }
    let gpu = target.listed;
    let mut words = args.command[2..].to_vec();
    let has_limit = words.iter().any(|word| word == "--memory-limit");
    words.extend(["--plan", &format!("{}x{}", args.devices, gpu.name)].map(OsString::from));
    let bytes = target.limit_bytes();
    if bytes < gpu.memory_bytes && !has_limit {
        words.extend(["--memory-limit", &bytes.to_string()].map(OsString::from));
    }
    let has_numbers = words.iter().any(|word| word.to_string_lossy().starts_with("--numbers"));
    if !has_numbers {
        let numbers = args.numbers.numbers().name();
        words.extend(["--numbers", numbers].map(OsString::from));
    }
    if args.goal == Some(Goal::Batch) {
        words.extend(["--goal", "batch"].map(OsString::from));
    }
    words.extend(args.json.then(|| OsString::from("--json")));
    train::planned(words)
}

/// The failure for options that only a search with PyTorch's programs has.
fn refused(args: &PlanArgs) -> Option<Failure> {
    let given = [
        ("--goal memory", args.goal == Some(Goal::Memory)),
        ("--goal speed", args.goal == Some(Goal::Speed)),
        ("--batch", args.batch.is_some()),
        ("--context", args.context.is_some()),
        ("--host-memory", args.host_memory.is_some()),
        ("--assume", !args.assume.is_empty()),
        ("--alloc-conf", args.alloc_conf.is_some()),
    ];
    let (option, _) = given.into_iter().find(|(_, is_given)| *is_given)?;
    let message =
        format!("{option} is for PyTorch programs; the plan of `plimsoll train` has its own options");
    Some(Failure::new(Exit::Usage, message))
}
