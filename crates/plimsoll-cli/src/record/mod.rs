//! `plimsoll record`: prints Python code that records a good snapshot of a PyTorch program.

use clap::{Args, ValueEnum};

use crate::exit::Failure;
use crate::sink::Sink;

#[derive(Args)]
pub(crate) struct RecordArgs {
    /// How many of the latest events to keep
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    entries: u64,
    /// Which frames to keep
    #[arg(long, value_enum, default_value_t = Stacks::Python)]
    stacks: Stacks,
    #[command(flatten)]
    sink: Sink,
}

/// Which frames PyTorch records.
#[derive(Clone, Copy, ValueEnum)]
enum Stacks {
    /// Python frames: cheap
    Python,
    /// Python and C++ frames, which name the operators of the backward pass: slower, with larger files
    All,
}

/// Prints the code.
pub(crate) fn run(args: &RecordArgs) -> Result<(), Failure> {
    let stacks = match args.stacks {
        Stacks::Python => "python",
        Stacks::All => "all",
    };
    let lines = include_str!("../../python/plimsoll/_memory_record.py")
        .replace("ENTRIES = 1_000_000", &format!("ENTRIES = {}", grouped(args.entries)))
        .replace("STACKS = \"python\"", &format!("STACKS = \"{stacks}\""));
    args.sink.write(|out| out.write_all(lines.as_bytes()))
}

/// A number in Python syntax, with its thousands separated.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (nth, digit) in digits.chars().enumerate() {
        if nth > 0 && (digits.len() - nth).is_multiple_of(3) {
            out.push('_');
        }
        out.push(digit);
    }
    out
}
