//! One watched process: a sample of it, and the message if it cannot be watched.

use std::io::{self, ErrorKind};

use plimsoll::memory::live::{Sample, Watcher};

use crate::exit::{Exit, Failure};
use crate::output;

pub(super) const START: &str = "try: run a PyTorch program under `plimsoll run`, start `plimsoll train mnist` in another terminal, or call \
                     `plimsoll::memory::live::serve` in a program of yours; a PyTorch program can be watched once it uses the GPU";

pub(super) fn cannot_attach(pid: u32, why: &io::Error) -> Failure {
    let message = if why.kind() == ErrorKind::NotFound { format!("{why}\n{START}") } else { why.to_string() };
    Failure::new(Exit::Unreadable, format!("process {pid}: {message}"))
}

pub(super) fn hung_up(pid: u32) -> Failure {
    Failure::new(
        Exit::Unreadable,
        format!("process {pid} closed the connection: it has ended, or has too many watchers"),
    )
}

pub(super) fn unreadable(why: &io::Error) -> Failure {
    Failure::new(Exit::Unreadable, said(why))
}

pub(super) fn said(why: &io::Error) -> String {
    match why.kind() {
        ErrorKind::TimedOut => "the process does not answer; it may be stopped".to_owned(),
        _ => why.to_string(),
    }
}

pub(super) fn over(pid: u32) {
    output::progress(&format!("process {pid} has ended"));
}

/// A sample of a process that may have ended.
pub(super) fn of(pid: u32) -> Option<Sample> {
    Watcher::attach(pid).and_then(|mut watcher| watcher.sample()).ok().flatten()
}
