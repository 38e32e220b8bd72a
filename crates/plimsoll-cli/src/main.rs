//! The `plimsoll` program: parses the arguments and prints a verdict.
//!
//! Results go to stdout, progress and errors to stderr. Each verb's code is in its own folder. Only this file
//! and `output.rs` write to a stream or choose an exit code, except that `top` draws on the terminal.
//!
//! The files, from the bottom up; a file uses only files above it:
//!
//! | file | contents |
//! |---|---|
//! | `exit.rs`, `foreign.rs`, `output.rs` | exit codes and failures; text from files, made harmless for a terminal; the streams |
//! | `report.rs` | a report as text: on one screen, or complete |
//! | `row.rs` | a GPU's row as a file |
//! | `bytes.rs`, `shown.rs` | sizes in words; how much is shown |
//! | `limit.rs`, `sink.rs`, `page.rs` | limits on the cost of reading a file; where an output file goes; a page for a browser |
//! | `recording.rs`, `categories.rs` | a recording by name; categories of the user's own |
//! | `moment.rs`, `explained.rs`, `predicted.rs`, `contents.rs` | a moment in a recording; a recording and its explanation; what `predict` adds to its recording; the contents of a peak |
//! | `protocol/` | the messages between this program and our Python in the user's processes |
//! | `techniques/` | the techniques that use less memory, and sets of them |
//! | `inject/`, `scratch.rs` | files for the user's Python; a session's folder |
//! | `processes.rs`, `guard.rs` | the processes that a program has started; ending them if this process is killed |
//! | `cuda.rs`, `smi.rs`, `lenet.rs` | whether a GPU computes correctly; an `nvidia-smi` for simulated GPUs; the network of the main job |
//! | `whatif.rs`, `leaks/`, `doctor/`, `check/`, `diff/`, `export/`, `record/`, `conformance.rs` | verbs about recordings |
//! | `explain/` | explains a recording, including the results of `leaks`, `doctor` and `whatif` |
//! | `train/`, `checkpoint.rs`, `top/`, `bench/`, `manual.rs` | training in Rust; converting what it saved; watching; measuring; man pages |
//! | `predict/` | the memory that a program needs: a run on a device that computes nothing, and `explain` of its recording |
//! | `calibrate/` | measures the GPU of this machine, for `predict` on other machines |
//! | `plan/`, `run/` | finds techniques that make it fit, with runs of `predict`; runs the program with them on a real GPU |

mod bench;
mod bytes;
mod calibrate;
mod categories;
mod check;
mod checkpoint;
mod conformance;
mod contents;
mod cuda;
mod diff;
mod doctor;
mod exit;
mod explain;
mod explained;
mod export;
mod foreign;
mod guard;
mod inject;
mod leaks;
mod lenet;
mod limit;
mod manual;
mod moment;
mod output;
mod page;
mod plan;
mod predict;
mod predicted;
mod processes;
mod protocol;
mod record;
mod recording;
mod report;
mod row;
mod run;
mod scratch;
mod shown;
mod sink;
mod smi;
mod techniques;
mod top;
mod train;
mod whatif;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::exit::{Answer, ERROR_SCHEMA, Exit, Failure};

/// Say why PyTorch runs out of GPU memory, what a program needs and what makes it fit; train in Rust within a memory limit.
#[derive(Parser)]
#[command(name = "plimsoll", version, after_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

const EXIT_CODES: &str = "\
Results go to stdout, progress to stderr. Colour is used only on a terminal, and never if NO_COLOR is set.

With --json, a failure is also reported as a JSON object on stdout.

Exit codes:
  0  success; this includes explaining a run that failed
  1  a check failed, or a replayed recording diverged
  2  the command line is invalid
  3  input could not be read, or output could not be written
  4  the run, real or predicted, ran out of memory, or the answer is incomplete
  5  your program failed
  6  another rank of the training job failed
  130, 143  training was ended by Ctrl-C or SIGTERM, after saving if --save is given";

