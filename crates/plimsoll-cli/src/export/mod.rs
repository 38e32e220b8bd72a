//! `plimsoll export`: converts a snapshot to the format of another tool.
//!
//! `live.rs` collects the stacks of live bytes at one moment, which `folded.rs` and `speedscope.rs` write.
//! `perfetto.rs` writes the complete recording over time; `plimsoll_trace::output` writes PyTorch's own
//! format.

mod folded;
mod live;
mod perfetto;
mod scopes;
mod speedscope;
mod sqlite;

use std::io::{self, IsTerminal};
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use plimsoll_trace::explain::{DeviceExplanation, Options};
use plimsoll_trace::{Sharing, output};

use self::live::Live;
use crate::categories::Categories;
use crate::exit::{Exit, Failure};
use crate::limit::Limit;
use crate::moment::{self, When};
use crate::recording::Recording;
use crate::sink::Sink;

#[derive(Args)]
#[command(after_help = "Example: plimsoll export --to folded snapshot.pickle")]
pub(crate) struct ExportArgs {
    /// A snapshot: pickle or JSON, plain, gzip or zstd; `-` is stdin
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// The output format
    #[arg(long, value_enum, value_name = "FORMAT")]
    to: Format,
    /// The moment, for folded and speedscope: peak, end, failure, an event's number or a time such as 2.5s
    /// [default: failure, or peak if nothing failed]
    #[arg(long, value_name = "MOMENT", value_parser = moment::parse)]
    at: Option<When>,
    /// Only this device; not for memory_viz
    #[arg(long, value_name = "N")]
    device: Option<i32>,
    /// Infer nothing: write only what the file says; not allowed with sqlite or memory_viz
    #[arg(long)]
    no_infer: bool,
    /// For folded: include C++ frames, if they were recorded
    #[arg(long)]
    native: bool,
    #[command(flatten)]
    categories: Categories,
    #[command(flatten)]
    limit: Limit,
    #[command(flatten)]
    sink: Sink,
}

/// Whose format.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// One line per stack, for flamegraph.pl and inferno
    Folded,
    /// JSON for www.speedscope.app
    Speedscope,
    /// Trace events in JSON, for ui.perfetto.dev and chrome://tracing
    Perfetto,
    /// An SQLite database with the tables device_traces, segments and blocks, as proposed for PyTorch
    Sqlite,
    /// PyTorch's own format, for pytorch.org/memory_viz: a pickle of protocol 4
    #[value(name = "memory_viz")]
    MemoryViz,
}

/// Reads the snapshot, then writes it in the format.
pub(crate) fn run(args: &ExportArgs) -> Result<(), Failure> {
    check(args)?;
    args.limit.watch(&[&args.file], false);
    let mut recording = Recording::open(&args.file, args.device)?;
    if args.to == Format::MemoryViz {
        return args.sink.write(|out| output::write(&recording.snapshot, out, Sharing::Equal));
    }
    if args.to == Format::Sqlite {
        let database = sqlite::database(&recording.snapshot, &recording.devices)
            .map_err(|why| Failure::new(Exit::OutOfMemory, format!("SQLite: {why}")))?;
        return args.sink.write(|out| out.write_all(&database));
    }
    let origins = args.categories.origins(&mut recording.snapshot);
    let snapshot = &recording.snapshot;
    let options = Options { infer: !args.no_infer, device_total_bytes: None };
    let devices: Vec<DeviceExplanation> = recording
        .devices
        .iter()
        .map(|&number| DeviceExplanation::of(snapshot, number, &origins, options))
        .collect();
    if args.to == Format::Perfetto {
        return args.sink.write(|out| perfetto::write(snapshot, &origins, &devices, out));
    }
    let live = Live::of_all(&recording, &devices, args.at)?;
    args.sink.write(|out| match args.to {
        Format::Speedscope => speedscope::write(&recording, &live, out),
        _ => folded::write(snapshot, &live, args.native, out),
    })
}

/// Refuses options that contradict each other, before the work.
fn check(args: &ExportArgs) -> Result<(), Failure> {
    let refuse = |message: &str| Err(Failure::new(Exit::Usage, message));
    if args.at.is_some() && !matches!(args.to, Format::Folded | Format::Speedscope) {
        return refuse(
            "--at works only with folded and speedscope; the other formats contain the whole recording",
        );
    }
    if args.native && args.to != Format::Folded {
        return refuse("--native works only with folded; the other formats contain all frames");
    }
    if args.no_infer && matches!(args.to, Format::Sqlite | Format::MemoryViz) {
        return refuse("sqlite and memory_viz infer nothing: leave out --no-infer");
    }
    if !args.categories.is_empty() && args.to != Format::Perfetto {
        return refuse("--category works only with perfetto: the other formats have no categories");
    }
    if args.device.is_some() && args.to == Format::MemoryViz {
        return refuse("memory_viz always contains all devices: leave out --device");
    }
    let is_binary = matches!(args.to, Format::Sqlite | Format::MemoryViz);
    if is_binary && args.sink.is_stdout() && io::stdout().is_terminal() {
        return refuse("this format is binary and cannot go to a terminal: add -o FILE");
    }
    args.sink.check()
}
