//! Runs this program as the cuDNN planner: `plimsoll_standin::planner` starts it from the user's program. It is not a
//! subcommand for users.

use std::ffi::OsString;
use std::process::{Command, Stdio};

use plimsoll_standin::{place, planner};

use crate::exit::Exit;

/// The argument after [`place::PLANNER`] in the process that answers requests.
const ANSWERS: &str = "answers";

/// Runs the planner on stdin if these are its arguments; otherwise returns `None`.
///
/// The first process starts a second one and exits, so that the second process is not a child of the user's program,
/// which may wait for all its children.
pub(crate) fn run(mut arguments: impl Iterator<Item = OsString>) -> Option<Exit> {
    let program = arguments.next()?;
    arguments.next().filter(|verb| verb == place::PLANNER)?;
    let is_done = if arguments.next().is_some_and(|word| word == ANSWERS) {
        planner::serve().is_ok()
    } else {
        let program = std::env::current_exe().unwrap_or_else(|_| program.into());
        let mut command = Command::new(program);
        command.args([place::PLANNER, ANSWERS]).stdin(Stdio::inherit()).spawn().is_ok()
    };
    Some(if is_done { Exit::Done } else { Exit::Unreadable })
}
