//! Runs a command under the supervisor (`view/supervise.rs`), and waits for it to end: [`Session::supervised`].
//!
//! The program's stdout is our stderr, so that our stdout contains only the answer. The program runs in its own process
//! group, so that it does not receive Ctrl-C: many trainers would then save their model, which contains only zeros
//! here. Linux stops such a group if it reads from the terminal, so the program's stdin is not the terminal.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::Pid;

use super::ended::Ended;
use super::session::Session;
use super::signals::Signals;
use crate::exit::{Exit, Failure};
use crate::guard::SUPERVISOR;
use crate::output;
use crate::predict::args::PredictArgs;
use crate::predict::view::{ENDING, Ending, Isolation, Spec, UNCOPIED, UNCOPIED_BY_A_COMMAND};
use crate::processes::{self, PYTORCH};
use crate::scratch::unreadable;

/// How long a program may take to exit after a request to do so.
const GRACE: Duration = Duration::from_secs(20);

/// Why a program did not run.
pub(crate) enum Unrun {
    /// No view of the file system can be set up.
    Refused(Failure),
    /// The program cannot be started. Contains a description of what failed.
    Unstarted(String),
}

impl Session {
    /// Runs a command in the first kind of view that works on this machine.
    pub(crate) fn supervised(
        &self,
        args: &PredictArgs,
        command: &Command,
        run_folder: &Path,
        stop: &Path,
    ) -> Result<(Ended, Ending), Unrun> {
        let mut wanted: Vec<Option<Isolation>> = args.writes.isolations().into_iter().map(Some).collect();
        if wanted.is_empty() {
            wanted.push(None);
        }
        if let Some(known) = self.isolation.get() {
            wanted = vec![*known];
        }
        let (mut refused, is_chosen) = (Vec::new(), wanted.len() == 1);
        for isolation in wanted {
            let spec = Spec::of(&args.writes, isolation, is_chosen, self.folder(), run_folder);
            let mut supervisor =
                supervisor(command, &spec, args.quiet).map_err(|why| Unrun::Refused(unreadable(&why)))?;
            let (ended, mut ending) = run(&mut supervisor, args.timeout, stop, run_folder, &self.signals)
                .map_err(Unrun::Unstarted)?;
            // A file that a command may have changed counts only if the program failed.
            let named = || match ended {
                Ended::Status(_) => first_line(&run_folder.join(UNCOPIED_BY_A_COMMAND)),
                _ => None,
            };
            let blocked = uncopied(run_folder).or_else(named);
            let blocked = blocked.filter(|_| !is_chosen && ended != Ended::Interrupted);
            match (ending.refused.clone(), ending.unstarted.clone(), blocked) {
                (Some(why), ..) => {
                    refused.push(format!("{}: {why}", isolation.map_or("none", Isolation::name)));
                }
                (None, Some(why), _) => return Err(Unrun::Unstarted(format!("cannot be started: {why}"))),
                (None, None, Some(file)) => {
                    let why = format!("{} belongs to another user or group", file.display());
                    if !args.quiet {
                        output::progress(&format!("{why}: running again with --isolation redirect"));
                    }
                    refused.push(format!("overlay: {why}"));
                    cleared(run_folder).map_err(|why| Unrun::Refused(unreadable(&why)))?;
                }
                (None, None, None) => {
                    ending.instead_of = refused.pop();
                    let _known = self.isolation.set(isolation);
                    return Ok((ended, ending));
                }
            }
        }
        let message = format!(
            "the program was not run, because nothing here keeps its writes off the disk:\n  {}\n\
             --allow-writes runs it anyway, and lets it change and remove files",
            refused.join("\n  ")
        );
        Err(Unrun::Refused(Failure::new(Exit::Usage, message)))
    }
}

/// The file that an overlay could not copy for the program, if there was such a file.
pub(in crate::predict) fn uncopied(run_folder: &Path) -> Option<PathBuf> {
    first_line(&run_folder.join(UNCOPIED))
}

/// The path in the first line of a file, if it can be read.
fn first_line(file: &Path) -> Option<PathBuf> {
    let text = std::fs::read(file).ok()?;
    let line = text.split(|byte| *byte == b'\n').next()?;
    Some(OsString::from_vec(line.to_vec()).into())
}

