//! Runs the user's program: [`Run`], in an environment that loads the stand-in and the Python hooks.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use plimsoll_standin::{place, settings};
use tempfile::TempDir;

use super::PredictArgs;
use super::assume::Assumption;
use super::gpu::Target;
use super::report::Report;
use super::signals::Signals;
use super::{processes, standin, surroundings};
use crate::exit::{Exit, Failure};
use crate::guard::Guard;
use crate::inject;
use crate::output;

/// How long a program may take to exit after it was asked to.
const GRACE: Duration = Duration::from_secs(20);

/// The file in the report folder that asks every process to exit.
const STOP: &str = "stop";

/// sitecustomize.py, which every Python runs first: how modules are hooked, the patches of PyTorch, then watch.py, whose last
/// lines install all.
const WATCH: &str = concat!(
    include_str!("../inject/imports.py"),
    "\n\n",
    include_str!("patches.py"),
    "\n\n",
    include_str!("watch.py")
);

/// Modules that watch.py loads, by name.
const MODULES: [(&str, &str); 14] = [
    ("dataflow", include_str!("dataflow.py")),
    ("names", include_str!("names.py")),
    ("reads", include_str!("reads.py")),
    ("shadows", include_str!("shadows.py")),
    ("experts", include_str!("experts.py")),
    ("bounds", include_str!("bounds.py")),
    ("failure", include_str!("failure.py")),
    ("finish", include_str!("finish.py")),
    ("loops", include_str!("loops.py")),
    ("growth", include_str!("growth.py")),
    ("warnings", include_str!("warnings.py")),
    ("saves", include_str!("saves.py")),
    ("serve", include_str!("serve.py")),
    ("questions", include_str!("questions.py")),
];

/// A program that has ended.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) ended: Ended,
    /// The reports of its processes.
    pub(super) reports: Vec<Report>,
    /// The folder with their snapshots, deleted on drop.
    _folder: TempDir,
}

/// How a program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// By itself, or after the requested steps.
    Well,
    /// With this exit status.
    Status(i32),
    /// By this signal.
    Signal(i32),
    /// By the user: Ctrl-C or SIGTERM.
    Interrupted,
    /// By --timeout.
    Expired,
}

/// The resources that all runs share.
pub(super) struct Session {
    /// The shared library.
    standin: PathBuf,
    /// The parent of the runs' folders.
    folder: TempDir,
    signals: Signals,
}

impl Session {
    /// Finds the shared library, creates the folder, and starts to catch signals.
    ///
    /// # Errors
    /// No library, or another version of it; a folder that cannot be created.
    pub(super) fn begin() -> Result<Session, Failure> {
        let standin = standin::find()?;
        let folder =
            tempfile::Builder::new().prefix("plimsoll-predict-").tempdir().map_err(|why| unreadable(&why))?;
        let signals = Signals::hear(folder.path().to_path_buf()).map_err(|why| unreadable(&why))?;
        Ok(Session { standin, folder, signals })
    }

    /// Ends the run of another thread, as Ctrl-C does.
    pub(super) fn interrupt(&self) {
        self.signals.raise();
    }

    /// The folder, deleted on drop.
    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }
}

impl Run {
    /// Runs a command to its end.
    ///
    /// # Errors
    /// The command cannot be started or waited for; a folder cannot be created; a report cannot be read.
    pub(super) fn of(
        args: &PredictArgs,
        command: &[OsString],
        target: &Target,
        session: &Session,
        assumptions: &[Assumption],
    ) -> Result<Run, Failure> {
        let folder = tempfile::Builder::new()
            .prefix("run-")
            .tempdir_in(&session.folder)
            .map_err(|why| unreadable(&why))?;
        let place = Folder::laid_out(folder.path(), &session.standin).map_err(|why| unreadable(&why))?;
        let words: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
        if args.variables.is_empty() {
            output::progress(&format!("running on a stand-in for {}: {}", target.name, words.join(" ")));
        }
        let stop = place.reports.join(STOP);
        let mut child = prepared(args, command, target, &place);
        if !assumptions.is_empty() {
            let assumed = serde_json::to_string(assumptions).unwrap_or_default();
            child.env("PLIMSOLL_PREDICT_ASSUME", assumed);
        }
        child.envs(args.variables.iter().cloned());
        // The paths of this folder are in the variables of all processes.
        let guard = Guard::of(session.folder.path().as_os_str());
        let ended = run(&mut child, args.timeout, &stop, &session.signals).map_err(|why| {
            let name = words.first().map_or("", |it| it);
            Failure::new(Exit::Program, format!("{name} {why}{}", inject::interpreter_hint(name)))
        })?;
        guard.dismiss();
        let reports = Report::all(&place.reports, &place.shared).map_err(|why| unreadable(&why))?;
        Ok(Run { ended, reports, _folder: folder })
    }
}

