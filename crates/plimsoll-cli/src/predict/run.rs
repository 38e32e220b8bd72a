//! The user's program from start to end: [`Run`], in an environment that leads it to the stand-in and watches it.

use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use plimsoll_standin::{place, settings};
use signal_hook::consts::{SIGINT, SIGTERM};
use tempfile::TempDir;

use super::PredictArgs;
use super::gpu::Target;
use super::report::Report;
use crate::exit::{Exit, Failure};
use crate::output;

/// How long a program may take to end after it should have.
const GRACE: Duration = Duration::from_secs(20);

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
    /// By the user's Ctrl-C.
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
        let folder = tempfile::Builder::new().prefix("plimsoll-predict-").tempdir().map_err(unreadable)?;
        let place = Folder::laid_out(folder.path(), standin).map_err(unreadable)?;
        let words: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
        output::progress(&format!("running on an imitation of {}: {}", target.name, words.join(" ")));
        let ended = run(&mut prepared(args, command, target, &place), args.timeout).map_err(|why| {
            Failure::new(
                Exit::Program,
                format!("{} cannot be started: {why}", words.first().map_or("", |it| it)),
            )
        })?;
        let reports = Report::all(&place.reports).map_err(unreadable)?;
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
}

impl Folder {
    fn laid_out(folder: &Path, library: &Path) -> io::Result<Folder> {
        let [standin, python, reports] = ["standin", "python", "reports"].map(|name| folder.join(name));
        place::lay_out(&standin, library)?;
        std::fs::create_dir(&python)?;
        std::fs::write(python.join("sitecustomize.py"), include_str!("watch.py"))?;
        std::fs::create_dir(&reports)?;
        Ok(Folder { standin, python, reports })
    }
}

/// The command in its environment. Its stdout is our stderr, so that ours holds the answer alone.
fn prepared(args: &PredictArgs, command: &[OsString], target: &Target, place: &Folder) -> Command {
    let mut words = command.iter();
    let mut child = Command::new(words.next().map_or_else(OsString::new, Clone::clone));
    child.args(words);
    child.envs(place::environment(&place.standin, |name| std::env::var_os(name)));
    child.envs(target.environment());
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
    if let Some(timeout) = args.timeout {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        child.env("PLIMSOLL_PREDICT_DEADLINE", (now + timeout).as_secs_f64().to_string());
    }
    if let Ok(stderr) = io::stderr().as_fd().try_clone_to_owned() {
        child.stdout(Stdio::from(stderr));
    }
    child
}

/// Starts it and waits. Its processes end by themselves when their time is up, so that they can tell what they
/// saw; one that does not is killed some time later. Ctrl-C reaches it as it reaches us.
fn run(command: &mut Command, timeout: Option<Duration>) -> io::Result<Ended> {
    let [interrupted, terminated] = [Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false))];
    let hooks = [
        signal_hook::flag::register(SIGINT, Arc::clone(&interrupted))?,
        signal_hook::flag::register(SIGTERM, Arc::clone(&terminated))?,
    ];
    let began = Instant::now();
    let mut child = command.spawn()?;
    let mut until = timeout.map(|timeout| began + timeout + GRACE);
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if interrupted.load(Ordering::Relaxed) {
            until = until.or(Some(Instant::now() + GRACE));
        }
        if terminated.load(Ordering::Relaxed) || until.is_some_and(|until| Instant::now() > until) {
            break killed(&mut child)?;
        }
        sleep(Duration::from_millis(10));
    };
    hooks.into_iter().for_each(|hook| {
        signal_hook::low_level::unregister(hook);
    });
    let is_up = timeout.is_some_and(|timeout| began.elapsed() >= timeout);
    let stopped = interrupted.load(Ordering::Relaxed) || terminated.load(Ordering::Relaxed);
    Ok(match (status.code(), status.signal()) {
        (Some(0), _) => Ended::Well,
        _ if stopped => Ended::Interrupted,
        _ if is_up => Ended::Expired,
        (Some(code), _) => Ended::Status(code),
        (None, signal) => Ended::Signal(signal.unwrap_or(0)),
    })
}

fn killed(child: &mut Child) -> io::Result<ExitStatus> {
    // One that has ended in between cannot be killed, and need not be.
    let _ = child.kill();
    child.wait()
}
