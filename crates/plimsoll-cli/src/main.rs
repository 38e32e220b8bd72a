//! The `plimsoll` program: arguments in, a verdict out.
//!
//! Results go to stdout, progress and errors to stderr. What a verb does is in its own folder; this file
//! and `output.rs` are the only ones that write to a stream or choose an exit code; `top` draws on the terminal.
//!
//! The files, from the bottom up; a file uses only files above it:
//!
//! | file | contents |
//! |---|---|
//! | `exit.rs`, `foreign.rs`, `output.rs` | exit codes and failures; text from files, made harmless for a terminal; the streams |
//! | `report.rs` | a report as text: on one screen, or whole |
//! | `bytes.rs`, `shown.rs` | sizes in words; how much is shown |
//! | `limit.rs`, `sink.rs`, `page.rs` | what reading a file may cost; where a file goes; a page for a browser |
//! | `recording.rs`, `categories.rs` | a recording by name; categories of the user's own |
//! | `moment.rs`, `explained.rs`, `contents.rs` | a moment in a recording; a recording and its explanation; what a peak consists of |
//! | `protocol/` | the messages between this program and our Python in the user's processes |
//! | `techniques/` | the techniques that use less memory, and sets of them |
//! | `inject/`, `scratch.rs` | files for the user's Python; a session's folder |
//! | `processes.rs`, `guard.rs` | what a program has started; what ends with a killed process |
//! | `cuda.rs`, `smi.rs`, `lenet.rs` | whether a GPU computes right; `nvidia-smi` of imitated GPUs; the network of the main job |
//! | `whatif.rs`, `leaks/`, `doctor/`, `check/`, `diff/`, `export/`, `record/`, `conformance.rs` | verbs about recordings |
//! | `explain/` | what a recording means: it also shows what `leaks`, `doctor` and `whatif` show |
//! | `train/`, `top/`, `bench/`, `manual.rs` | training in Rust; watching; measuring; man pages |
//! | `predict/` | what a program needs: a run on a device that computes nothing, and `explain` of its recording |
//! | `plan/`, `run/` | which techniques make it fit, by runs of `predict`; the program with them on a real GPU |

mod bench;
mod bytes;
mod categories;
mod check;
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
mod processes;
mod protocol;
mod record;
mod recording;
mod report;
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

use clap::{CommandFactory, Parser, Subcommand};

use crate::exit::{Answer, ERROR_SCHEMA, Exit, Failure};

/// Why PyTorch runs out of GPU memory, what a program needs, and what makes it fit; and training in Rust within a limit.
#[derive(Parser)]
#[command(name = "plimsoll", version, after_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

const EXIT_CODES: &str = "\
Results go to stdout, progress to stderr. Colour only on a terminal, never with NO_COLOR.

With --json, a failure is a JSON object on stdout, too.

Exit codes:
  0  done; also an explanation of a run that died
  1  one of your assertions failed, or a recording diverged
  2  the command line was not understood
  3  input could not be read, or output could not be written
  4  our run ran out of memory, what is predicted does not fit, or the answer is incomplete
  5  your program failed
  130, 143  training was ended by Ctrl-C or SIGTERM, after saving if --save is given";

