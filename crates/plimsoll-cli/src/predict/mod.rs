//! `plimsoll predict`: runs a PyTorch program without a GPU, and reports how much GPU memory it needs.
//!
//! PyTorch and its allocator are the real ones; the device is `plimsoll-standin`.
//!
//! | file | contents |
//! |---|---|
//! | `gpu.rs`, `machine.rs` | the simulated GPU, and its memory for the allocator; the GPU of this machine |
//! | `standin.rs` | finds the shared library and checks its version |
//! | `embedded.rs` | the shared library that a release build contains |
//! | `../inject/imports.py`, `watch.py`, `device.py`, `compiled.py`, `failure.py`, `report.rs` | the hooks inside the user's processes, and each process's report |
//! | `reads.py`, `dataflow.py`, `names.py`, `reads.rs` | reads of device values: where they are, and what the values decide |
//! | `shadows.py`, `experts.py`, `assume.rs` | values that are known without computing; equal shares of experts; values from `--assume` |
//! | `finish.py`, `loops.py`, `growth.py`, `grows.rs` | the code after the steps; memory that grows where a loop is cut |
//! | `warnings.py`, `warnings.rs` | what a run without values cannot show, in a few lines |
//! | `view/` | the file system as the program sees it: its writes do not reach the disk |
//! | `sparse.py`, `network.py` | saved models that take no space; the hosts that the program contacts |
//! | `patches.py` | patches of PyTorch, so that a program takes the same path as on a GPU |
//! | `surroundings.rs` | private caches, and an `nvidia-smi` |
//! | `run.rs`, `supervised.rs`, `processes.rs`, `signals.rs` | runs the user's program and its child processes |
//! | `answer.rs`, `judge.rs`, `failed.rs`, `limits.rs` | the verdict and its limits |
//! | `need.rs` | what a program needs that ran out of memory |
//! | `without.rs`, `warm.rs` | the peaks without workspaces, and with warm compile caches |
//! | `text.rs`, `brief.rs`, `json.rs`, `traces.rs` | the reports |
//! | `sentences.rs`, `lines.rs` | their sentences, and lines that fit on a screen |
//! | `keep.rs` | `--snapshot` |
//! | `trial.rs`, `trials.rs`, `served.rs`, `serve.py`, `questions.py` | runs of the same program with several sets of techniques, for `plan` |
//! | `find.rs`, `search.rs` | `--find`, and its search |
//!
//! The program's own output goes to stderr, as progress messages do: stdout contains only the answer.

mod answer;
pub(crate) mod assume;
mod brief;
mod embedded;
mod failed;
mod find;
pub(crate) mod gpu;
mod grows;
mod json;
mod judge;
mod keep;
mod limits;
mod lines;
pub(crate) mod machine;
mod need;
pub(crate) mod planner;
pub(crate) mod processes;
pub(crate) mod reads;
pub(crate) mod report;
mod run;
pub(crate) mod search;
mod sentences;
mod served;
mod signals;
mod standin;
mod supervised;
mod surroundings;
mod text;
mod traces;
pub(crate) mod trial;
pub(crate) mod trials;
pub(crate) mod view;
mod warm;
mod warnings;
mod without;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use plimsoll_alloc::Config;
use plimsoll_trace::render::html::About;

use self::answer::Outcome;
use self::assume::Assumption;
use self::find::Placeholder;
use self::gpu::{Target, Workspaces};
use self::keep::Keep;
use self::run::{Ended, Run, Session};
use self::view::Writes;
use crate::bytes;
use crate::exit::{Answer, Exit, Failure};
use crate::output;
use crate::page::quoted;
use crate::shown::Shown;
use crate::sink::Sink;
use crate::techniques::{Set, Technique};

