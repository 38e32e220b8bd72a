//! `plimsoll plan`: finds which techniques make a PyTorch program fit a GPU, without using the GPU. Each row of the
//! table that it prints is a run of the unmodified program on the simulated GPU (plimsoll-standin), with a set of
//! techniques applied from outside.
//!
//! The files, from the bottom up; a file uses only files above it:
//!
//! | file | contents |
//! |---|---|
//! | `goal.rs`, `largest.rs` | what the user wants; the largest `{BATCH}` of a set |
//! | `fit.rs`, `facts.rs` | whether a set fits; what is known about the sets that were tried |
//! | `strategy/` | which sets are tried, and which is chosen: a function of the facts |
//! | `estimate.rs`, `foresee.rs` | peaks of sets that did not run; which sets have to run for a decision |
//! | `recorded.rs` | a test of these estimates on recorded programs |
//! | `time/` | the estimate of a step's time |
//! | `hints.rs` | faster matrix products that the GPU supports |
//! | `candidate.rs`, `tried.rs` | a set that was tried, and all of them |
//! | `sentences.rs`, `json.rs` | the sentences of the report, and its values for programs |
//! | `patience.rs` | how long a search looks for a cheaper set once one fits |
//! | `search.rs` | runs the sets that the strategy requests |
//! | `check.rs` | the chosen set at the GPU's size |
//! | `offers.rs` | techniques that change what is trained, which are never chosen |
//! | `unmarked.rs` | the largest batch of a program whose command does not contain `{BATCH}` |
//! | `code.rs` | lines of code that save memory, in addition to the techniques |
//! | `micro_batch.rs` | a smaller micro-batch, for programs that make their batches themselves |
//! | `batch.rs` | the search for the largest `{BATCH}` that fits |
//! | `own.rs` | plans for `plimsoll train` |
//! | `report.rs` | the report: its sections, from which text and JSON are made |
//!
//! The techniques are in `../techniques`; the runs are in `../predict/trial.rs`.

mod batch;
mod candidate;
mod check;
mod code;
mod estimate;
mod facts;
mod fit;
mod foresee;
mod goal;
mod hints;
mod json;
mod largest;
mod micro_batch;
mod offers;
mod own;
mod patience;
#[cfg(test)]
mod recorded;
mod report;
mod search;
mod sentences;
mod strategy;
mod time;
mod tried;
mod unmarked;

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;

use self::batch::Batches;
use self::candidate::Candidate;
use self::code::CodeChange;
use self::goal::{Goal, Wish};
use self::largest::Largest;
use self::micro_batch::MicroBatch;
use self::report::report;
use self::search::Search;
use self::strategy::Decision;
use self::time::Cost;
use self::unmarked::Unmarked;
use crate::bytes;
use crate::calibrate::host;
use crate::exit::{Answer, Exit, Failure};
use crate::output;
use crate::page::quoted;
use crate::predict::assume::Assumption;
use crate::predict::gpu::{Target, Workspaces};
use crate::predict::node::Machine;
use crate::predict::trial::{End, Trial};
use crate::predict::trials::{self, Hosts, Program};
use crate::predict::view::Writes;
use crate::report::full;
use crate::techniques::Allowed;

