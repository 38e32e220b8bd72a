//! The `plimsoll` program: arguments in, a verdict out.
//!
//! Results go to stdout, progress and errors to stderr. What a verb does is in its own folder; this file
//! and `output.rs` are the only ones that write to a stream or choose an exit code.

mod bench;
mod bytes;
mod conformance;
mod exit;
mod explain;
mod lenet;
mod output;
mod train;

use clap::{Parser, Subcommand};

use crate::exit::{Answer, Failure};

/// Train within a memory limit, and know where every byte went.
#[derive(Parser)]
#[command(name = "plimsoll", version, after_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

const EXIT_CODES: &str = "\
Results go to stdout, progress to stderr. Colour only on a terminal, never with NO_COLOR.

Exit codes:
  0  done
  1  an assertion failed: a recording that diverged
  2  the command line was not understood
  3  input could not be read
  4  out of memory
  5  a program of yours failed";

#[derive(Subcommand)]
enum Verb {
    /// Train a network and account for its memory
    Train {
        #[command(subcommand)]
        what: train::What,
    },
    /// Say what a memory snapshot means: why memory ran out, who holds it
    Explain(explain::ExplainArgs),
    /// Replay what PyTorch's allocator was asked, and compare every answer
    Conformance(conformance::ConformanceArgs),
    /// Measure speed
    Bench {
        #[command(subcommand)]
        what: bench::What,
    },
}

fn main() -> std::process::ExitCode {
    // clap prints usage errors itself and exits with 2.
    let outcome = match Cli::parse().verb {
        Verb::Train { what } => train::run(what).map(Answer::from),
        Verb::Explain(args) => explain::run(&args).map(Answer::from),
        Verb::Conformance(args) => conformance::run(&args),
        Verb::Bench { what } => bench::run(what).map(Answer::from),
    };
    match outcome {
        Ok(answer) => match output::result(&answer.text) {
            Ok(()) => answer.exit.into(),
            Err(failure) => failed(&failure),
        },
        Err(failure) => failed(&failure),
    }
}

fn failed(failure: &Failure) -> std::process::ExitCode {
    output::failure(failure);
    failure.exit.into()
}
