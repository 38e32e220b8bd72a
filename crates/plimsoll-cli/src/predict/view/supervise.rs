//! The supervisor: the process that sets up the view and starts the user's program in it. It runs until the program
//! has ended, lists what was written, and ends every process that the program started, even if the supervisor's own
//! parent is killed. (`Guard` cannot recognize a child with an empty environment.)

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::getppid;
use serde::{Deserialize, Serialize};

use super::overlay::Overlay;
use super::redirect::{self, Redirect};
use super::spec::{Isolation, Replaced, Spec};
use super::written::Written;
use crate::exit::Exit;
use crate::guard::{CONFINED, SUPERVISOR};
use crate::processes;

/// The file in the run's folder that says how the run ended.
pub(in crate::predict) const ENDING: &str = "ending.json";

/// The raw status of a process that SIGKILL ended.
const KILLED: i32 = 9;

const PAUSE: Duration = Duration::from_millis(10);

/// How a program ended, and the files that it would have written.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(in crate::predict) struct Ending {
    /// The reason if no view could be set up.
    pub(in crate::predict) refused: Option<String>,
    /// The reason if the program could not be started.
    pub(in crate::predict) unstarted: Option<String>,
    pub(in crate::predict) code: Option<i32>,
    pub(in crate::predict) signal: Option<i32>,
    pub(in crate::predict) isolation: Option<Isolation>,
    /// Why an isolation that was tried before this one does not work here.
    pub(in crate::predict) instead_of: Option<String>,
    pub(in crate::predict) written: Written,
}

/// Runs as the supervisor if these are its arguments; otherwise returns `None`.
pub(crate) fn run(arguments: impl Iterator<Item = OsString>) -> Option<Exit> {
    let mut arguments = arguments.skip(1);
    arguments.next().filter(|verb| verb == SUPERVISOR)?;
    let place = arguments.next()?;
    if place == CONFINED {
        return Some(redirect::confined(&arguments.collect::<Vec<_>>()));
    }
    let spec: Spec = serde_json::from_slice(&fs::read(place).ok()?).ok()?;
    let command: Vec<OsString> = arguments.collect();
    let parent = getppid();
    // This must be done before an overlay can hide the folder.
    let mut file = fs::File::create(spec.run.join(ENDING)).ok()?;
    let ending = supervised(&spec, &command);
    if getppid() != parent {
        // The process that would read the file about the end has ended.
        return Some(Exit::Program);
    }
    let text = serde_json::to_string(&ending).unwrap_or_default();
    let written = file.write_all(text.as_bytes());
    Some(if written.is_ok() { Exit::Done } else { Exit::Unreadable })
}

/// How a program's writes are kept off the disk.
enum View {
    Overlay(Overlay),
    Redirect(Redirect),
    /// The program's changes go to the disk.
    Disk,
}

impl View {
    fn command(&self, words: &[OsString], run: &Path) -> io::Result<Command> {
        match self {
            View::Redirect(redirect) => {
                redirect::find(words)?;
                redirect.command(words, run)
            }
            View::Overlay(_) | View::Disk => {
                let mut words = words.iter();
                let mut command = Command::new(words.next().map_or_else(OsString::new, Clone::clone));
                command.args(words);
                Ok(command)
            }
        }
    }

    /// How often to check whether --scratch is used up.
    fn pause(&self) -> Duration {
        match self {
            View::Redirect(_) => Duration::from_millis(100),
            View::Overlay(_) | View::Disk => Duration::ZERO,
        }
    }

    fn is_full(&self) -> bool {
        match self {
            View::Overlay(overlay) => overlay.is_full(),
            View::Redirect(redirect) => redirect.is_full(),
            View::Disk => false,
        }
    }

    fn list(&self, written: &mut Written) {
        match self {
            View::Overlay(overlay) => overlay.list(written),
            View::Redirect(redirect) => redirect.list(written),
            View::Disk => {}
        }
    }

    /// Replaces the content of files that the program sees.
    ///
    /// # Errors
    /// If the file on the disk itself would change, or the new file cannot be written.
    fn replace(&self, files: &[Replaced]) -> Result<(), String> {
        files.iter().try_for_each(|it| match self {
            View::Overlay(overlay) => overlay.replace(it),
            View::Redirect(redirect) => redirect.replace(it),
            View::Disk => Err(format!(
                "{} cannot be replaced for this run only: with --allow-writes, the change would go to the disk",
                it.path.display()
            )),
        })
    }

    fn clear(&self) {
        if let View::Overlay(overlay) = self {
            overlay.clear();
        }
    }
}

fn supervised(spec: &Spec, command: &[OsString]) -> Ending {
    let parent = getppid();
    let isolation = spec.isolation;
    let refused = |why| Ending { refused: Some(why), isolation, ..Ending::default() };
    let view = match isolation {
        Some(Isolation::Overlay) => Overlay::begin(spec, command).map(View::Overlay),
        Some(Isolation::Redirect) => Redirect::begin(spec).map(View::Redirect),
        None => Ok(View::Disk),
    };
    let view = match view {
        Ok(view) => view,
        Err(why) => return refused(why),
    };
    if let Err(why) = view.replace(&spec.replaced) {
        return refused(why);
    }
    let unstarted =
        |why: io::Error| Ending { unstarted: Some(why.to_string()), isolation, ..Ending::default() };
    let mut program = match view.command(command, &spec.run) {
        Ok(program) => program,
        Err(why) => return unstarted(why),
    };
    program.process_group(0);
    if let Err(why) = processes::adopt() {
        return unstarted(why);
    }
    let mut child = match program.spawn() {
        Ok(child) => child,
        Err(why) => return unstarted(why),
    };
    let (mut written, mut looked) = (Written::default(), Instant::now());
    let status = loop {
        match child.try_wait() {
            Ok(None) => {}
            Ok(Some(status)) => break status,
            Err(_) => break ExitStatus::from_raw(KILLED),
        }
        if looked.elapsed() > view.pause() {
            looked = Instant::now();
            written.is_full |= view.is_full();
        }
        if getppid() != parent {
            break ExitStatus::from_raw(KILLED);
        }
        sleep(PAUSE);
    };
    processes::end_all();
    written.is_full |= view.is_full();
    if getppid() == parent {
        view.list(&mut written);
    }
    view.clear();
    Ending { code: status.code(), signal: status.signal(), isolation, written, ..Ending::default() }
}
