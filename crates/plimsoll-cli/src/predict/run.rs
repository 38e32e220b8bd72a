//! Runs the user's program: [`Run`], in an environment that loads the simulated GPU (plimsoll-standin) and the Python
//! hooks.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use plimsoll_standin::{place, settings};
use tempfile::TempDir;

use super::args::PredictArgs;
use super::assume::Assumption;
use super::gpu::Target;
use super::launch::host;
use super::launch::session::Session;
use super::launch::supervised::{Unrun, uncopied};
use super::launch::surroundings;
use super::recording::job::Job;
use super::recording::traces::Traces;
use crate::exit::{Exit, Failure};
use crate::guard::Guard;
use crate::inject::{self, Verb};
use crate::output;
use crate::protocol::STOP;
use crate::scratch::unreadable;
use crate::techniques::Technique;

/// The number of steps after which training is stopped, unless code of the training loop has not run yet (`late.py`).
const STEPS: u64 = 3;

/// PyTorch's variable for how it finds the names of C++ frames.
const SYMBOLIZE: &str = "TORCH_SYMBOLIZE_MODE";

/// A program that has ended.
#[derive(Debug)]
pub(super) struct Run {
    /// How the program ended, and the reports of its processes.
    pub(super) job: Job,
    /// The program's effects outside its own processes: files and hosts.
    pub(super) traces: Traces,
    /// The folder with the processes' snapshots, deleted on drop.
    _folder: TempDir,
}

impl Run {
    /// Runs a command to its end.
    ///
    /// # Errors
    /// If the command cannot be started or waited for, the folder cannot be created, or a report cannot be
    /// read.
    pub(super) fn of(
        args: &PredictArgs,
        command: &[OsString],
        target: &Target,
        session: &Session,
        assumptions: &[Assumption],
    ) -> Result<Run, Failure> {
        let folder = tempfile::Builder::new()
            .prefix("run-")
            .tempdir_in(session.folder())
            .map_err(|why| unreadable(&why))?;
        let place = Folder::laid_out(folder.path(), session.standin()).map_err(|why| unreadable(&why))?;
        let words: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
        if args.variables.is_empty() && !args.quiet {
            output::progress(&format!("running on {}, simulated: {}", target.name, words.join(" ")));
        }
        let stop = place.reports.join(STOP);
        let mut child = prepared(args, command, target, &place);
        child.envs(place.counted(session.host()));
        child.env(settings::ANSWERS, session.folder().join("cudnn"));
        if !assumptions.is_empty() {
            let assumed = serde_json::to_string(assumptions).unwrap_or_default();
            child.env("PLIMSOLL_PREDICT_ASSUME", assumed);
        }
        child.envs(args.variables.iter().cloned());
        // The environment variables of all processes of the program contain paths to this folder, so the guard
        // recognizes the processes.
        let guard = Guard::of(session.folder().as_os_str());
        let (ended, ending) = session.supervised(args, &child, folder.path(), &stop).map_err(|failure| {
            let name = words.first().map_or("", |it| it);
            match failure {
                Unrun::Refused(failure) => failure,
                Unrun::Unstarted(why) => {
                    Failure::new(Exit::Program, format!("{name} {why}{}", inject::interpreter_hint(name)))
                }
            }
        })?;
        guard.dismiss();
        let mut job = Job::read(ended, &place.reports, &place.shared).map_err(|why| unreadable(&why))?;
        job.uncopied = uncopied(folder.path());
        let hosts = std::fs::read_to_string(folder.path().join("hosts")).unwrap_or_default();
        let hosts: BTreeSet<&str> = hosts.lines().collect();
        let hosts = hosts.into_iter().map(str::to_owned).collect();
        let traces = Traces {
            isolation: ending.isolation,
            instead_of: ending.instead_of,
            written: ending.written,
            hosts,
        };
        Ok(Run { job, traces, _folder: folder })
    }
}

