//! How a program ended: [`Ended`]. A launch returns it, and all code that reads a run's results uses it.

/// How a program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// It exited normally, or was stopped after the requested steps.
    Well,
    /// It exited with this status.
    Status(i32),
    /// This signal ended it.
    Signal(i32),
    /// The user ended it, with Ctrl-C or SIGTERM.
    Interrupted,
    /// By --timeout.
    Expired,
}
