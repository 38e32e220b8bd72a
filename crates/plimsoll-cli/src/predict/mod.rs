//! `plimsoll predict`: runs a PyTorch program without a GPU, and reports how much GPU memory it needs.
//!
//! PyTorch and its allocator are real; the GPU is simulated (`plimsoll-standin`).
//!
//! Data flows in one direction: launch → recording → analysis → answer → report. Each step passes one type to the
//! next, and uses nothing from later steps:
//!
//! | step | passes on |
//! |---|---|
//! | `launch/` | how the program ended ([`Ended`]), and the files that it would have written |
//! | `recording/` | what its processes report ([`Job`](recording::job::Job)) |
//! | `analysis/` | the process that decides the verdict, and the verdict ([`Judged`](analysis::judged::Judged), [`Verdict`](analysis::verdict::Verdict)) |
//! | `answer.rs` | the answer about a run ([`Outcome`]) |
//! | `render/` | the report, from which the texts, the JSON and the page are made |
//!
//! The files, from the bottom up; a file uses only files above it:
//!
//! | file | contents |
//! |---|---|
//! | `assume.rs`, `placeholder.rs`, `search.rs` | values from `--assume`; the name that `--find` replaces; the search for its largest value |
//! | `node.rs`, `machine.rs`, `gpu.rs` | the machine that will run the program; the GPU of this machine; the simulated GPU, and its memory for the allocator |
//! | `planner.rs` | runs this program as cuDNN's planner |
//! | `view/` | the file system as the program sees it: its writes do not reach the disk |
//! | `args.rs` | the options |
//! | `launch/` | starts the program on the simulated GPU, and waits for its end |
//! | `recording/` | the reports and files that the program left |
//! | `run.rs` | one run: the environment with the hooks, the launch, the recording |
//! | `analysis/` | the conclusions from the recording |
//! | `answer.rs` | the answer about a run |
//! | `keep.rs` | `--snapshot` |
//! | `render/` | the report |
//! | `ample.rs`, `stakes.rs` | a second run: with more memory than the GPU has; with the largest values in place of unknown ones |
//! | `savings.rs` | further runs, with lines that free memory that is not needed at the peak |
//! | `trial.rs`, `served.rs`, `trials.rs` | runs of the same program with several sets of techniques, for `plan` |
//! | `find.rs` | `--find` |
//!
//! The hooks run inside the user's processes: `../../python/plimsoll/_predict`. `start.py` is the entry point, and
//! `watch.py` writes each process's report:
//!
//! | file | contents |
//! |---|---|
//! | `start.py`, `watch.py`, `marks.py`, `settings.py`, `device.py`, `compiled.py`, `failure.py` | the hooks, and the report |
//! | `optimizers.py` | the optimizer steps that count |
//! | `reads.py`, `dataflow.py`, `source.py`, `names.py` | reads of device values: where they are, and what the values decide |
//! | `shadows.py`, `shadow.py`, `bounds.py`, `experts.py`, `boxes.py` | values that are known without computing; equal shares of experts; the boxes that `nms` keeps |
//! | `finish.py`, `epochs.py`, `loops.py`, `batches.py`, `growth.py`, `levels.py`, `late_growth.py`, `lengths.py`, `outer.py`, `rounds.py`, `capacity.py` | the code after the steps; the training's largest batch; growth in loops that are cut short, and the outer loop or the full container that ends it |
//! | `late.py`, `lines.py`, `conditions.py`, `heavy.py`, `behind.py`, `after.py` | code of the training loop, and after it, that has not run yet: when it will run, and whether it needs memory |
//! | `view.py`, `renames.py`, `space.py`, `uncopied.py` | the private view of the file system in a fork; files that the program renames; the free space that it sees; files that an overlay cannot copy |
//! | `warnings.py`, `graphs.py` | memory that depends on unknown values; graphs that no backward pass uses |
//! | `sparse.py`, `network.py` | saved models that take no space; the hosts that the program contacts |
//! | `../_waste/` | memory at the peak that is not read again, and the line that frees it |
//! | `patches.py` | patches of PyTorch, so that a program takes the same path as on a GPU |
//! | `serve.py`, `questions.py` | the process that serves trials |
//!
//! The program's own output goes to stderr, as progress messages do: stdout contains only the answer.