/// The subfolders of the run's temporary folder, and the variables that point to them.
struct Folder {
    /// The folder with links to the library plimsoll-standin, under the names that the dynamic loader searches for.
    standin: PathBuf,
    /// The first folder of PYTHONPATH.
    python: PathBuf,
    /// The folder for the processes' reports.
    reports: PathBuf,
    /// The folder in which each process records how much of each GPU it uses.
    shared: PathBuf,
    /// The variables that point to caches and programs in the folder.
    surroundings: Vec<(&'static str, OsString)>,
}

impl Folder {
    fn laid_out(folder: &Path, library: &Path) -> io::Result<Folder> {
        let [standin, python, reports, shared] =
            ["standin", "python", "reports", "shared"].map(|name| folder.join(name));
        place::lay_out(&standin, library)?;
        inject::lay_out(&python, Verb::Predict)?;
        std::fs::create_dir(&reports)?;
        std::fs::create_dir(&shared)?;
        let surroundings = surroundings::laid_out(folder, |name| std::env::var_os(name))?;
        Ok(Folder { standin, python, reports, shared, surroundings })
    }

    /// The variables that load plimsoll-standin.
    fn loading(&self) -> [(&'static str, OsString); 4] {
        place::environment(&self.standin, |name| std::env::var_os(name))
    }

    /// The variables that load both plimsoll-standin and the library that counts memory on the host, if this build
    /// contains that library.
    fn counted(&self, library: Option<&Path>) -> impl Iterator<Item = (&'static str, OsString)> {
        let preloaded = self.loading().into_iter().find(|(name, _)| *name == "LD_PRELOAD");
        let preloaded = preloaded.map(|(_, value)| value).unwrap_or_default();
        library.into_iter().flat_map(move |it| host::environment(it, &preloaded, &self.reports))
    }
}

/// The command in its environment.
fn prepared(args: &PredictArgs, command: &[OsString], target: &Target, place: &Folder) -> Command {
    let mut words = command.iter();
    let is_sharded = args.with.as_ref().is_some_and(|set| set.needs_ranks()) && args.rank.is_none();
    let mut child = match std::env::current_exe() {
        // One rank for each GPU, as `run --devices` starts them.
        Ok(program) if is_sharded => {
            let mut child = Command::new(program);
            child.args(["run", "--ranks", &args.devices.to_string(), "--"]);
            child
        }
        _ => Command::new(words.next().map_or_else(OsString::new, Clone::clone)),
    };
    child.args(words);
    child.envs(place.loading());
    child.envs(target.environment());
    child.envs(place.surroundings.iter().map(|(name, value)| (*name, value)));
    if args.rank.is_none() {
        child.env(settings::SHARED, &place.shared);
    }
    // The user's CUDA_VISIBLE_DEVICES refers to real devices.
    child.env_remove("CUDA_VISIBLE_DEVICES");
    child.env("PYTHONPATH", inject::python_path(&place.python));
    if std::env::var_os(SYMBOLIZE).is_none() {
        // PyTorch names C++ frames by the symbols that libraries export. `addr2line` takes a second or more.
        child.env(SYMBOLIZE, "dladdr");
    }
    let is_expandable = args.with.as_ref().is_some_and(|set| set.has(Technique::Expandable));
    let expandable = is_expandable.then(|| inject::expandable(args.alloc_conf.as_deref()));
    if let Some(set) = &args.with {
        child.env("PLIMSOLL_WITH", set.json());
    }
    if let Some(settings) = expandable.as_ref().or(args.alloc_conf.as_ref()) {
        // The second is the variable's old name, for older versions of PyTorch.
        child.env("PYTORCH_ALLOC_CONF", settings).env("PYTORCH_CUDA_ALLOC_CONF", settings);
    }
    child.env("PLIMSOLL_PREDICT_VIEW", place.reports.with_file_name("view.json"));
    child.env("PLIMSOLL_PREDICT_FOLDER", &place.reports).env(settings::NOTICES, &place.reports);
    let steps = if args.whole { 0 } else { args.steps.unwrap_or(STEPS) };
    child.env("PLIMSOLL_PREDICT_STEPS", steps.to_string());
    if args.steps.is_none() {
        child.env("PLIMSOLL_PREDICT_FURTHER", "1");
    }
    if let Ok(program) = std::env::current_exe() {
        child.env(settings::PLANNER, program);
    }
    if let Some(rank) = args.rank {
        // The values that torchrun sets on the machine with this rank.
        let place = Place::of(rank, args.nodes, args.devices);
        child.envs(place.environment());
        child.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", "29500");
        child.env("PLIMSOLL_PREDICT_ALONE", "1");
    }
    child
}

/// A rank's place in its job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    rank: u32,
    /// The rank's number on its machine (local rank).
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
