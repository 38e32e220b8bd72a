//! The processes below this one: whatever the user's program started, wherever it went.

use std::fs;
use std::io;
use std::thread::sleep;
use std::time::{Duration, Instant};

use plimsoll_standin::process::Stat;
use rustix::process::{Pid, Signal, getpid, kill_process, set_child_subreaper};

use crate::output;

/// How long one that was killed is waited for.
const PATIENCE: Duration = Duration::from_secs(5);

/// From now on processes whose parent ends become children of this one, so that none is lost.
///
/// # Errors
/// The system's.
pub(super) fn adopt() -> io::Result<()> {
    Ok(set_child_subreaper(Some(getpid()))?)
}

/// Ends them all, at once. One that starts another meanwhile is ended with it. One that the system does not let end, as
/// where a device does not answer, is left after some time, and named.
pub(super) fn end_all() {
    let began = Instant::now();
    loop {
        let below = below(getpid());
        if below.is_empty() {
            return;
        }
        if began.elapsed() > PATIENCE {
            let left: Vec<String> = below.iter().map(|it| it.as_raw_nonzero().to_string()).collect();
            output::progress(&format!("killed, and still there: process {}", left.join(", ")));
            return;
        }
        for process in below {
            // One that has ended by now needs no end.
            let _ = kill_process(process, Signal::KILL);
        }
        sleep(Duration::from_millis(1));
    }
}

/// The processes below one that have not ended.
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
