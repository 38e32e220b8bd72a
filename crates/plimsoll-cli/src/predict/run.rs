//! The user's program from start to end: [`Run`], in an environment that leads it to the stand-in and watches it.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use plimsoll_standin::{place, settings};
use signal_hook::SigId;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use tempfile::TempDir;

use super::PredictArgs;
use super::gpu::Target;
use super::processes;
use super::report::Report;
use crate::exit::{Exit, Failure};
use crate::output;

/// How long a program may take to end after it should have.
const GRACE: Duration = Duration::from_secs(20);

/// The file in the folder of reports that tells every watched process to end.
const STOP: &str = "stop";

/// A program that has ended.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) ended: Ended,
    /// What its processes told.
    pub(super) reports: Vec<Report>,
    /// Where their snapshots are, as long as this lives.
    _folder: TempDir,
}

/// How a program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// By itself, or after the steps that were asked for.
    Well,
    /// With this exit status.
    Status(i32),
    /// By this signal.
    Signal(i32),
    /// By the user: Ctrl-C, or a signal to end.
    Interrupted,
    /// When its time was up.
    Expired,
}

impl Run {
    /// Runs a command to its end.
    ///
    /// # Errors
    /// What keeps it from starting; a folder that cannot be made; reports that cannot be read.
    pub(super) fn of(
        args: &PredictArgs,
        command: &[OsString],
        target: &Target,
        standin: &Path,
    ) -> Result<Run, Failure> {
        let unreadable =
            |why: io::Error| Failure::new(Exit::Unreadable, format!("a temporary folder: {why}"));
        // Before there is a folder that one of them would leave behind.
        let signals = Signals::hear().map_err(unreadable)?;
        let folder = tempfile::Builder::new().prefix("plimsoll-predict-").tempdir().map_err(unreadable)?;
        let place = Folder::laid_out(folder.path(), standin).map_err(unreadable)?;
        let words: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
        output::progress(&format!("running on an imitation of {}: {}", target.name, words.join(" ")));
        let stop = place.reports.join(STOP);
        let mut child = prepared(args, command, target, &place);
        let ended = run(&mut child, args.timeout, &stop, &signals).map_err(|why| {
            Failure::new(
                Exit::Program,
                format!("{} cannot be started: {why}", words.first().map_or("", |it| it)),
            )
        })?;
        let reports = Report::all(&place.reports, &place.shared).map_err(unreadable)?;
        Ok(Run { ended, reports, _folder: folder })
    }
}

/// The parts of the temporary folder.
struct Folder {
    /// The stand-in under the names that the loader looks for.
    standin: std::path::PathBuf,
    /// What Python finds first.
    python: std::path::PathBuf,
    /// What processes write.
    reports: std::path::PathBuf,
    /// What of each GPU every process has.
    shared: std::path::PathBuf,
}

impl Folder {
    fn laid_out(folder: &Path, library: &Path) -> io::Result<Folder> {
        let [standin, python, reports, shared] =
            ["standin", "python", "reports", "shared"].map(|name| folder.join(name));
        place::lay_out(&standin, library)?;
        std::fs::create_dir(&python)?;
        std::fs::write(python.join("sitecustomize.py"), include_str!("watch.py"))?;
        std::fs::create_dir(&reports)?;
        std::fs::create_dir(&shared)?;
        Ok(Folder { standin, python, reports, shared })
    }
}

