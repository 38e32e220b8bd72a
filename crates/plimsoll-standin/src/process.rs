//! Processes of this machine, as `/proc` tells of them.

use std::fs;

/// A process that has not ended. One that has, though nobody has asked how, is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// The number of its parent.
    pub parent: i32,
    /// When it began, in the system's ticks: two processes that had the same number one after the other differ in it.
    pub began_ticks: u64,
}

impl Stat {
    /// The process of this number; `None` if there is none.
    ///
    /// ```
    /// use plimsoll_standin::process::Stat;
    /// assert!(Stat::of(std::process::id()).is_some_and(|own| own.parent > 0));
    /// ```
    pub fn of(number: u32) -> Option<Self> {
        // The name, in parentheses, may hold anything. After it come the state, the parent, and, as the twentieth, the
        // beginning (proc_pid_stat(5)).
        let told = fs::read_to_string(format!("/proc/{number}/stat")).ok()?;
        let mut fields = told.rsplit_once(')')?.1.split_ascii_whitespace();
        let (state, parent) = (fields.next()?, fields.next()?);
        let found = Self { parent: parent.parse().ok()?, began_ticks: fields.nth(17)?.parse().ok()? };
        (!matches!(state, "Z" | "X")).then_some(found)
    }
}