#[derive(Args)]
#[command(after_help = AFTER_HELP, override_usage = "plimsoll predict [OPTIONS] -- COMMAND...")]
pub(crate) struct PredictArgs {
    /// The GPU, by name (--list prints them), or its memory, such as 24GiB [default: this machine's]
    #[arg(long, value_name = "NAME|SIZE")]
    gpu: Option<String>,
    /// Compute capability of a GPU given by size, such as 8.9 [default: that of the listed GPU nearest in size]
    #[arg(long, value_name = "X.Y")]
    cc: Option<String>,
    /// Number of GPUs that the program sees
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    devices: u32,
    /// Number of machines of the job for --rank, each with --devices GPUs
    #[arg(long, value_name = "N", default_value_t = 1, requires = "rank", value_parser = clap::value_parser!(u32).range(1..))]
    nodes: u32,
    /// Run only this rank of a job with --nodes times --devices ranks, without torchrun and without the other ranks
    #[arg(long, value_name = "N")]
    rank: Option<u32>,
    /// Memory of each GPU that a process uses outside the allocator: the CUDA context and libraries
    #[arg(long, value_name = "SIZE", default_value = gpu::CONTEXT, value_parser = bytes::parse)]
    context: u64,
    /// Workspaces of cuDNN (convolutions, recurrent networks, batch normalization, CTC loss) and cuFFT
    #[arg(long, value_name = "HOW", value_enum, default_value = "library")]
    cudnn_workspace: Workspaces,
    /// Train for this many steps of every optimizer. If the training is a loop over a DataLoader, the code after it runs,
    /// too; otherwise the program is stopped there
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    steps: u64,
    /// Run the program to its end
    #[arg(long, conflicts_with = "steps")]
    whole: bool,
    /// The value that a line reads from the device, instead of zero; max is the largest possible value, half is half of it
    #[arg(long, value_name = "FILE:LINE=VALUE|max|half", value_parser = Assumption::parse)]
    assume: Vec<Assumption>,
    /// Allocator settings, as in PYTORCH_ALLOC_CONF
    #[arg(long, value_name = "SETTINGS")]
    alloc_conf: Option<String>,
    /// Apply techniques that use less memory, such as checkpoint,chunked-loss (`plimsoll run --help` lists them)
    #[arg(long, value_name = "SET", value_parser = Set::parse)]
    with: Option<Set>,
    /// Stop the program after this time, such as 90s or 5m, and report what happened up to then
    #[arg(long, value_name = "TIME", value_parser = duration)]
    timeout: Option<Duration>,
    /// Find the largest value that fits; each value replaces {NAME} in the command
    #[arg(long, value_name = "NAME=FROM..TO", value_parser = Placeholder::parse)]
    find: Option<Placeholder>,
    /// Save the snapshot for `explain`, `leaks`, `diff` and the other verbs: that of the process that decides the verdict,
    /// or all of them to a folder (DIR/)
    #[arg(long, value_name = "OUT.pickle|DIR/", conflicts_with = "find")]
    snapshot: Option<PathBuf>,
    /// Also write a page for a browser: one file that needs no network
    #[arg(long, value_name = "OUT.html", conflicts_with = "find")]
    html: Option<PathBuf>,
    #[command(flatten)]
    writes: Writes,
    /// Replace existing files; in a folder of snapshots, all those of an earlier run
    #[arg(short, long)]
    force: bool,
    #[command(flatten)]
    shown: Shown,
    /// Print all tables and limits, not one screen
    #[arg(long, conflicts_with = "verdict_only")]
    full: bool,
    /// Print the verdict alone
    #[arg(short = 'q', long = "quiet")]
    verdict_only: bool,
    /// The result as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// The program and its arguments, after `--`
    #[arg(value_name = "COMMAND", trailing_var_arg = true, required_unless_present = "list")]
    command: Vec<OsString>,
    /// Print the known GPUs
    #[arg(long)]
    list: bool,
    /// Further variables for the program, from `plan`
    #[arg(skip)]
    variables: Vec<(&'static str, OsString)>,
    /// Whether the program's own output is discarded, for `plan`'s later runs
    #[arg(skip)]
    quiet: bool,
}

/// The most GPUs that PyTorch can number in one process: its `DeviceIndex` is a signed 8-bit integer.
const MOST_DEVICES: u32 = 127;

const AFTER_HELP: &str = "\
The program's own output goes to stderr. Values that it reads from the device are zero, unless they are known (such as a
mask that the host sent) or set by --assume; the answer lists the lines where such a value decides a size or a branch.
The program finds its own changes of files, but the disk stays as it is; only new files in caches of downloads and
compilers (HF_HOME, TORCH_HOME, XDG_CACHE_HOME) are kept. A loop that waits for a value may never end: use --timeout. Ctrl-C or SIGTERM stops the program and reports what happened up to then; a second one kills it. All
of its processes end with the run. The program runs in its own process group: it does not receive Ctrl-C, whose handler
might save a model of zeros, and Ctrl-Z does not stop it. Its stdin is empty if it would be the terminal; a file or a
pipe is passed on.

Exit codes: 0 it fits; 4 it does not fit, or there is no answer, for example because the run was stopped early; 5 the
program failed for another reason.