#[derive(Subcommand)]
enum Verb {
    /// Say why memory ran out, and what used it: from a message, a log or a memory snapshot
    Explain(explain::ExplainArgs),
    /// Predict the GPU memory of a PyTorch program, without a GPU
    Predict(predict::PredictArgs),
    /// Find techniques that make a PyTorch program fit a GPU, without the GPU and without an edit
    Plan(plan::PlanArgs),
    /// Run a PyTorch program with techniques that use less memory, and explain it if memory runs out
    Run(run::RunArgs),
    /// Train a network in Rust within a memory limit, and account for every byte
    Train {
        #[command(subcommand)]
        what: train::What,
    },
    /// Watch the memory of a running program: PyTorch under `run`, or training in Rust
    Top(top::TopArgs),
    /// Find memory that grows from step to step, and whether it leaks
    Leaks(leaks::LeaksArgs),
    /// Compare the peaks of two memory snapshots
    Diff(diff::DiffArgs),
    /// Check the quality of a memory snapshot, and how to record a better one
    Doctor(doctor::DoctorArgs),
    /// Replay a memory snapshot's requests under other allocator settings
    Whatif(whatif::WhatIfArgs),
    /// Check a memory snapshot against limits, for CI: exit code 1 if it exceeds one
    Check(check::CheckArgs),
    /// Convert a memory snapshot to the format of another tool
    Export(export::ExportArgs),
    /// Print Python code that records a good snapshot
    Record(record::RecordArgs),
    /// Replay recorded calls of PyTorch's allocator, and compare every answer
    Conformance(conformance::ConformanceArgs),
    /// Measure speed
    Bench {
        #[command(subcommand)]
        what: bench::What,
    },
    /// What `nvidia-smi` prints of imitated GPUs, for programs that `predict` runs
    #[command(hide = true, disable_help_flag = true)]
    NvidiaSmi {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Print completions for a shell
    Completions(manual::CompletionsArgs),
    /// Write man pages
    Man(manual::ManArgs),
}

impl Verb {
    /// The schema of a failure, where JSON was asked for.
    fn failure_schema(&self) -> Option<&'static str> {
        let (json, schema) = match self {
            Verb::Train { what } => (what.json(), "plimsoll.train/1"),
            Verb::Predict(args) => (args.json, ERROR_SCHEMA),
            Verb::Plan(args) => (args.json, ERROR_SCHEMA),
            Verb::Top(args) => (args.json, ERROR_SCHEMA),
            Verb::Explain(args) => (args.json, ERROR_SCHEMA),
            Verb::Leaks(args) => (args.json, ERROR_SCHEMA),
            Verb::Diff(args) => (args.json, ERROR_SCHEMA),
            Verb::Doctor(args) => (args.json, ERROR_SCHEMA),
            Verb::Whatif(args) => (args.json, ERROR_SCHEMA),
            Verb::Check(args) => (args.json, ERROR_SCHEMA),
            Verb::Conformance(args) => (args.json, ERROR_SCHEMA),
            Verb::Bench { what } => (what.json(), ERROR_SCHEMA),
            Verb::Export(_)
            | Verb::Record(_)
            | Verb::Run(_)
            | Verb::NvidiaSmi { .. }
            | Verb::Completions(_)
            | Verb::Man(_) => return None,
        };
        json.then_some(schema)
    }
}

/// Whether a command line that was not understood contains --json, before the user's program.
fn asks_for_json(words: impl Iterator<Item = OsString>) -> bool {
    words.take_while(|word| word != "--").any(|word| word == "--json")
}

fn main() -> ExitCode {
    let helper = predict::planner::run(std::env::args_os()).or_else(|| guard::run(std::env::args_os()));
    let helper = helper.or_else(|| predict::view::run(std::env::args_os()));
    if let Some(exit) = helper {
        return exit.into();
    }
    let verb = match Cli::try_parse() {
        Ok(it) => it.verb,
        Err(error) if error.use_stderr() && asks_for_json(std::env::args_os()) => {
            let message = error.to_string();
            let failure = Failure::new(Exit::Usage, message.trim_start_matches("error: ").trim_end());
            output::failure(&failure, Some(ERROR_SCHEMA));
            return failure.exit.into();
        }
        // Help and usage errors: 0 or 2.
        Err(error) => return ExitCode::from(u8::try_from(output::usage(&error)).unwrap_or(2)),
    };
    let schema = verb.failure_schema();
    let outcome = match verb {
        Verb::Train { what } => train::run(&what),
        Verb::Predict(args) => predict::run(&args),
        Verb::Plan(args) => plan::run(&args),
        Verb::Run(args) => run::run(&args),
        Verb::Top(args) => top::run(&args),
        Verb::Explain(args) => explain::run(&args),
        Verb::Leaks(args) => leaks::run(&args),
        Verb::Diff(args) => diff::run(&args),
        Verb::Doctor(args) => doctor::run(&args),
        Verb::Whatif(args) => whatif::run(&args).map(Answer::from),
        Verb::Check(args) => check::run(&args),
        Verb::Export(args) => export::run(&args).map(|()| Answer::default()),
        Verb::Record(args) => record::run(&args).map(|()| Answer::default()),
        Verb::Conformance(args) => conformance::run(&args),
        Verb::Bench { what } => bench::run(what).map(Answer::from),
        Verb::NvidiaSmi { arguments } => smi::run(&arguments),
        Verb::Completions(args) => manual::completions(&args, Cli::command()).map(|()| Answer::default()),
        Verb::Man(args) => manual::man(&args, Cli::command()).map(|()| Answer::default()),
    };
    match outcome.and_then(|answer| output::result(&answer.text).map(|()| answer.exit)) {
        Ok(exit) => exit.into(),
        Err(failure) => {
            output::failure(&failure, schema);
            failure.exit.into()
        }
    }
}