/// Makes [`Verb`] from its rows: the help, the name, the arguments, and the function that runs it.
macro_rules! verbs {
    ($($(#[$help:meta])* $verb:ident($args:ty) => $run:path,)*) => {
        #[derive(Subcommand)]
        enum Verb {
            $($(#[$help])* $verb($args),)*
        }

        impl Verb {
            fn run(&self) -> Result<Answer, Failure> {
                match self {
                    $(Verb::$verb(args) => $run(args).map(Answer::from),)*
                }
            }
        }
    };
}

verbs! {
    /// Explain why memory ran out and what used it, from a message, a log or a memory snapshot
    Explain(explain::ExplainArgs) => explain::run,
    /// Predict the GPU memory of a PyTorch program, without a GPU
    Predict(predict::PredictArgs) => predict::run,
    /// Find techniques that make a PyTorch program fit a GPU, without the GPU and without editing the program
    Plan(plan::PlanArgs) => plan::run,
    /// Measure the memory that this machine's GPU takes outside PyTorch, for `predict --gpu FILE.json`
    Calibrate(calibrate::CalibrateArgs) => calibrate::run,
    /// Run a PyTorch program with techniques that use less memory, and explain it if memory runs out
    Run(run::RunArgs) => run::run,
    /// Train a network in Rust within a memory limit, and account for every byte
    #[command(subcommand)]
    Train(train::What) => train::run,
    /// Merge the weights that several ranks saved into one file
    #[command(subcommand)]
    Checkpoint(checkpoint::What) => checkpoint::run,
    /// Watch the memory of a running program: PyTorch under `run`, or training in Rust
    Top(top::TopArgs) => top::run,
    /// Find memory that grows from step to step, and say whether it leaks
    Leaks(leaks::LeaksArgs) => leaks::run,
    /// Compare the peaks of two memory snapshots
    Diff(diff::DiffArgs) => diff::run,
    /// Check the quality of a memory snapshot, and show how to record a better one
    Doctor(doctor::DoctorArgs) => doctor::run,
    /// Replay a memory snapshot's requests under other allocator settings
    Whatif(whatif::WhatIfArgs) => whatif::run,
    /// Check a memory snapshot against limits, for CI: exit code 1 if it exceeds one
    Check(check::CheckArgs) => check::run,
    /// Convert a memory snapshot to the format of another tool
    Export(export::ExportArgs) => export::run,
    /// Print Python code that records a good snapshot
    Record(record::RecordArgs) => record::run,
    /// Replay recorded calls to PyTorch's allocator, and compare every result
    Conformance(conformance::ConformanceArgs) => conformance::run,
    /// Measure speed
    #[command(subcommand)]
    Bench(bench::What) => bench::run,
    /// Print what `nvidia-smi` would print for the simulated GPUs, for programs that `predict` runs
    #[command(hide = true, disable_help_flag = true)]
    NvidiaSmi(smi::SmiArgs) => smi::run,
    /// Print completions for a shell
    Completions(manual::CompletionsArgs) => completions,
    /// Write man pages
    Man(manual::ManArgs) => man,
}

fn completions(args: &manual::CompletionsArgs) -> Result<(), Failure> {
    manual::completions(args, Cli::command())
}

fn man(args: &manual::ManArgs) -> Result<(), Failure> {
    manual::man(args, Cli::command())
}

/// Whether the option `--json` of a verb, or of one below it, was given.
fn is_json(given: &ArgMatches) -> bool {
    let own = given.try_get_one("json").ok().flatten().is_some_and(|is_given: &bool| *is_given);
    own || given.subcommand().is_some_and(|(_, below)| is_json(below))
}

/// Whether a command line that clap rejected contains --json before the user's program.
fn asks_for_json(words: impl Iterator<Item = OsString>) -> bool {
    words.take_while(|word| word != "--").any(|word| word == "--json")
}

fn main() -> ExitCode {
    let helper = predict::planner::run(std::env::args_os()).or_else(|| guard::run(std::env::args_os()));
    let helper = helper.or_else(|| predict::view::run(std::env::args_os()));
    if let Some(exit) = helper {
        return exit.into();
    }
    let given = Cli::command().try_get_matches();
    let parsed = given.and_then(|given| Ok((Cli::from_arg_matches(&given)?.verb, is_json(&given))));
    let (verb, is_json) = match parsed {
        Ok(parsed) => parsed,
        Err(error) if error.use_stderr() && asks_for_json(std::env::args_os()) => {
            let message = error.to_string();
            let failure = Failure::new(Exit::Usage, message.trim_start_matches("error: ").trim_end());
            output::failure(&failure, Some(ERROR_SCHEMA));
            return failure.exit.into();
        }
        // Help and usage errors: 0 or 2.
        Err(error) => return ExitCode::from(u8::try_from(output::usage(&error)).unwrap_or(2)),
    };
    match verb.run().and_then(|answer| output::result(&answer.text).map(|()| answer.exit)) {
        Ok(exit) => exit.into(),
        Err(failure) => {
            let schema = if matches!(verb, Verb::Train(_)) { train::SCHEMA } else { ERROR_SCHEMA };
            output::failure(&failure, is_json.then_some(schema));
            failure.exit.into()
        }
    }
}