Examples:
  plimsoll predict --gpu H100 -- python train.py --batch-size 32
  plimsoll predict --devices 2 -- torchrun --nproc-per-node 2 train.py
  plimsoll predict --nodes 8 --devices 8 --rank 0 -- python train.py
  plimsoll predict --gpu 24GiB --cc 8.9 --find 'BATCH=1..512' -- python train.py --batch-size {BATCH}";

/// Runs the program; returns the report for stdout.
pub(crate) fn run(args: &PredictArgs) -> Result<Answer, Failure> {
    if args.list {
        return Ok(Answer::from(gpu::list(args.shown.bytes)));
    }
    if args.rank.is_some_and(|rank| u64::from(rank) >= u64::from(args.nodes) * u64::from(args.devices)) {
        let message = "--rank must be less than --nodes times --devices (ranks count from 0)";
        return Err(Failure::new(Exit::Usage, message));
    }
    if args.devices == 1 && args.with.as_ref().is_some_and(|set| set.has(Technique::Fsdp)) {
        return Err(Failure::new(Exit::Usage, "--with fsdp needs several GPUs: --devices N"));
    }
    if args.devices > MOST_DEVICES {
        let message = format!(
            "--devices {}: PyTorch supports at most {MOST_DEVICES} GPUs per process. To run one rank of \
             a job on several machines: --nodes {} --devices 8 --rank N",
            args.devices,
            args.devices.div_ceil(8)
        );
        return Err(Failure::new(Exit::Usage, message));
    }
    let target = Target::of(args)?;
    if let Some(alike) = target.assumed_from {
        output::progress(&format!(
            "{} without --cc: assuming compute capability {}, that of the {alike}, the listed GPU nearest in size",
            target.options, target.capability
        ));
    }
    if let Some(settings) = &args.alloc_conf {
        Config::parse(settings).map_err(|why| Failure::new(Exit::Usage, format!("{settings}: {why}")))?;
    }
    let keep = args.snapshot.as_ref().map(|path| Keep::of(path, args.force)).transpose()?;
    let html = args.html.as_ref().map(|path| Sink::new(path.clone(), args.force));
    html.iter().try_for_each(Sink::check)?;
    let session = Session::begin()?;
    if let Some(placeholder) = &args.find {
        return find::run(args, placeholder, &target, &session);
    }
    let run = Run::of(args, &args.command, &target, &session, &args.assume)?;
    let mut outcome = Outcome::of(run.ended, &run.reports, &target)?;
    outcome.traces = run.traces.clone();
    outcome.find_need(args, &target, &session, &args.assume)?;
    outcome.replay_without();
    if !args.assume.is_empty() && run.ended != Ended::Interrupted {
        output::progress("running again with zero instead of the --assume values");
        let run = Run::of(args, &args.command, &target, &session, &[])?;
        outcome.without_assumptions = Some(Box::new(Outcome::of(run.ended, &run.reports, &target)?));
    }
    if let Some(analysis) = outcome.judged.as_mut().and_then(|judged| judged.analysis.as_mut()) {
        analysis.try_settings();
    }
    if let Some(keep) = keep {
        keep.write(&mut outcome)?;
    }
    let analysis = outcome.judged.as_ref().and_then(|judged| judged.analysis.as_ref());
    if let Some((sink, analysis)) = html.zip(analysis) {
        let words = std::env::args_os().map(|word| quoted(word.as_ref()));
        let command = words.collect::<Vec<_>>().join(" ");
        sink.page(About::Recording(analysis.explained.report()), &analysis.explained.file, &command)?;
    }
    let text =
        if args.json { json::render(&outcome, &target, args) } else { text::render(&outcome, &target, args) };
    Ok(Answer { text, exit: outcome.verdict.exit() })
}

/// Parses a time: `90`, `90s`, `5m`, `2h`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let scale = match unit.trim() {
        "" | "s" => 1,
        "m" | "min" => 60,
        "h" => 3600,
        _ => return Err(format!("`{unit}` is not a unit; use s, m or h")),
    };
    let number: u64 = number.parse().map_err(|_| "not a time; use for example 90s".to_owned())?;
    let seconds = number.checked_mul(scale).filter(|&seconds| (1..1 << 31).contains(&seconds));
    seconds.map(Duration::from_secs).ok_or_else(|| "must be more than 0, and less than 60 years".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_parsed_with_their_units() {
        for (text, seconds) in [("90", 90), ("90s", 90), ("5m", 300), ("2h", 7200)] {
            assert_eq!(duration(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for text in ["", "0", "5 parsecs", "-1", "1e9", "99999999999999999999", "9999999999999h"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
