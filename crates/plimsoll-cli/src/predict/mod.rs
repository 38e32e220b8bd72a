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

mod ample;
mod analysis;
mod answer;
pub(crate) mod args;
pub(crate) mod assume;
mod brief;
mod cut_loops;
mod find;
pub(crate) mod gpu;
mod json;
mod keep;
mod launch;
mod limits;
mod lines;
pub(crate) mod machine;
mod placeholder;
pub(crate) mod planner;
pub(crate) mod processes;
pub(crate) mod reads;
pub(crate) mod recording;
mod run;
pub(crate) mod search;
mod sentences;
mod served;
mod text;
mod traces;
pub(crate) mod trial;
pub(crate) mod trials;
pub(crate) mod view;
mod warnings;

use plimsoll_alloc::Config;
use plimsoll_trace::render::html::About;

use self::answer::Outcome;
pub(crate) use self::args::PredictArgs;
use self::keep::Keep;
use self::launch::ended::Ended;
use self::launch::session::Session;
use self::run::Run;
use crate::exit::{Answer, Exit, Failure};
use crate::output;
use crate::page::quoted;
use crate::sink::Sink;

/// The most GPUs that PyTorch can number in one process: its `DeviceIndex` is a signed 8-bit integer.
const MOST_DEVICES: u32 = 127;

/// Runs the program; returns the report for stdout.
pub(crate) fn run(args: &PredictArgs) -> Result<Answer, Failure> {
    if args.list {
        return Ok(Answer::from(gpu::list(args.shown.bytes)));
    }
    if args.rank.is_some_and(|rank| u64::from(rank) >= u64::from(args.nodes) * u64::from(args.devices)) {
        let message = "--rank must be less than --nodes times --devices (ranks count from 0)";
        return Err(Failure::new(Exit::Usage, message));
    }
    if args.devices == 1 && args.with.as_ref().is_some_and(|set| set.has("fsdp")) {
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
    let target = args.target()?;
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
    let mut outcome = Outcome::of(&run.job, &target)?;
    outcome.traces = run.traces.clone();
    outcome.find_need(args, &target, &session, &args.assume)?;
    outcome.replay_without();
    if !args.assume.is_empty() && run.job.ended != Ended::Interrupted {
        output::progress("running again with zero instead of the --assume values");
        let run = Run::of(args, &args.command, &target, &session, &[])?;
        outcome.without_assumptions = Some(Box::new(Outcome::of(&run.job, &target)?));
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
