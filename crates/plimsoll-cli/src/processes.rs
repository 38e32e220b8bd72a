//! Descendants of this process: all processes of the user's program, and whether the program only waits
//! ([`Waiting`]).

use std::fs;
use std::io;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, getpid, kill_process, set_child_subreaper};

use crate::output;
use crate::protocol::MARKS;

/// PyTorch's library. Processes without it write no report, so there is no report to wait for.
pub(crate) const PYTORCH: &str = "libtorch";

/// How long to wait for a killed process.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long a program may be idle after its steps.
const IDLE: Duration = Duration::from_secs(5);

/// How much processor time the processes of an idle program may use in that time, in hundredths of a second.
const IDLE_TICKS: u64 = 5;

/// Detects a program that waits forever: its GPU processes have all ended after their steps, and another
/// process waits for an answer from them.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    looked: Option<Instant>,
    /// When the program became idle, and the processor time of its processes at that moment.
    since: Option<(Instant, u64)>,
}

impl Waiting {
    /// Whether the program has been idle long enough. `reports` is the folder with its reports.
    pub(crate) fn is_over(&mut self, reports: &Path) -> bool {
        let now = Instant::now();
        if self.looked.is_some_and(|looked| now - looked < Duration::from_millis(250)) {
            return false;
        }
        self.looked = Some(now);
        let [started, done] = MARKS.map(|end| marks(reports, end));
        if started == 0 || done < started {
            self.since = None;
            return false;
        }
        let ticks = below(getpid()).into_iter().map(ticks).sum::<u64>();
        match self.since {
            Some((since, before)) if ticks.abs_diff(before) <= IDLE_TICKS => now - since > IDLE,
            _ => {
                self.since = Some((now, ticks));
                false
            }
        }
    }
}

/// The number of files whose names end with `end`.
fn marks(folder: &Path, end: &str) -> usize {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_name().to_string_lossy().ends_with(end)).count()
}

/// The processor time of a process in the kernel's ticks: the 14th and 15th field of its `stat` file.
fn ticks(process: Pid) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero())).unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11).take(2);
    fields.filter_map(|field| field.parse::<u64>().ok()).sum()
}

/// Makes this process a subreaper: descendants whose parent ends become its children.
///
/// # Errors
/// I/O errors.
pub(crate) fn adopt() -> io::Result<()> {
    Ok(set_child_subreaper(Some(getpid()))?)
}

/// Kills all descendants, including any that they start in the meantime. If one does not end, for example because a
/// device does not respond, it is reported after a grace period.
pub(crate) fn end_all() {
    end_below(getpid());
}

/// Kills the descendants of another process in the same way.
pub(crate) fn end_below(top: Pid) {
    let began = Instant::now();
    loop {
        let below = below(top);
        if below.is_empty() {
            return;
        }
        if began.elapsed() > PATIENCE {
            let left: Vec<String> = below.iter().map(|it| it.as_raw_nonzero().to_string()).collect();
            output::progress(&format!("killed, but still running: process {}", left.join(", ")));
            return;
        }
        for process in below {
            // It may have exited in the meantime.
            let _ = kill_process(process, Signal::KILL);
        }
        sleep(Duration::from_millis(1));
    }
}

/// Whether a descendant of a process has opened a library whose path contains `name`. True if a process cannot be
/// inspected.
pub(crate) fn have_opened(top: Pid, name: &str) -> bool {
    let maps = |process: Pid| fs::read_to_string(format!("/proc/{}/maps", process.as_raw_nonzero()));
    below(top).into_iter().any(|process| match maps(process) {
        Ok(text) => text.contains(name),
        Err(why) => why.kind() == io::ErrorKind::PermissionDenied,
    })
}

/// The command line of a process; `None` if it has ended.
pub(crate) fn command_line(process: i32) -> Option<String> {
    let words = fs::read(format!("/proc/{process}/cmdline")).ok()?;
    let words: Vec<_> = words.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
    Some(words.join(" ").trim_end().to_owned())
}

/// The running descendants of a process.
pub(crate) fn below(top: Pid) -> Vec<Pid> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let all: Vec<Process> = numbers.filter_map(Process::of).collect();
    let mut found = vec![Process { id: top, parent: top, is_running: true }];
    let mut place = 0;
    while let Some(&Process { id, .. }) = found.get(place) {
        found.extend(all.iter().filter(|it| it.parent == id && it.id != top));
        place += 1;
    }
    found.iter().skip(1).filter(|it| it.is_running).map(|it| it.id).collect()
}

/// A process in `/proc`. If its first thread has ended, it is a zombie, but its children stay its children until its
/// other threads have ended.
#[derive(Clone, Copy)]
struct Process {
    id: Pid,
    parent: Pid,
    is_running: bool,
}

impl Process {
    fn of(number: i32) -> Option<Self> {
        // The name, in parentheses, may contain anything. The state and the parent follow it (proc_pid_stat(5)).
        let text = fs::read_to_string(format!("/proc/{number}/stat")).ok()?;
        let mut fields = text.rsplit_once(')')?.1.split_ascii_whitespace();
        let (state, parent) = (fields.next()?, fields.next()?.parse().ok()?);
        let (id, parent) = (Pid::from_raw(number)?, Pid::from_raw(parent)?);
        Some(Self { id, parent, is_running: !matches!(state, "Z" | "X") })
    }
}
