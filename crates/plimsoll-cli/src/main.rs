//! The `plimsoll` program: arguments in, a verdict out.
//!
//! Results go to stdout, progress and errors to stderr. What a verb does is in its own folder; this file
//! and `output.rs` are the only ones that write to a stream or choose an exit code.

mod bench;
mod bytes;
mod exit;
mod lenet;
mod output;
mod train;

use clap::{Parser, Subcommand};

use crate::exit::{Exit, Failure};

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
    /// Measure speed
    Bench {
        #[command(subcommand)]
        what: bench::What,
    },
}

fn main() -> std::process::ExitCode {
    // clap prints usage errors itself and exits with 2.
    let outcome = match Cli::parse().verb {
        Verb::Train { what } => train::run(what),
        Verb::Bench { what } => bench::run(what),
    };
    match outcome {
        Ok(text) => output::result(&text).map_or_else(|failure| failed(&failure), |()| Exit::Done.into()),
        Err(failure) => failed(&failure),
    }
}

fn failed(failure: &Failure) -> std::process::ExitCode {
    output::failure(failure);
    failure.exit.into()
}
