//! `plimsoll run`: runs a PyTorch program with techniques applied from outside, and watches its memory. `attend.py`
//! applies the techniques and watches the memory inside the program's Python; `live.py` serves the figures from
//! `gauges.py` to `plimsoll top`; `check.py` and `check.rs` compare the peak with a plan's; `ranks.rs` starts a rank
//! for each GPU. The Python files are in `../../python/plimsoll/_run`.
//!
//! The program keeps its own output, signals and exit code. This process waits until the program ends (`beside.rs`). With
//! techniques, each process that loads PyTorch confirms that they are applied (`answers.rs`). If a signal ends the
//! program, this process explains why (`ends.rs`). With `--no-watch` and without techniques, this process replaces
//! itself with the program (`exec`) instead.

mod answers;
mod beside;
mod check;
mod ending;
mod ends;
mod ranks;

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use clap::Args;

use crate::bytes;
use crate::exit::{Answer, Exit, Failure};
use crate::inject::{self, Verb, cache};
use crate::page::quoted;
use crate::techniques::{self, Set, Technique};
use crate::top;

use self::answers::Answers;
use self::check::Plan;

#[derive(Args)]
#[command(after_help = after_help(), override_usage = "plimsoll run [OPTIONS] -- COMMAND...")]
pub(crate) struct RunArgs {
    /// Apply techniques that use less memory, such as checkpoint=4,chunked-loss
    #[arg(long, value_name = "SET", value_parser = Set::parse)]
    with: Option<Set>,
    /// Start a single-process program on N GPUs, one process each, for --with fsdp or tensor-parallel
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=127))]
    devices: u32,
    /// Like --devices, but also without fsdp or tensor-parallel (used by `predict`)
    #[arg(long, value_name = "N", hide = true)]
    ranks: Option<u32>,
    /// Do not record the memory history, and do not explain a failure
    #[arg(long)]
    no_watch: bool,
    /// Record only the allocator's state, without events and stacks: cheaper, but the report of a failure shows no source lines
    #[arg(long, conflicts_with = "no_watch")]
    light: bool,
    /// Record Python stacks in every step; by default, if stacks cost over 4 % of a step, only in every 16th
    #[arg(long, conflicts_with_all = ["light", "no_watch"])]
    all_stacks: bool,
    /// Limit PyTorch's allocator to this much memory on each GPU, such as 22GiB, to imitate a smaller GPU
    #[arg(long, value_name = "SIZE", value_parser = bytes::parse_positive)]
    memory_limit: Option<u64>,
    /// Emit NVTX ranges for each layer, backward pass and optimizer step, for Nsight Systems
    #[arg(long)]
    nvtx: bool,
    /// Folder for snapshots, written when memory runs out
    #[arg(long, value_name = "DIR", default_value = ".")]
    snapshots: PathBuf,
    /// Apply the set of a plan (`plimsoll plan --json`), and at the end compare the planned peak with the measured
    /// one
    #[arg(long, value_name = "PLAN.json")]
    check: Option<PathBuf>,
    /// The program's measurements, to compare with the plan (passed by `check.py`)
    #[arg(long, value_name = "FILE", hide = true, requires = "check")]
    measured: Option<PathBuf>,
    /// Serve the metrics of `plimsoll top` to Prometheus while the program runs [default: 127.0.0.1:9466]
    #[arg(long, value_name = "ADDR", num_args = 0..=1, default_missing_value = top::ADDRESS, value_parser = top::address,
          conflicts_with = "no_watch")]
    prometheus: Option<std::net::SocketAddr>,
    /// The program and its arguments, after `--`
    #[arg(value_name = "COMMAND", trailing_var_arg = true, required_unless_present = "measured")]
    command: Vec<OsString>,
}

fn after_help() -> String {
    format!(
        "\
The program keeps its own output and exit code. With only --no-watch, nothing is injected. If a technique
cannot be applied, the program ends with exit code 2 before any parameter changes.

Techniques, and what they do to losses and parameters:
{}
Examples:
  plimsoll run --with checkpoint,chunked-loss -- python train.py
  plimsoll run --no-watch --with expandable -- torchrun --nproc-per-node 8 train.py
  plimsoll run --devices 2 --with fsdp,checkpoint -- python train.py
  plimsoll run --check plan.json -- python train.py
  nsys profile --cuda-memory-usage=true plimsoll run --nvtx -- python train.py
  plimsoll run --memory-limit 22GiB --with checkpoint -- python train.py",
        techniques::help()
    )
}

