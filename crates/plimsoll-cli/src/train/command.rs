//! Runs a job with its checkpoints, signals, progress and memory history, and reports the result.

use plimsoll::dist::World;
use plimsoll::memory::live::{self, Live};
use plimsoll::{Device, OutOfMemory};

use super::job::{self, Job, Outcome};
use super::parallel::end_with_others;
use super::progress::Progress;
use super::saves::Saves;
use super::settings::Settings;
use super::snapshot::{LogFile, SnapshotFile};
use super::stop::{Signal, Stop};
use super::{json, report, savings, smallest, timeline};
use crate::exit::{Answer, Exit, Failure};
use crate::output;
use crate::sink::Sink;

/// Runs the job. Returns the text for stdout.
pub(super) fn run(
    job: &mut Job,
    settings: &Settings,
    device: &Device,
    world: &World,
) -> Result<Answer, Failure> {
    let is_first = world.rank() == 0;
    let mut saves = settings.saves.open(job, device)?;
    // An existing recording is not replaced without `--force`. This is checked now rather than after
    // hours of training.
    for path in settings.snapshot.iter().chain(&settings.log) {
        if path.is_file() && !settings.saves.force {
            let message =
                format!("{} already exists: add --force to replace it, or name another file", path.display());
            return Err(Failure::new(Exit::Usage, message));
        }
    }
    let timeline = settings.timeline.as_ref().map(|path| Sink::new(path.clone(), settings.saves.force));
    if let Some(sink) = &timeline {
        if device.estimated_time().is_none() {
            let message =
                "--timeline is for a simulated GPU: add --device sim:GPU, such as sim:H100".to_owned();
            return Err(Failure::new(Exit::Usage, message));
        }
        sink.check()?;
    }
    let file = settings.snapshot.as_ref().filter(|_| is_first);
    let file = file.map(|path| SnapshotFile::open(path, settings.snapshot_entries, device)).transpose()?;
    let log =
        settings.log.as_ref().filter(|_| is_first).map(|path| LogFile::open(path, device)).transpose()?;
    let stop = Stop::on_signals()
        .map_err(|why| Failure::new(Exit::Unreadable, format!("cannot catch signals: {why}")))?;
    let live = if settings.no_live { None } else { serve(device) };
    let watched = end_with_others(world);
    let outcome = if is_first {
        let mut watch = (Progress::new(job, device), file.clone());
        let outcome = job.run(device, &mut watch, saves.as_mut(), &stop);
        watch.0.finish();
        outcome
    } else {
        job.run(device, &mut (), saves.as_mut(), &stop)
    };
    drop((live, watched));
    // If the job ran out of memory, that is reported first, even if its snapshot could not be saved.
    let written = file.as_ref().map_or(Ok(()), SnapshotFile::report).and(log.map_or(Ok(()), LogFile::finish));
    match outcome {
        Ok(outcome) => {
            written?;
            if !is_first {
                return Ok(Answer {
                    text: String::new(),
                    exit: outcome.signal.map_or(Exit::Done, Signal::exit),
                });
            }
            if let Some(sink) = timeline {
                sink.write(|out| timeline::write(&outcome.timeline, out))?;
            }
            let exit = ending(&outcome, saves.as_ref());
            let savings = match outcome.signal {
                None => savings::savings(job, &settings.device.simulated(device)),
                Some(_) => Vec::new(), // The process has to end.
            };
            let text = match settings.json {
                true => json::result(job, &outcome, &savings, file.as_ref(), saves.as_ref()),
                false => report::text(job, &outcome, &savings, saves.as_ref()),
            };
            Ok(Answer { text, exit })
        }
        Err(job::Error::Tensor(error)) => match error.out_of_memory() {
            Some(report) => {
                // This comes before the search for a limit, which takes a while.
                world.fail(&error.to_string());
                if let Err(failure) = written {
                    output::progress(&failure.message);
                }
                Err(out_of_memory(job, settings, device, report, file.as_ref()))
            }
            None => Err(with_checkpoint(error.into(), saves.as_mut())),
        },
        Err(error) => Err(error.into()),
    }
}

/// If the training ended because of another rank, adds the checkpoint to resume from.
fn with_checkpoint(mut failure: Failure, saves: Option<&mut Saves>) -> Failure {
    if let (Exit::RankLost, Some(saves)) = (failure.exit, saves) {
        // A save that only this rank writes may still succeed.
        let _ = saves.finish();
        let from = saves.last_step().map_or("there is no checkpoint yet".to_owned(), |step| {
            format!("the last checkpoint is of step {step}: --resume {}", saves.folder().display())
        });
        failure.message.push_str(&format!("\n{from}"));
    }
    failure
}

/// The exit code of a run that ended. Also reports on stderr where the run was saved.
fn ending(outcome: &Outcome, saves: Option<&Saves>) -> Exit {
    let stopped = outcome.signal.map_or(Exit::Done, Signal::exit);
    let Some(saves) = saves else { return stopped };
    match saves.failure() {
        None => {
            output::progress(&format!("saved step {} in {}", outcome.steps, saves.folder().display()));
            stopped
        }
        Some(why) => {
            output::progress(&format!("{}error:{} {why}", output::ERROR, output::RESET));
            Exit::Unreadable
        }
    }
}

/// Lets `plimsoll top` watch. If that fails, training continues.
fn serve(device: &Device) -> Option<Live> {
    let why = match live::serve(device) {
        Ok(live) => return Some(live),
        Err(why) => why,
    };
    output::progress(&format!("`plimsoll top` cannot watch this run: {why}"));
    None
}

/// The failure of a job that ran out of memory, with the smallest limit that works.
fn out_of_memory(
    job: &Job,
    settings: &Settings,
    device: &Device,
    report: &OutOfMemory,
    file: Option<&SnapshotFile>,
) -> Failure {
    let smallest = if job.group.rank() == 0 {
        output::progress("out of memory; looking for the smallest limit that works");
        smallest::limit(job, &settings.device.simulated(device), device.memory_info().total_bytes)
    } else {
        None
    };
    Failure {
        exit: Exit::OutOfMemory,
        message: report::out_of_memory(job, report, smallest.as_ref()),
        json: Some(json::out_of_memory(job, report, smallest.as_ref(), file)),
    }
}
