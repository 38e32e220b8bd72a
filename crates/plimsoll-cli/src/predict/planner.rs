//! The program as the process that asks cuDNN: `plimsoll_standin::planner` starts it so, in the user's program. It is no
//! verb of the command line.

use std::ffi::OsString;
use std::process::{Command, Stdio};

use plimsoll_standin::{place, planner};

use crate::exit::Exit;

/// The word after [`place::PLANNER`] for the process that answers.
const ANSWERS: &str = "answers";

/// Answers over stdin if these are the arguments of the planner; nothing if they are not.
///
/// The process that is started first starts another and ends. The other so is no child of the user's program, which may
/// wait for all its children.
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
