//! Ends a run with its program's status ([`end_as`]).

use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};

use crate::exit::{Answer, Exit, Failure};

/// Ends this process with the status with which another process ended.
pub(super) fn end_as(status: ExitStatus) -> Result<Answer, Failure> {
    let words = match (status.code(), status.signal()) {
        (Some(0), _) => return Ok(Answer::default()),
        (Some(code), _) => format!("exit {code}"),
        (None, signal) => format!("kill -{} $$", signal.unwrap_or(9)),
    };
    let why = Command::new("/bin/sh").args(["-c", &words]).exec();
    Err(Failure::new(Exit::Program, format!("the program failed ({status}); /bin/sh: {why}")))
}