mod ample;
pub(crate) mod analysis;
mod answer;
pub(crate) mod args;
pub(crate) mod assume;
mod find;
pub(crate) mod gpu;
mod keep;
mod launch;
pub(crate) mod machine;
pub(crate) mod node;
mod placeholder;
pub(crate) mod planner;
pub(crate) mod recording;
pub(crate) mod render;
mod run;
mod savings;
pub(crate) mod search;
mod served;
mod stakes;
pub(crate) mod trial;
pub(crate) mod trials;
pub(crate) mod view;

use std::time::Instant;

use plimsoll_alloc::Config;
use plimsoll_trace::render::html::About;

use self::answer::Outcome;
pub(crate) use self::args::PredictArgs;
use self::keep::Keep;
use self::launch::ended::Ended;
use self::launch::session::Session;
use self::render::report::{predicted, report};
use self::render::sentences;
use self::run::Run;
use crate::exit::{Answer, Exit, Failure};
use crate::output;
use crate::page::quoted;
use crate::report::{full, short};
use crate::shown::Shown;
use crate::sink::Sink;

/// The maximum number of GPUs that PyTorch can number in one process: its `DeviceIndex` is a signed 8-bit integer.
const MOST_DEVICES: u32 = 127;

/// Runs the program. Returns the report for stdout.
pub(crate) fn run(args: &PredictArgs) -> Result<Answer, Failure> {
    if args.list {
        return Ok(Answer::from(gpu::list(args.shown.bytes)));
    }
    if args.rank.is_some_and(|rank| u64::from(rank) >= u64::from(args.nodes) * u64::from(args.devices)) {
        let message = "--rank must be less than --nodes times --devices (ranks count from 0)";
        return Err(Failure::new(Exit::Usage, message));
    }
    if args.devices == 1 && args.with.as_ref().is_some_and(|set| set.needs_ranks()) {
        return Err(Failure::new(
            Exit::Usage,
            "--with fsdp or tensor-parallel needs several GPUs: --devices N",
        ));
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
    let target = args.target()?;
    if let Some(alike) = target.assumed_from {
        output::progress(&format!(
            "{} without --cc: assuming compute capability {}, that of the {alike}, the listed GPU closest in size",
            target.options, target.capability
        ));
    }
    if let Some(assumed) = &target.assumed {
        output::progress(assumed);
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
    let began = Instant::now();
    let run = Run::of(args, &args.command, &target, &session, &args.assume)?;
    let took = began.elapsed();
    let mut outcome = Outcome::of(&run.job, &target)?;
    outcome.traces = run.traces.clone();
    outcome.find_need(args, &target, &session, &args.assume)?;
    let target = outcome.target(&target);
    outcome.replay_without();
    if !args.assume.is_empty() && run.job.ended != Ended::Interrupted {
        output::progress("running again with zero instead of the --assume values");
        let run = Run::of(args, &args.command, &target, &session, &[])?;
        outcome.without_assumptions = Some(Box::new(Outcome::of(&run.job, &target)?));
    }
    if took <= stakes::LONGEST {
        outcome.find_stakes(args, &target, &session)?;
    }
    outcome.find_savings(args, &target, &session, took);
    if let Some(analysis) = outcome.judged.as_mut().and_then(|judged| judged.analysis.as_mut()) {
        analysis.try_settings(target.others_bytes);
    }
    if let Some(keep) = keep {
        let found = predicted(&outcome);
        keep.write(&mut outcome, found.as_ref())?;
    }
    let plain = Shown { bytes: false, ..args.shown };
    let analysis = outcome.judged.as_ref().and_then(|judged| judged.analysis.as_ref());
    if let Some((sink, analysis)) = html.zip(analysis) {
        let words = std::env::args_os().map(|word| quoted(word.as_ref()));
        let command = words.collect::<Vec<_>>().join(" ");
        let answer = report(&outcome, &target, args, plain);
        let title = args.command.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
        sink.page(About::Prediction(analysis.explained.report(), &answer), &title, &command)?;
    }
    let size = |bytes: u64| args.shown.size(bytes);
    let text = match (args.json, args.verdict_only, args.full) {
        (true, ..) => format!("{:#}", report(&outcome, &target, args, plain).json()),
        (_, true, _) => sentences::verdict(&outcome, &target, size),
        (.., true) => full(&report(&outcome, &target, args, args.shown), &size),
        _ => short(&report(&outcome, &target, args, args.shown), &size),
    };
    Ok(Answer { text, exit: outcome.exit() })
}