/// Runs the program, or replaces this process with it; returns only if the program cannot be started.
pub(crate) fn run(args: &RunArgs) -> Result<Answer, Failure> {
    let plan = args.check.as_deref().map(Plan::read).transpose()?;
    if let Some((plan, measured)) = plan.as_ref().zip(args.measured.as_ref()) {
        return plan.compared(measured).map(Answer::from);
    }
    let prepared = || {
        let mut words = args.command.iter();
        let mut command = Command::new(words.next().map_or_else(OsString::new, Clone::clone));
        command.args(words);
        command
    };
    if let Some(number) = args.ranks {
        return ranks::run(number, None, || Ok(prepared()));
    }
    let set = wanted(args.with.as_ref(), plan.as_ref())?;
    ranks::check(args.devices, set.as_ref())?;
    let attended = || {
        let mut command = prepared();
        if set.is_some() || !args.no_watch || plan.is_some() || args.memory_limit.is_some() || args.nvtx {
            attend(args, set.as_ref(), &mut command)?;
        }
        Ok(command)
    };
    let mut command = attended()?;
    if let Some(address) = args.prometheus {
        top::beside(address)?;
    }
    // For expandable segments alone, an environment variable is enough.
    let answers = set.as_ref().filter(|set| set.to_string() != "expandable").map(Answers::of).transpose()?;
    match answers {
        _ if args.devices > 1 => return ranks::run(args.devices, answers, attended),
        None if args.no_watch => {}
        answers => return beside::run(&mut command, answers, !args.no_watch),
    }
    let why = command.exec();
    let name = args.command.first().map(|word| word.to_string_lossy().into_owned()).unwrap_or_default();
    Err(Failure::new(
        Exit::Program,
        format!("{name} cannot be started: {why}{}", inject::interpreter_hint(&name)),
    ))
}

/// The techniques of --with, or of the plan.
fn wanted(with: Option<&Set>, plan: Option<&Plan>) -> Result<Option<Set>, Failure> {
    match (with, plan) {
        (Some(with), Some(plan)) if *with != plan.set => {
            let planned = if plan.set.is_empty() { "no technique".to_owned() } else { plan.set.to_string() };
            let message = format!("--with {with}: the plan chose {planned}; leave --with out, or plan again");
            Err(Failure::new(Exit::Usage, message))
        }
        (None, Some(plan)) => Ok(Some(plan.set.clone()).filter(|set| !set.is_empty())),
        (with, _) => Ok(with.cloned()),
    }
}

/// Sets the variables with which the program's Python loads `attend.py`.
fn attend(args: &RunArgs, set: Option<&Set>, command: &mut Command) -> Result<(), Failure> {
    let unreadable = |why: io::Error| {
        Failure::new(Exit::Unreadable, format!("cannot create the folder for plimsoll's Python files: {why}"))
    };
    // The files are in the cache, because this process replaces itself with the program and cannot remove them later.
    let folder = cache::installed("run", &inject::files(&inject::entry(Verb::Run)), None)?;
    command.env("PYTHONPATH", inject::python_path(&folder));
    if let Some(set) = set {
        command.env("PLIMSOLL_WITH", set.json());
        if set.has(Technique::Expandable) {
            let settings = inject::expandable(None);
            // The second variable is the old name of the first, for older versions of PyTorch.
            command.env("PYTORCH_ALLOC_CONF", &settings).env("PYTORCH_CUDA_ALLOC_CONF", settings);
        }
    } else {
        command.env_remove("PLIMSOLL_WITH");
    }
    if let Ok(program) = std::env::current_exe() {
        command.env("PLIMSOLL_RUN_PROGRAM", program);
    }
    let words: Vec<String> = args.command.iter().map(|word| quoted(word.as_ref())).collect();
    command.env("PLIMSOLL_RUN_COMMAND", words.join(" "));
    match args.memory_limit {
        Some(bytes) => command.env("PLIMSOLL_RUN_LIMIT", bytes.to_string()),
        None => command.env_remove("PLIMSOLL_RUN_LIMIT"),
    };
    match args.nvtx {
        true => command.env("PLIMSOLL_RUN_NVTX", "1"),
        false => command.env_remove("PLIMSOLL_RUN_NVTX"),
    };
    match &args.check {
        Some(plan) => command.env("PLIMSOLL_RUN_CHECK", std::path::absolute(plan).map_err(unreadable)?),
        None => command.env_remove("PLIMSOLL_RUN_CHECK"),
    };
    if args.no_watch {
        command.env_remove("PLIMSOLL_RUN_WATCH");
        return Ok(());
    }
    let snapshots = std::path::absolute(&args.snapshots).map_err(unreadable)?;
    if !snapshots.is_dir() {
        let message = format!("--snapshots {}: not a folder", args.snapshots.display());
        return Err(Failure::new(Exit::Unreadable, message));
    }
    let watch = match (args.light, args.all_stacks || args.check.is_some()) {
        (true, _) => "light",
        (false, true) => "all",
        (false, false) => "full",
    };
    command.env("PLIMSOLL_RUN_WATCH", watch);
    command.env("PLIMSOLL_RUN_SNAPSHOTS", snapshots);
    Ok(())
}