fn unreadable(why: &io::Error) -> Failure {
    Failure::new(Exit::Unreadable, format!("a temporary folder: {why}"))
}

/// The parts of the temporary folder.
struct Folder {
    /// Links to the stand-in, under the names that the loader looks for.
    standin: PathBuf,
    /// The first folder of PYTHONPATH.
    python: PathBuf,
    /// The processes' reports.
    reports: PathBuf,
    /// Every process's use of each GPU.
    shared: PathBuf,
    /// The variables that point to caches and programs in the folder.
    surroundings: Vec<(&'static str, OsString)>,
}

impl Folder {
    fn laid_out(folder: &Path, library: &Path) -> io::Result<Folder> {
        let [standin, python, reports, shared] =
            ["standin", "python", "reports", "shared"].map(|name| folder.join(name));
        place::lay_out(&standin, library)?;
        inject::lay_out(&python, WATCH, &MODULES)?;
        std::fs::create_dir(&reports)?;
        std::fs::create_dir(&shared)?;
        let surroundings = surroundings::laid_out(folder, |name| std::env::var_os(name))?;
        Ok(Folder { standin, python, reports, shared, surroundings })
    }
}

/// The command in its environment. Its stdout goes to our stderr, so that our stdout contains only the answer. It runs in
/// its own process group, so that it does not receive Ctrl-C: many trainers save their model then, which here is zeros.
/// Reading the terminal would stop such a group, so the terminal is not its stdin.
fn prepared(args: &PredictArgs, command: &[OsString], target: &Target, place: &Folder) -> Command {
    let mut words = command.iter();
    let is_sharded = args.with.as_ref().is_some_and(|set| set.has("fsdp")) && args.rank.is_none();
    let mut child = match std::env::current_exe() {
        // A rank for each GPU, as `run --devices` starts them.
        Ok(program) if is_sharded => {
            let mut child = Command::new(program);
            child.args(["run", "--ranks", &args.devices.to_string(), "--"]);
            child
        }
        _ => Command::new(words.next().map_or_else(OsString::new, Clone::clone)),
    };
    child.args(words);
    child.envs(place::environment(&place.standin, |name| std::env::var_os(name)));
    child.envs(target.environment());
    child.envs(place.surroundings.iter().map(|(name, value)| (*name, value)));
    if args.rank.is_none() {
        child.env(settings::SHARED, &place.shared);
    }
    // The surroundings' choice is one of real devices.
    child.env_remove("CUDA_VISIBLE_DEVICES");
    child.env("PYTHONPATH", inject::python_path(&place.python));
    let is_expandable = args.with.as_ref().is_some_and(|set| set.has("expandable"));
    let expandable = is_expandable.then(|| inject::expandable(args.alloc_conf.as_deref()));
    if let Some(set) = &args.with {
        child.env("PLIMSOLL_WITH", set.json());
    }
    if let Some(settings) = expandable.as_ref().or(args.alloc_conf.as_ref()) {
        // The old name, for older versions.
        child.env("PYTORCH_ALLOC_CONF", settings).env("PYTORCH_CUDA_ALLOC_CONF", settings);
    }
    child.env("PLIMSOLL_PREDICT_FOLDER", &place.reports).env(settings::NOTICES, &place.reports);
    child.env("PLIMSOLL_PREDICT_STEPS", if args.whole { 0 } else { args.steps }.to_string());
    if let Ok(program) = std::env::current_exe() {
        child.env(settings::PLANNER, program);
    }
    if let Some(rank) = args.rank {
        // As torchrun sets them on the machine that has this rank.
        let place = Place::of(rank, args.nodes, args.devices);
        child.envs(place.environment());
        child.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", "29500");
        child.env("PLIMSOLL_PREDICT_ALONE", "1");
    }
    child.process_group(0);
    if io::stdin().is_terminal() {
        child.stdin(Stdio::null());
    }
    if args.quiet {
        child.stdout(Stdio::null()).stderr(Stdio::null());
    } else if let Ok(stderr) = io::stderr().as_fd().try_clone_to_owned() {
        child.stdout(Stdio::from(stderr));
    }
    child
}

/// A rank's place in its job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    rank: u32,
    /// Its local rank.
    local: u32,
    node: u32,
    nodes: u32,
    /// Ranks per machine.
    devices: u32,
}

