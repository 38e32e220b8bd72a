//! Runs the program while this process waits and passes signals on to it. If the program cannot explain itself why it
//! ended, for example after a signal, this process explains it (`ends.rs`).

use std::fs;
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};

use super::answers::Answers;
use super::ending::end_as;
use super::ends::Ends;
use crate::exit::{Answer, Exit, Failure};
use crate::guard::Guard;
use crate::inject;
use crate::output;
use crate::processes;

/// Runs the command and exits with its status, unless techniques were requested but are not applied. With
/// `is_watched`, this explains why a signal ended the program.
///
/// # Errors
/// If techniques are not applied, or the command cannot be started.
pub(super) fn run(
    command: &mut Command,
    mut answers: Option<Answers>,
    is_watched: bool,
) -> Result<Answer, Failure> {
    if let Some(answers) = &answers {
        answers.ask(command);
    }
    let name = command.get_program().to_string_lossy().into_owned();
    let failed = |why: std::io::Error| {
        Failure::new(
            Exit::Program,
            format!("{name} cannot be started: {why}{}", inject::interpreter_hint(&name)),
        )
    };
    let signals = Signals::hear().map_err(failed)?;
    let mark = format!("plimsoll-run-{}.", std::process::id());
    let guard = Guard::of(mark.as_ref());
    let _alone = processes::adopt();
    let mut ends = is_watched.then(Ends::begin);
    let mut child = command.env("PLIMSOLL_RUN_MARK", &mark).spawn().map_err(failed)?;
    let status = wait(&mut child, &signals, answers.as_mut(), ends.as_mut())?;
    // Processes that the program has left running are not killed.
    guard.dismiss();
    match answers.as_ref().and_then(Answers::objection_at_end) {
        Some(failure) if status.success() => Err(failure),
        _ => {
            let said = ends.map_or_else(Vec::new, |ends| ends.of(status));
            said.iter().for_each(|line| output::progress(&format!("plimsoll: {line}")));
            drop(answers);
            end_as(status)
        }
    }
}

fn wait(
    child: &mut Child,
    signals: &Signals,
    mut answers: Option<&mut Answers>,
    mut ends: Option<&mut Ends>,
) -> Result<ExitStatus, Failure> {
    loop {
        let status = child.try_wait().map_err(|why| Failure::new(Exit::Program, why.to_string()))?;
        if let Some(status) = status {
            return Ok(status);
        }
        if let Some(failure) = answers.as_deref_mut().and_then(Answers::objection) {
            processes::end_all();
            return Err(failure);
        }
        if let Some(ends) = ends.as_deref_mut() {
            ends.look();
        }
        signals.pass_to(child);
        sleep(Duration::from_millis(10));
    }
}

/// Signals to pass on to the program, such as those from a scheduler. A terminal sends its signals to all processes
/// itself.
struct Signals(Vec<(Signal, Arc<AtomicBool>)>);

impl Signals {
    fn hear() -> std::io::Result<Signals> {
        // Without a terminal, Ctrl-C reaches only this process.
        let is_ours = fs::File::open("/dev/tty").is_err();
        let passed = [
            (SIGTERM, Some(Signal::TERM)),
            (SIGHUP, Some(Signal::HUP)),
            (SIGUSR1, Some(Signal::USR1)),
            (SIGUSR2, Some(Signal::USR2)),
            (SIGINT, is_ours.then_some(Signal::INT)),
            (SIGQUIT, is_ours.then_some(Signal::QUIT)),
        ];
        let mut heard = Vec::new();
        for (number, passed) in passed {
            let noted = Arc::new(AtomicBool::new(false));
            signal_hook::flag::register(number, Arc::clone(&noted))?;
            heard.extend(passed.map(|signal| (signal, noted)));
        }
        Ok(Signals(heard))
    }

    fn pass_to(&self, child: &Child) {
        for (signal, noted) in &self.0 {
            if noted.swap(false, Ordering::SeqCst) {
                // The program may have ended in the meantime.
                let _ = kill_process(Pid::from_child(child), *signal);
            }
        }
    }
}