#[derive(Args)]
#[command(after_help = AFTER_HELP, override_usage = "plimsoll plan [OPTIONS] -- COMMAND...")]
pub(crate) struct PlanArgs {
    /// The GPU: a name (`plimsoll predict --list`), a memory size (24GiB), a MIG slice (H100:3g.40gb), properties
    /// (custom:memory=48GiB,cc=8.9,sms=142), or a row of `plimsoll calibrate` [default: this machine's]
    #[arg(long, value_name = "NAME|SIZE|FILE.json")]
    gpu: Option<String>,
    /// Compute capability, such as 8.9, if --gpu is a memory size [default: that of the listed GPU with the closest size]
    #[arg(long, value_name = "X.Y")]
    cc: Option<String>,
    /// Number of GPUs that the program sees; fsdp and tensor-parallel split the model over them
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=127))]
    devices: u32,
    /// Memory that a process uses on each GPU outside PyTorch's allocator, not counting NCCL's memory; with 0, NCCL's memory is
    /// ignored too [default: computed for the GPU]
    #[arg(long, value_name = "SIZE", value_parser = bytes::parse)]
    context: Option<u64>,
    /// Memory that other programs use on each GPU [default: 0]
    #[arg(long, value_name = "SIZE", value_parser = bytes::parse)]
    others: Option<u64>,
    /// Memory of the machine that will run the program: sets that need more are not chosen [default: this machine's, unless
    /// --gpu names another GPU]
    #[arg(long, value_name = "SIZE", value_parser = bytes::parse_positive)]
    host_memory: Option<u64>,
    /// The host factor of the machine that will run the program, as `plimsoll calibrate --host` prints it there; it scales the time
    /// of steps that wait for the host [default: this machine's]
    #[arg(long, value_name = "FACTOR", value_parser = factor)]
    host_factor: Option<f64>,
    /// How to compute the workspaces of cuDNN and cuFFT
    #[arg(long, value_name = "HOW", value_enum, default_value = "library")]
    cudnn_workspace: Workspaces,
    /// What to optimize [default: fit; batch if the command contains {BATCH} and --batch gives no number]
    #[arg(long, value_enum)]
    goal: Option<Goal>,
    /// How much techniques may change losses and parameters
    #[arg(long, value_enum, default_value = "rounding")]
    numbers: Allowed,
    /// The value for {BATCH} in the command: a batch size to plan for, or a range to search for the largest that fits
    /// [default: 1..512]
    #[arg(long, value_name = "N|FROM..TO", value_parser = Batches::parse)]
    batch: Option<Batches>,
    /// Training steps of each run; the run of the chosen set continues until its reserved bytes stop growing
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(2..))]
    steps: u64,
    /// Value to use instead of zero for what this line reads from the GPU; max is the largest possible value, half is half of it
    #[arg(long, value_name = "FILE:LINE=VALUE|max|half", value_parser = Assumption::parse)]
    assume: Vec<Assumption>,
    /// Allocator settings, as in PYTORCH_ALLOC_CONF
    #[arg(long, value_name = "SETTINGS")]
    alloc_conf: Option<String>,
    /// Stop each run of the program after this time, such as 90s or 5m
    #[arg(long, value_name = "TIME", value_parser = crate::predict::args::duration)]
    timeout: Option<Duration>,
    /// Stop the search this long after the first run, and report what is known by then
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = crate::predict::args::duration)]
    within: Duration,
    #[command(flatten)]
    writes: Writes,
    /// Print sizes in bytes, not in MiB and GiB
    #[arg(long)]
    bytes: bool,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
    /// The program and its arguments, after `--`
    #[arg(value_name = "COMMAND", trailing_var_arg = true, required = true)]
    command: Vec<OsString>,
}

fn factor(text: &str) -> Result<f64, String> {
    let factor = text.parse().ok().filter(|it: &f64| (0.01..=100.0).contains(it));
    factor.ok_or_else(|| "expected a number from 0.01 to 100, such as 1.3".to_owned())
}

/// Whether the command contains {BATCH}.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Marked {
    Yes,
    No,
}

const AFTER_HELP: &str = "\
The program's own output goes to stderr. Nothing is computed, so every run takes seconds, and no file is changed. Times are
estimates. Ctrl-C ends the search and prints what is known by then.

Exit codes: 0 it fits, as it is or with the chosen set; 4 no allowed set makes it fit, or there is no answer; 5 the program
failed for another reason.

Examples:
  plimsoll plan --gpu RTX-4090 -- python train.py --batch-size 32
  plimsoll plan --gpu 24GiB --goal memory --json -- python train.py
  plimsoll plan --gpu H100 -- python train.py --batch-size {BATCH}
  plimsoll plan --gpu H100 --batch 32 -- python train.py --batch-size {BATCH}
  plimsoll plan --gpu H100 --devices 8 -- plimsoll train gpt --layers 12 --heads 12 --width 768";

