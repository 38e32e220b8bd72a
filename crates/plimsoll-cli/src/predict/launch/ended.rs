//! How a program ended: [`Ended`]. A launch returns it, and all code that reads a run's results uses it.

/// How a program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The program exited normally, or was stopped after the requested steps.
    Well,
    /// The program exited with this status.
    Status(i32),
    /// This signal ended the program.
    Signal(i32),
    /// The user ended the program, with Ctrl-C or SIGTERM.
    Interrupted,
    /// The program was stopped because of --timeout.
    Expired,
}