impl Place {
    fn of(rank: u32, nodes: u32, devices: u32) -> Place {
        Place { rank, local: rank % devices, node: rank / devices, nodes, devices }
    }

    fn environment(self) -> [(&'static str, String); 7] {
        let Place { rank, local, node, nodes, devices } = self;
        let world = u64::from(nodes) * u64::from(devices);
        [
            ("RANK", rank.to_string()),
            ("LOCAL_RANK", local.to_string()),
            ("GROUP_RANK", node.to_string()),
            ("GROUP_WORLD_SIZE", nodes.to_string()),
            ("WORLD_SIZE", world.to_string()),
            ("LOCAL_WORLD_SIZE", devices.to_string()),
            ("NODE_RANK", node.to_string()),
        ]
    }
}

/// Starts the command and waits. No process that it started outlives it. Errors say what failed.
fn run(
    command: &mut Command,
    timeout: Option<Duration>,
    stop: &Path,
    signals: &Signals,
) -> Result<Ended, String> {
    let cannot = |what| move |why: io::Error| format!("cannot be {what}: {why}");
    let (waited, is_wished) = signals.during(|| {
        processes::adopt().map_err(cannot("started"))?;
        let mut child = command.spawn().map_err(cannot("started"))?;
        let waited = wait(&mut child, timeout, stop, signals);
        processes::end_all();
        waited.map_err(cannot("waited for"))
    });
    let (status, stopped) = waited?;
    Ok(match (stopped.or(is_wished.then_some(Ended::Interrupted)), status.code(), status.signal()) {
        (Some(why), ..) => why,
        (None, Some(0), _) => Ended::Well,
        (None, Some(code), _) => Ended::Status(code),
        (None, None, signal) => Ended::Signal(signal.unwrap_or(0)),
    })
}

/// Waits for the program's end, and returns why it was stopped, if it was. On --timeout or an interrupt its processes are
/// asked to exit, and do so once they have written their reports; those that do not are killed after a while, or at the
/// second interrupt. A program that only waits once its GPU processes have ended is over.
fn wait(
    child: &mut Child,
    timeout: Option<Duration>,
    stop: &Path,
    signals: &Signals,
) -> io::Result<(ExitStatus, Option<Ended>)> {
    let began = Instant::now();
    let mut waiting = processes::Waiting::default();
    let mut stopped: Option<(Ended, Instant)> = None;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok((status, stopped.map(|(why, _)| why)));
        }
        // Checked afterwards, so that a signal that also ended the program still counts.
        let is_wished = signals.heard();
        let is_up = timeout.is_some_and(|timeout| began.elapsed() >= timeout);
        match stopped {
            None if is_wished || is_up => {
                let why = if is_wished { Ended::Interrupted } else { Ended::Expired };
                stopped = Some((why, Instant::now()));
                File::create(stop)?;
                output::progress("stopping the program; press Ctrl-C again to kill it");
            }
            Some((why, at)) if is_wished || at.elapsed() > GRACE => {
                // It may have exited meanwhile.
                let _ = child.kill();
                return Ok((child.wait()?, Some(why)));
            }
            // The parent of a training process waits for an answer that does not come.
            None if stop.parent().is_some_and(|reports| waiting.is_over(reports)) => {
                let _ = child.kill();
                return Ok((child.wait()?, Some(Ended::Well)));
            }
            _ => sleep(Duration::from_millis(10)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Place;

    #[test]
    fn a_rank_of_several_machines_has_its_number_on_its_own() {
        let place = Place::of(13, 4, 8);
        assert_eq!((place.local, place.node), (5, 1));
        assert!(place.environment().contains(&("WORLD_SIZE", "32".to_owned())));
        assert!(place.environment().contains(&("LOCAL_WORLD_SIZE", "8".to_owned())));
    }
}
