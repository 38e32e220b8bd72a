//! `plimsoll predict`: runs a PyTorch program where there is no GPU, and says what it takes of one.
//!
//! PyTorch is the real one, and so are its allocator's figures; the device beneath is `plimsoll-standin`.
//!
//! | file | what it holds |
//! |---|---|
//! | `gpu.rs` | the GPU that is imitated, and what of it is left for the allocator |
//! | `standin.rs` | the shared library: where it is, and how the loader is led to it |
//! | `watch.py`, `report.rs` | what is done inside the user's processes, and what each of them tells |
//! | `reads.py`, `fate.py`, `reads.rs` | values that are read from the device: where, and what they decide |
//! | `known.py`, `assume.rs` | values that are known although nothing computes; values that the user gives |
//! | `finish.py`, `saves.py` | what comes after the steps; the user's files, which stay as they are |
//! | `course.py` | what PyTorch is told otherwise there, so that a program takes its course without values |
//! | `surroundings.rs` | caches of its own, and an `nvidia-smi` |
//! | `run.rs`, `processes.rs`, `signals.rs` | the user's program from start to end, with all that it starts |
//! | `answer.rs`, `failed.rs`, `limits.rs`, `without.rs` | the verdict, what it cannot tell, the peaks without workspaces |
//! | `text.rs`, `json.rs` | how both are said |
//! | `keep.rs` | the snapshots that are kept |
//! | `find.rs`, `search.rs` | the largest value that fits, and the values that are tried |
//!
//! The program's own output goes to stderr, as progress does: stdout holds the answer alone.

mod answer;
mod assume;
mod failed;
mod find;
mod gpu;
mod json;
mod keep;
mod limits;
pub(crate) mod planner;
mod processes;
mod reads;
mod report;
mod run;
mod search;
mod signals;
mod standin;
mod surroundings;
mod text;
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
use crate::bytes;
use crate::exit::{Answer, Exit, Failure};
use crate::output;
use crate::page::quoted;
use crate::shown::Shown;
use crate::sink::Sink;

#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct PredictArgs {
    /// The GPU, by name (--list prints them), or its memory, such as 24GiB
    #[arg(long, value_name = "NAME|SIZE", default_value = "A100-80GB")]
    gpu: String,
    /// Its compute capability, such as 8.9, where --gpu is a size [default: that of the listed GPU of nearest size]
    #[arg(long, value_name = "X.Y")]
    cc: Option<String>,
    /// How many of them the program sees
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    devices: u32,
    /// How many machines the job of --rank has, each with --devices GPUs
    #[arg(long, value_name = "N", default_value_t = 1, requires = "rank", value_parser = clap::value_parser!(u32).range(1..))]
    nodes: u32,
    /// Run this one rank of a job that has --nodes times --devices ranks, without torchrun and without the others
    #[arg(long, value_name = "N")]
    rank: Option<u32>,
    /// What a process takes of each GPU beside the allocator: the CUDA context and libraries
    #[arg(long, value_name = "SIZE", default_value = gpu::CONTEXT, value_parser = bytes::parse)]
    context: u64,
    /// What cuDNN (convolutions, recurrent networks, batch normalization, CTC) and cuFFT ask for beside their results
    #[arg(long, value_name = "HOW", value_enum, default_value = "library")]
    cudnn_workspace: Workspaces,
    /// Train for so many steps, of every optimizer. What comes after the training is run, too, where that is a loop over
    /// a DataLoader; else the program is ended there
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    steps: u64,
    /// Let the program end by itself
    #[arg(long, conflicts_with = "steps")]
    whole: bool,
    /// What a line that reads a value of the device gets, in place of zero; max and half are of what is possible there
    #[arg(long, value_name = "FILE:LINE=VALUE|max|half", value_parser = Assumption::parse)]
    assume: Vec<Assumption>,
    /// Settings of the allocator, as PYTORCH_ALLOC_CONF takes them
    #[arg(long, value_name = "SETTINGS")]
    alloc_conf: Option<String>,
    /// End the program after this time, such as 90s or 5m, and tell what was seen until then
    #[arg(long, value_name = "TIME", value_parser = duration)]
    timeout: Option<Duration>,
    /// Find the largest value that fits: {NAME} in the command is replaced by it
    #[arg(long, value_name = "NAME=FROM..TO", value_parser = Placeholder::parse)]
    find: Option<Placeholder>,
    /// Keep the snapshot, for `explain`, `leaks`, `diff` and the other verbs: of the process that decides, or of all in
    /// a folder (DIR/)
    #[arg(long, value_name = "OUT.pickle|DIR/", conflicts_with = "find")]
    snapshot: Option<PathBuf>,
    /// Also write a page for a browser: one file that needs no network
    #[arg(long, value_name = "OUT.html", conflicts_with = "find")]
    html: Option<PathBuf>,
    /// Replace files that are there; of a folder of snapshots, all that an earlier run kept in it
    #[arg(short, long)]
    force: bool,
    #[command(flatten)]
    shown: Shown,
    /// The result as JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// The program and its arguments, behind `--`
    #[arg(value_name = "COMMAND", trailing_var_arg = true, required_unless_present = "list")]
    command: Vec<OsString>,
    /// Print the GPUs that are known by name
    #[arg(long)]
    list: bool,
}