/// Removes the files that a run left in its folder, so that another run can use the folder.
fn cleared(run_folder: &Path) -> io::Result<()> {
    for name in ["reports", "shared"] {
        let folder = run_folder.join(name);
        std::fs::remove_dir_all(&folder)?;
        std::fs::create_dir(&folder)?;
    }
    for name in [UNCOPIED, UNCOPIED_BY_A_COMMAND, "view.json"] {
        match std::fs::remove_file(run_folder.join(name)) {
            Err(why) if why.kind() != io::ErrorKind::NotFound => return Err(why),
            _ => {}
        }
    }
    Ok(())
}

/// The command that runs another command in a view.
fn supervisor(command: &Command, spec: &Spec, is_quiet: bool) -> io::Result<Command> {
    let place = spec.run.join("spec.json");
    std::fs::write(&place, serde_json::to_string(spec)?)?;
    let mut supervisor = Command::new(std::env::current_exe()?);
    supervisor.arg(SUPERVISOR).arg(place).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => supervisor.env(name, value),
            None => supervisor.env_remove(name),
        };
    }
    supervisor.process_group(0);
    if io::stdin().is_terminal() {
        supervisor.stdin(Stdio::null());
    }
    if is_quiet {
        supervisor.stdout(Stdio::null()).stderr(Stdio::null());
    } else if let Ok(stderr) = io::stderr().as_fd().try_clone_to_owned() {
        supervisor.stdout(Stdio::from(stderr));
    }
    Ok(supervisor)
}

/// Starts the supervisor and waits. The supervisor exits after all the processes that it started. An error says what
/// failed.
fn run(
    command: &mut Command,
    timeout: Option<Duration>,
    stop: &Path,
    run_folder: &Path,
    signals: &Signals,
) -> Result<(Ended, Ending), String> {
    let cannot = |what| move |why: io::Error| format!("cannot be {what}: {why}");
    let (waited, is_wished) = signals.during(|| {
        processes::adopt().map_err(cannot("started"))?;
        let mut child = command.spawn().map_err(cannot("started"))?;
        let waited = wait(&mut child, timeout, stop, signals);
        processes::end_all();
        waited.map_err(cannot("waited for"))
    });
    let (status, stopped) = waited?;
    // A supervisor that was killed has not written the file about the program's end.
    let own = || Ending { code: status.code(), signal: status.signal(), ..Ending::default() };
    let text = std::fs::read(run_folder.join(ENDING));
    let ending: Ending = text.ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_else(own);
    let ended = match (stopped.or(is_wished.then_some(Ended::Interrupted)), ending.code, ending.signal) {
        (Some(why), ..) => why,
        (None, Some(0), _) => Ended::Well,
        (None, Some(code), _) => Ended::Status(code),
        (None, None, signal) => Ended::Signal(signal.unwrap_or(0)),
    };
    Ok((ended, ending))
}

/// Waits for the program to end. Returns why the program was stopped, if it was. On --timeout or an interrupt, the
/// program's processes are asked to exit, and they exit after they have written their reports. Processes that do not
/// exit are killed after a grace period, at the second interrupt, or immediately if none of them uses PyTorch. If the
/// program's GPU processes have ended and it is only waiting, it counts as ended.
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
        // This is checked afterwards, so that a signal that ended the program still counts.
        let is_wished = signals.heard();
        let is_up = timeout.is_some_and(|timeout| began.elapsed() >= timeout);
        match stopped {
            None if is_wished || is_up => {
                let why = if is_wished { Ended::Interrupted } else { Ended::Expired };
                stopped = Some((why, Instant::now()));
                File::create(stop)?;
                output::progress("stopping the program; press Ctrl-C again to kill it");
            }
            Some((why, at)) if is_wished || at.elapsed() > GRACE || !reports_follow(child) => {
                return Ok((end(child)?, Some(why)));
            }
            // The parent of a stopped training process waits for an answer that never comes.
            None if stop.parent().is_some_and(|reports| waiting.is_over(reports)) => {
                return Ok((end(child)?, Some(Ended::Well)));
            }
            // `reports_follow` reads the memory maps of all processes, so it is called less often.
            Some(_) => sleep(Duration::from_millis(100)),
            None => sleep(Duration::from_millis(10)),
        }
    }
}

/// Whether a process of the program may still write a report.
fn reports_follow(child: &Child) -> bool {
    processes::have_opened(Pid::from_child(child), PYTORCH)
}

/// Kills the processes that the supervisor started; the supervisor then exits.
fn end(child: &mut Child) -> io::Result<ExitStatus> {
    processes::end_below(Pid::from_child(child));
    let until = Instant::now() + GRACE;
    while Instant::now() < until {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        sleep(Duration::from_millis(10));
    }
    // The supervisor may have exited in the meantime.
    let _ = child.kill();
    child.wait()
}