/// The command in its environment. Its stdout is our stderr, so that ours holds the answer alone.
fn prepared(args: &PredictArgs, command: &[OsString], target: &Target, place: &Folder) -> Command {
    let mut words = command.iter();
    let mut child = Command::new(words.next().map_or_else(OsString::new, Clone::clone));
    child.args(words);
    child.envs(place::environment(&place.standin, |name| std::env::var_os(name)));
    child.envs(target.environment());
    if args.rank.is_none() {
        child.env(settings::SHARED, &place.shared);
    }
    // The surroundings' choice is one of real devices.
    child.env_remove("CUDA_VISIBLE_DEVICES");
    let path = match std::env::var_os("PYTHONPATH").filter(|path| !path.is_empty()) {
        Some(path) => [place.python.as_os_str(), &path].join(":".as_ref()),
        None => place.python.clone().into_os_string(),
    };
    child.env("PYTHONPATH", path);
    if let Some(settings) = &args.alloc_conf {
        // The old name, for versions that know no other.
        child.env("PYTORCH_ALLOC_CONF", settings).env("PYTORCH_CUDA_ALLOC_CONF", settings);
    }
    child.env("PLIMSOLL_PREDICT_FOLDER", &place.reports).env(settings::NOTICES, &place.reports);
    child.env("PLIMSOLL_PREDICT_STEPS", if args.whole { 0 } else { args.steps }.to_string());
    if let Some(rank) = args.rank {
        // As torchrun tells it on a machine that has all the ranks.
        let (rank, size) = (rank.to_string(), args.devices.to_string());
        child.env("RANK", &rank).env("LOCAL_RANK", &rank).env("GROUP_RANK", "0");
        child.env("WORLD_SIZE", &size).env("LOCAL_WORLD_SIZE", &size);
        child.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", "29500");
        child.env("PLIMSOLL_PREDICT_ALONE", "1");
    }
    if let Ok(stderr) = io::stderr().as_fd().try_clone_to_owned() {
        child.stdout(Stdio::from(stderr));
    }
    child
}

/// Starts it and waits. When its time is up, or the user wants an end, its processes are told, and end once they have
/// told what they saw; one that does not is killed some time later, or at the user's second wish. Nothing that it
/// started outlives it.
fn run(
    command: &mut Command,
    timeout: Option<Duration>,
    stop: &Path,
    signals: &Signals,
) -> io::Result<Ended> {
    processes::adopt()?;
    let began = Instant::now();
    let mut child = command.spawn()?;
    let mut stopped = None;
    let status = loop {
        let is_wished = signals.heard();
        if let Some(status) = child.try_wait()? {
            break status;
        }
        let is_up = timeout.is_some_and(|timeout| began.elapsed() >= timeout);
        match stopped {
            None if is_wished || is_up => {
                let why = if is_wished { Ended::Interrupted } else { Ended::Expired };
                stopped = Some((why, Instant::now()));
                File::create(stop)?;
            }
            Some((_, at)) if is_wished || at.elapsed() > GRACE => {
                // One that has ended in between cannot be killed, and need not be.
                let _ = child.kill();
                break child.wait()?;
            }
            _ => sleep(Duration::from_millis(10)),
        }
    };
    processes::end_all();
    let wished = signals.heard().then_some(Ended::Interrupted);
    let stopped = stopped.map(|(why, _)| why).or(wished);
    Ok(match (stopped, status.code(), status.signal()) {
        (Some(why), ..) => why,
        (None, Some(0), _) => Ended::Well,
        (None, Some(code), _) => Ended::Status(code),
        (None, None, signal) => Ended::Signal(signal.unwrap_or(0)),
    })
}

/// The signals by which a user ends a program: heard, and not obeyed at once, while this lives.
struct Signals {
    heard: Arc<AtomicBool>,
    hooks: Vec<SigId>,
}

impl Signals {
    fn hear() -> io::Result<Signals> {
        let heard = Arc::new(AtomicBool::new(false));
        let hook = |signal| signal_hook::flag::register(signal, Arc::clone(&heard));
        let hooks = [SIGINT, SIGTERM, SIGHUP].into_iter().map(hook).collect::<io::Result<_>>()?;
        Ok(Signals { heard, hooks })
    }

    /// Whether there was one since this was asked last.
    fn heard(&self) -> bool {
        self.heard.swap(false, Ordering::Relaxed)
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        self.hooks.drain(..).for_each(|hook| {
            signal_hook::low_level::unregister(hook);
        });
    }
}