/// The result of a search.
struct Plan {
    target: Target,
    goal: Goal,
    candidates: Vec<Candidate>,
    /// The index of the chosen candidate.
    chosen: Option<usize>,
    /// The best set, if it was not chosen because it only just fits: the chosen set leaves more room and takes about
    /// the same time.
    instead_of: Option<usize>,
    is_interrupted: bool,
    /// Whether the search ended because its time ran out.
    is_late: bool,
    /// The number of GPUs.
    devices: u32,
    /// The host factor of the training machine, if it was given.
    host_factor: Option<f64>,
    /// Why a chosen set did not fit in its run at the GPU's size, if that happened.
    checked: Option<String>,
    /// The chosen set's run at the GPU's size.
    planned: Option<Trial>,
    /// Techniques that change which parameters are trained; they are never chosen.
    offers: Vec<Candidate>,
    /// Hints about faster matrix products that the program does not use.
    hints: Vec<String>,
    /// Lines of code that save memory; they are never chosen.
    code: Option<CodeChange>,
    /// Runs with a smaller micro-batch, which are never chosen, or why there are none.
    micro_batch: Option<Result<MicroBatch, String>>,
    /// The searches for the largest batch that fits: for the unchanged program, and with the chosen set.
    largest: Vec<Largest>,
    /// The search for the largest batch without {BATCH}, or why it found none.
    unmarked: Option<Result<Unmarked, String>>,
    /// The value for {BATCH} in the command; if the command has no {BATCH}, the largest batch.
    batch: Option<u64>,
    /// The batch that the trials in the table used.
    table_batch: Option<u64>,
    words: Vec<OsString>,
}

/// Runs the search and returns the report for stdout.
pub(crate) fn run(args: &PlanArgs) -> Result<Answer, Failure> {
    let program = program(args, args.command.clone());
    if own::is_own(&args.command) {
        return own::run(args, &program.target()?);
    }
    let wanted = batch::wanted(args)?;
    let target = program.target()?;
    let numbers = args.numbers.numbers();
    let mut plan = match wanted {
        None => {
            let goal = args.goal.unwrap_or(Goal::Fit);
            search(&program, &target, Wish { goal, numbers }, args.within, Marked::No)?
        }
        Some(Batches::One(batch)) => {
            let goal = args.goal.unwrap_or(Goal::Fit);
            batch::plan_for(args, batch, &target, Wish { goal, numbers })?
        }
        Some(Batches::Range(from, to)) => {
            batch::plan(args, (from, to), &target, Wish { goal: Goal::Batch, numbers })?
        }
    };
    plan.words.clone_from(&args.command);
    plan.host_factor = args.host_factor;
    let size = |bytes| bytes::shown(bytes, args.bytes);
    let text = match args.json {
        true => format!("{:#}", report(&plan, false).json()),
        false => full(&report(&plan, args.bytes), &size),
    };
    Ok(Answer { text, exit: plan.exit() })
}

fn program(args: &PlanArgs, command: Vec<OsString>) -> Program {
    let own = host::factor();
    Program {
        command,
        gpu: args.gpu.clone(),
        cc: args.cc.clone(),
        devices: args.devices,
        context: args.context,
        others: args.others,
        machine: Machine::for_plan(args.host_memory, args.gpu.is_none()),
        hosts: Hosts { own, training: args.host_factor.unwrap_or(own) },
        workspaces: args.cudnn_workspace,
        steps: args.steps,
        alloc_conf: args.alloc_conf.clone(),
        timeout: args.timeout,
        writes: args.writes.clone(),
        assume: args.assume.clone(),
        records: true,
    }
}

