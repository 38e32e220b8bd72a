//! Processes of this machine, from `/proc`.

use std::fs;

/// A running process. A zombie does not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// The parent's process ID.
    pub parent: i32,
    /// Start time in clock ticks: it distinguishes two processes that had the same ID one after the other.
    pub began_ticks: u64,
}

impl Stat {
    /// The process with this ID; `None` if it is not running.
    ///
    /// ```
    /// use plimsoll_standin::process::Stat;
    /// assert!(Stat::of(std::process::id()).is_some_and(|own| own.parent > 0));
    /// ```
    pub fn of(number: u32) -> Option<Self> {
        // The name, in parentheses, may contain anything. The state and the parent follow it; the start time is the
        // twentieth field after it (proc_pid_stat(5)).
        let text = fs::read_to_string(format!("/proc/{number}/stat")).ok()?;
        let mut fields = text.rsplit_once(')')?.1.split_ascii_whitespace();
        let (state, parent) = (fields.next()?, fields.next()?);
        let found = Self { parent: parent.parse().ok()?, began_ticks: fields.nth(17)?.parse().ok()? };
        (!matches!(state, "Z" | "X")).then_some(found)
    }
}