/// How many GPUs PyTorch can number in one process: its `DeviceIndex` has eight bits, with a sign.
const MOST_DEVICES: u32 = 127;

const AFTER_HELP: &str = "\
The program's own output goes to stderr. What it reads back from the device is zero, unless it is known, as a mask that
the host sent, or given by --assume; the answer lists the lines at which a value decides a size or a branch. Models are
not saved, and files that were there before the program began stay as they are. A loop that waits for a value may never
end: give it a --timeout. At Ctrl-C or SIGTERM the program is ended, too, and what was seen until
then is told; at a second one it is ended at once. No process of the program's outlives the answer. It has a process
group of its own: Ctrl-C reaches none of its handlers, which might save a model of zeros, and Ctrl-Z does not stop it.
A terminal is not its stdin, which is empty then; a file or a pipe stays.

Exit codes: 0 it fits, 4 it does not, or that cannot be told, as of a run that was ended early, 5 the program failed for
another reason.

Examples:
  plimsoll predict --gpu H100 -- python train.py --batch-size 32
  plimsoll predict --devices 2 -- torchrun --nproc-per-node 2 train.py
  plimsoll predict --nodes 8 --devices 8 --rank 0 -- python train.py
  plimsoll predict --gpu 24GiB --cc 8.9 --find 'BATCH=1..512' -- python train.py --batch-size {BATCH}";

/// Runs the program and tells what it took; the result is text for stdout.
pub(crate) fn run(args: &PredictArgs) -> Result<Answer, Failure> {
    if args.list {
        return Ok(Answer::from(gpu::list(args.shown.bytes)));
    }
    if args.rank.is_some_and(|rank| u64::from(rank) >= u64::from(args.nodes) * u64::from(args.devices)) {
        let message = "--rank counts from 0, and the job has --devices ranks (with --nodes, so many on each)";
        return Err(Failure::new(Exit::Usage, message));
    }
    if args.devices > MOST_DEVICES {
        let message = format!(
            "--devices {}: a process sees the GPUs of one machine, and PyTorch no more than {MOST_DEVICES}. For one rank of \
             a job of several machines: --nodes {} --devices 8 --rank N",
            args.devices,
            args.devices.div_ceil(8)
        );
        return Err(Failure::new(Exit::Usage, message));
    }
    let target = Target::of(args)?;
    if let Some(alike) = target.assumed_from {
        output::progress(&format!(
            "--gpu {} without --cc: compute capability {} is assumed, as of the {alike}, the listed GPU of nearest size",
            args.gpu, target.capability
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
    outcome.leave_out_workspaces();
    if !args.assume.is_empty() && run.ended != Ended::Interrupted {
        output::progress("once more, with zero for what --assume gives");
        let run = Run::of(args, &args.command, &target, &session, &[])?;
        outcome.without_assumptions = Some(Box::new(Outcome::of(run.ended, &run.reports, &target)?));
    }
    if let Some(told) = outcome.judged.as_mut().and_then(|judged| judged.told.as_mut()) {
        told.try_settings();
    }
    if let Some(keep) = keep {
        keep.write(&mut outcome)?;
    }
    let told = outcome.judged.as_ref().and_then(|judged| judged.told.as_ref());
    if let Some((sink, told)) = html.zip(told) {
        let words = std::env::args_os().map(|word| quoted(word.as_ref()));
        let command = words.collect::<Vec<_>>().join(" ");
        sink.page(About::Recording(told.explained.report()), &told.explained.file, &command)?;
    }
    let text =
        if args.json { json::render(&outcome, &target) } else { text::render(&outcome, &target, args) };
    Ok(Answer { text, exit: outcome.verdict.exit() })
}

/// A time as people write it: `90`, `90s`, `5m`, `2h`.
fn duration(text: &str) -> Result<Duration, String> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let scale = match unit.trim() {
        "" | "s" => 1,
        "m" | "min" => 60,
        "h" => 3600,
        _ => return Err(format!("`{unit}` is not a unit; use s, m or h")),
    };
    let number: u64 = number.parse().map_err(|_| "not a time; write for example 90s".to_owned())?;
    let seconds = number.checked_mul(scale).filter(|&seconds| (1..1 << 31).contains(&seconds));
    seconds.map(Duration::from_secs).ok_or_else(|| "must be more than 0, and less than 60 years".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_people_write_them() {
        for (text, seconds) in [("90", 90), ("90s", 90), ("5m", 300), ("2h", 7200)] {
            assert_eq!(duration(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for text in ["", "0", "5 parsecs", "-1", "1e9", "99999999999999999999", "9999999999999h"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
