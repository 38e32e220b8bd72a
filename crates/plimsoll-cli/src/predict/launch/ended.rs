//! How a program ended: [`Ended`]. A launch passes it on to all code that reads a run's results.

/// How a program ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// By itself, or after the requested steps.
    Well,
    /// With this exit status.
    Status(i32),
    /// By this signal.
    Signal(i32),
    /// By the user: Ctrl-C or SIGTERM.
    Interrupted,
    /// By --timeout.
    Expired,
}
