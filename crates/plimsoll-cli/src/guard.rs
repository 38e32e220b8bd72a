//! Ends the processes that this process started, if this process is killed or panics before it can
//! end them itself ([`Guard`]).
//!
//! The guard is a separate process in its own process group. It waits on a pipe that closes with this process. Then it kills
//! all processes with a mark in their environment, because a launcher may have put them into other groups and sessions.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::exit::Exit;
use crate::scratch::Owned;

/// The argument that makes this program a guard. It is not a subcommand for users.
const VERB: &str = "end-a-run";

/// The argument that makes this program supervise a run of `predict`. The supervisor ends by itself after everything that it
/// started, so the guard spares it.
pub(crate) const SUPERVISOR: &str = "run-in-a-view";

/// How long to wait for killed processes.
const PATIENCE: Duration = Duration::from_secs(5);

/// The argument after [`SUPERVISOR`] in a process that confines itself before it executes the program.
pub(crate) const CONFINED: &str = "--confined";

/// Watches this process until the guard is dismissed or dropped.
pub(crate) struct Guard {
    /// `None` if the guard could not be started; the run continues without one.
    process: Option<Child>,
}

impl Guard {
    /// Starts a guard for the processes that have this mark in an environment variable. A mark that is an absolute path is this
    /// process's folder ([`Owned`]), which the guard removes at the end.
    pub(crate) fn of(mark: &OsStr) -> Guard {
        let process = std::env::current_exe().and_then(|program| {
            let mut command = Command::new(program);
            command.arg(VERB).arg(mark).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
            // Ctrl-C must not end it.
            command.process_group(0).spawn()
        });
        Guard { process: process.ok() }
    }

    /// Ends only the guard.
    pub(crate) fn dismiss(mut self) {
        if let Some(mut process) = self.process.take() {
            // The guard may have been killed together with the others.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            // Closes the pipe, as this process's end would.
            let _ = process.wait();
        }
    }
}

/// Runs as the guard if these are its arguments; otherwise returns `None`.
pub(crate) fn run(arguments: impl Iterator<Item = OsString>) -> Option<Exit> {
    let mut arguments = arguments.skip(1);
    arguments.next().filter(|verb| verb == VERB)?;
    let mark = arguments.next().filter(|mark| is_ours(mark))?;
    let folder = Owned::of(Path::new(&mark));
    // Nothing is ever written to the other end.
    let _ = io::stdin().lock().read(&mut [0]);
    end(&mark);
    if let Some(folder) = folder {
        folder.remove();
    }
    Some(Exit::Done)
}

/// Whether this program made this mark. The guard must never kill other processes or delete other folders.
fn is_ours(mark: &OsStr) -> bool {
    Path::new(mark).file_name().is_some_and(|name| name.as_bytes().starts_with(b"plimsoll-"))
}

/// Kills all processes with this mark, including any that they start in the meantime.
fn end(mark: &OsStr) {
    let began = Instant::now();
    loop {
        let marked = marked(mark);
        if marked.is_empty() || began.elapsed() > PATIENCE {
            return;
        }
        for process in marked {
            // It may have ended in the meantime.
            let _ = kill_process(process, Signal::KILL);
        }
        sleep(Duration::from_millis(5));
    }
}

fn marked(mark: &OsStr) -> Vec<Pid> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    // A zombie has no environment, and other users' environments cannot be read.
    let has_mark = |number: &i32| {
        let environment = fs::read(format!("/proc/{number}/environ")).unwrap_or_default();
        environment.windows(mark.len()).any(|part| part == mark.as_bytes()) && !is_supervisor(*number)
    };
    numbers.filter(has_mark).filter_map(Pid::from_raw).collect()
}

fn is_supervisor(process: i32) -> bool {
    let words = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
    let mut words = words.split(|byte| *byte == 0).skip(1);
    words.next().is_some_and(|verb| verb == SUPERVISOR.as_bytes())
        && words.next().is_some_and(|word| word != CONFINED.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_marks_of_this_program_are_taken() {
        let taken = ["/tmp/plimsoll-predict-x", "plimsoll-ranks-1-2."];
        assert!(taken.iter().all(|mark| is_ours(mark.as_ref())));
        let refused = ["", "/", "/home", "/home/plimsoll", "PATH"];
        assert!(!refused.iter().any(|mark| is_ours(mark.as_ref())));
    }
}
