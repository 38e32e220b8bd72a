//! Checks that `--with` is applied: each process that loads PyTorch must confirm that the techniques are applied
//! ([`Answers`]); otherwise the run ends before its first step.
//!
//! `attend.py` confirms twice: when Python has loaded `attend.py`, and when the techniques are applied. A process that
//! loads PyTorch but never confirms runs without the techniques: `python -I` and `-E` ignore PYTHONPATH, a launcher may
//! have emptied the environment, and the folder with our Python may have been deleted.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use plimsoll_standin::process::Stat;
use rustix::process::getpid;
use tempfile::TempDir;

use crate::exit::{Exit, Failure};
use crate::inject::cache;
use crate::processes;
use crate::protocol::{APPLIED, LOADED};
use crate::techniques::Set;

/// The environment variable that names the folder for answers.
const FOLDER: &str = "PLIMSOLL_RUN_ANSWERS";

/// How often to check the processes. Importing PyTorch takes longer than this.
const PAUSE: Duration = Duration::from_millis(100);

/// Parts of the names of PyTorch's libraries.
const TORCH: [&str; 2] = ["libtorch_cpu.so", "libtorch_python.so"];

/// The answers of one run.
pub(super) struct Answers {
    folder: TempDir,
    set: String,
    looked: Instant,
    /// Processes that need no further check.
    known: BTreeSet<i32>,
    /// Processes that had not confirmed at the last check.
    silent: BTreeSet<i32>,
}

impl Answers {
    /// Creates the folder.
    ///
    /// # Errors
    /// If the folder cannot be created.
    pub(super) fn of(set: &Set) -> Result<Answers, Failure> {
        let parent = cache::temporary()?;
        let folder = tempfile::Builder::new().prefix("plimsoll-run-").tempdir_in(&parent);
        let folder = folder.map_err(|why| cache::unwritable(&parent, &why))?;
        let (known, silent) = (BTreeSet::new(), BTreeSet::new());
        Ok(Answers { folder, set: set.to_string(), looked: Instant::now(), known, silent })
    }

    /// Sets up a command so that its processes confirm.
    pub(super) fn ask(&self, command: &mut Command) {
        command.env(FOLDER, self.folder.path());
    }

    /// The reason to end the run now, if there is such a reason.
    pub(super) fn objection(&mut self) -> Option<Failure> {
        if self.looked.elapsed() < PAUSE {
            return None;
        }
        self.looked = Instant::now();
        let mut silent = BTreeSet::new();
        for process in processes::below(getpid()).into_iter().map(|it| it.as_raw_nonzero().get()) {
            if self.known.contains(&process) || !has_torch(process) {
                continue;
            }
            if self.has(process, LOADED) || is_fork(process) {
                self.known.insert(process);
            } else {
                silent.insert(process);
            }
        }
        // A process that was just forked, or that is about to exec another program, is checked again.
        let found = silent.intersection(&self.silent).next().copied();
        self.silent = silent;
        found.map(|process| {
            self.failure(&format!(
                "process {process} imported PyTorch without plimsoll's Python: {}\nPython's options -I and -E, and an empty environment, disable it",
                processes::command_line(process).unwrap_or_default()
            ))
        })
    }

    /// The reason why a successful run did not use the techniques; `None` if it used them.
    pub(super) fn objection_at_end(&self) -> Option<Failure> {
        let mut answers = fs::read_dir(self.folder.path()).into_iter().flatten().flatten();
        let is_applied =
            |it: fs::DirEntry| Path::new(&it.file_name()).extension().is_some_and(|it| it == APPLIED);
        if answers.any(is_applied) {
            return None;
        }
        Some(self.failure("no process of the program loaded both plimsoll's Python files and PyTorch"))
    }

    fn failure(&self, why: &str) -> Failure {
        let message =
            format!("{} was not applied: {why}\nwithout techniques: plimsoll run -- COMMAND", self.set);
        Failure::new(Exit::Usage, message)
    }

    fn has(&self, process: i32, what: &str) -> bool {
        self.folder.path().join(format!("{}.{what}", process)).exists()
    }
}

fn has_torch(process: i32) -> bool {
    let maps = fs::read_to_string(format!("/proc/{}/maps", process)).unwrap_or_default();
    TORCH.iter().any(|name| maps.contains(name))
}

/// Whether a process is a fork of its parent. A fork needs no check: its parent has confirmed, or is itself being
/// checked.
fn is_fork(process: i32) -> bool {
    let words = |process: i32| fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
    let parent = u32::try_from(process).ok().and_then(Stat::of).map(|it| it.parent);
    let own = words(process);
    parent.is_some_and(|parent| !own.is_empty() && words(parent) == own)
}
