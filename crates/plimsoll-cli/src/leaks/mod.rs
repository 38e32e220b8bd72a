//! `plimsoll leaks`: finds out whether memory grows from step to step, at which lines, and which kind of code
//! typically causes it.

mod json;
mod staircase;
mod text;

use std::path::PathBuf;

use clap::Args;
use plimsoll_trace::explain::Options;
use plimsoll_trace::explain::leaks::Verdict;

use crate::categories::Categories;
use crate::exit::{Answer, Exit, Failure};
use crate::explained::Explained;
use crate::limit::Limit;
use crate::shown::Shown;

pub(crate) use self::json::as_json;
pub(crate) use self::text::{kept_of_each, lines};

#[derive(Args)]
#[command(after_help = "Example: plimsoll leaks snapshot.pickle")]
pub(crate) struct LeaksArgs {
    /// A snapshot: pickle or JSON, plain, gzip or zstd; `-` is stdin
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Exit with 1 if memory leaks, with 4 if there are too few steps to tell
    #[arg(long)]
    fail: bool,
    /// Only this device
    #[arg(long, value_name = "N")]
    device: Option<i32>,
    #[command(flatten)]
    shown: Shown,
    #[command(flatten)]
    limit: Limit,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

/// Finds the steps, and judges the memory that they leave live.
pub(crate) fn run(args: &LeaksArgs) -> Result<Answer, Failure> {
    args.limit.watch(&[&args.file], args.json);
    let mut explained = Explained::open(&args.file, args.device, Options::default(), &Categories::default())?;
    // Devices with leaks come first.
    explained.devices.sort_by_key(|device| device.leaks.whole.verdict != Verdict::Leaking);
    let has = |verdict| explained.devices.iter().any(|device| device.leaks.whole.verdict == verdict);
    let exit = match (has(Verdict::Leaking), has(Verdict::TooFewSteps)) {
        (true, _) if args.fail => Exit::Assertion,
        (false, true) if args.fail => Exit::OutOfMemory,
        _ => Exit::Done,
    };
    let text = if args.json { json::render(&explained) } else { text::render(&explained, args) };
    Ok(Answer { text, exit })
}