/// Searches, and checks the chosen set at the GPU's size.
fn search(
    program: &Program,
    target: &Target,
    wish: Wish,
    within: Duration,
    marked: Marked,
) -> Result<Plan, Failure> {
    let words: Vec<_> = program.command.iter().map(|word| word.to_string_lossy()).collect();
    output::progress(&format!("planning for {}: {}", target.name, words.join(" ")));
    output::progress("running it as it is; later runs need no new imports");
    let (mut first, mut batch) = (Duration::ZERO, None);
    let mut plan = trials::during(program, target, |trials| {
        let mut search = Search::new(trials, target, program.devices, wish, within);
        let checked = search.checked()?;
        first = search.trials.first();
        let base = search.tried.candidates().first().filter(|it| it.trial.end == End::Ran);
        let is_wanted = base.is_some_and(|it| {
            wish.goal == Goal::Batch || (wish.goal == Goal::Fit && !it.trial.trains && it.caught.is_none())
        });
        let offers = search.offers()?;
        let hints = search.hints();
        batch = search.divisible()?;
        let unmarked = match marked {
            Marked::No if is_wanted && !search.is_interrupted && program.devices == 1 => {
                let chosen =
                    checked.decision.chosen.map(|place| search.tried.candidates()[place].set.clone());
                Some(search.largest_batches(chosen.as_ref())?)
            }
            _ => None,
        };
        let (is_interrupted, is_late) = (search.is_interrupted, search.is_late);
        let charged = search.trials.target().clone();
        let candidates = search.tried.into_candidates();
        let Decision { chosen, instead_of } = checked.decision;
        let planned = chosen.and_then(|place| checked.of(&candidates[place].set)).cloned();
        let mut plan = Plan {
            target: charged,
            goal: wish.goal,
            candidates,
            chosen,
            instead_of,
            is_interrupted,
            is_late,
            devices: program.devices,
            host_factor: None,
            checked: checked.objection,
            planned,
            offers,
            hints,
            code: None,
            micro_batch: None,
            unmarked: None,
            largest: Vec::new(),
            batch: None,
            table_batch: None,
            words: program.command.clone(),
        };
        if let Some(found) = unmarked {
            plan.adopt(found);
        }
        Ok(plan)
    })?;
    plan.change_code(program, target, wish, first)?;
    plan.divide_batch(program, target, wish, first, batch)?;
    Ok(plan)
}

impl Plan {
    fn chosen(&self) -> Option<&Candidate> {
        self.chosen.and_then(|place| self.candidates.get(place))
    }

    /// The chosen set's run at the GPU's size; if there is none, the run of the unchanged program.
    fn shown(&self) -> Option<&Trial> {
        self.planned.as_ref().or_else(|| Some(&self.candidates.first()?.trial))
    }

    fn instead_of(&self) -> Option<&Candidate> {
        self.instead_of.and_then(|place| self.candidates.get(place))
    }

    /// A sentence saying how much host memory the machine lacks for the unchanged program; no technique changes that.
    fn lacks_host(&self) -> Option<&str> {
        self.candidates.first()?.trial.lacks_host.as_deref()
    }

    fn base_cost(&self) -> Option<Cost> {
        self.candidates.first().and_then(|it| it.cost)
    }

    fn exit(&self) -> Exit {
        match self.candidates.first().map(|base| &base.trial.end) {
            Some(End::Failed(_)) => Exit::Program,
            Some(End::Ran)
                if self.chosen.is_some() && !self.is_interrupted && self.lacks_host().is_none() =>
            {
                Exit::Done
            }
            _ => Exit::OutOfMemory,
        }
    }

    /// The command that runs the program with a set.
    fn command(&self, candidate: &Candidate) -> String {
        let words = self.words.iter().map(|word| match (self.batch, word.to_str()) {
            (Some(batch), Some(text)) => quoted(text.replace("{BATCH}", &batch.to_string()).as_ref()),
            _ => quoted(word.as_ref()),
        });
        let command = words.collect::<Vec<_>>().join(" ");
        match candidate.set.is_empty() {
            true => command,
            false if candidate.set.needs_ranks() => {
                format!("plimsoll run --devices {} --with {} -- {command}", self.devices, candidate.set)
            }
            false => format!("plimsoll run --with {} -- {command}", candidate.set),
        }
    }
}
