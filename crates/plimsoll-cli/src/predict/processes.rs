//! Descendants of this process: everything that the user's program started.

use std::fs;
use std::io;
use std::thread::sleep;
use std::time::{Duration, Instant};

use plimsoll_standin::process::Stat;
use rustix::process::{Pid, Signal, getpid, kill_process, set_child_subreaper};

use crate::output;

/// How long to wait for a killed process.
const PATIENCE: Duration = Duration::from_secs(5);

/// Makes this process a subreaper: descendants whose parent ends become its children.
///
/// # Errors
/// The system's.
pub(super) fn adopt() -> io::Result<()> {
    Ok(set_child_subreaper(Some(getpid()))?)
}

/// Kills all descendants, including those that they start meanwhile. One that does not end, for example because a device
/// does not respond, is reported after a while.
pub(super) fn end_all() {
    let began = Instant::now();
    loop {
        let below = below(getpid());
        if below.is_empty() {
            return;
        }
        if began.elapsed() > PATIENCE {
            let left: Vec<String> = below.iter().map(|it| it.as_raw_nonzero().to_string()).collect();
            output::progress(&format!("killed, but still running: process {}", left.join(", ")));
            return;
        }
        for process in below {
            // It may have exited meanwhile.
            let _ = kill_process(process, Signal::KILL);
        }
        sleep(Duration::from_millis(1));
    }
}

/// The running descendants of a process.
fn below(top: Pid) -> Vec<Pid> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let with_parent = |number: u32| {
        let parent = Stat::of(number)?.parent;
        Some((Pid::from_raw(number.try_into().ok()?)?, Pid::from_raw(parent)?))
    };
    let all: Vec<(Pid, Pid)> = numbers.filter_map(with_parent).collect();
    let mut found = vec![top];
    let mut place = 0;
    while let Some(&parent) = found.get(place) {
        found.extend(all.iter().filter(|(_, its)| *its == parent).map(|(child, _)| *child));
        place += 1;
    }
    found.split_off(1)
}
