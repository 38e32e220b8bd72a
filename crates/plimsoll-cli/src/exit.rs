//! The documented exit codes, and failures with their messages.

use std::process::ExitCode;

use plimsoll::Error;
use plimsoll::data::{DataError, ImageError};

/// The schema of a failure as JSON, unless the verb has its own.
pub(crate) const ERROR_SCHEMA: &str = "plimsoll.error/1";

/// The exit codes of `plimsoll --help`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) enum Exit {
    /// Success.
    #[default]
    Done = 0,
    /// An assertion failed; the result says which.
    Assertion = 1,
    /// An argument was parsed but cannot be used.
    Usage = 2,
    /// Input could not be read, or output not written.
    Unreadable = 3,
    /// Our run was out of memory, or the answer is incomplete.
    OutOfMemory = 4,
    /// The user's program failed.
    Program = 5,
    /// Another rank of the training job failed.
    RankLost = 6,
    /// Our run was ended by SIGHUP, after saving; the code is 128 plus the signal's number, as shells report it.
    HungUp = 129,
    /// Our run was ended by Ctrl-C (SIGINT).
    Interrupted = 130,
    /// Our run was ended by SIGTERM.
    Terminated = 143,
}

impl Exit {
    /// All codes.
    const ALL: [Exit; 10] = [
        Exit::Done,
        Exit::Assertion,
        Exit::Usage,
        Exit::Unreadable,
        Exit::OutOfMemory,
        Exit::Program,
        Exit::RankLost,
        Exit::HungUp,
        Exit::Interrupted,
        Exit::Terminated,
    ];

    /// The exit code with this number.
    pub(crate) fn of_code(code: i32) -> Option<Exit> {
        Exit::ALL.into_iter().find(|exit| *exit as i32 == code)
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit as u8)
    }
}

/// A result for stdout, and the code to exit with.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    /// The text to print; empty if it is already written.
    pub(crate) text: String,
    /// 0, or 1 if an assertion failed, or 4 if that cannot be determined.
    pub(crate) exit: Exit,
}

impl From<()> for Answer {
    fn from((): ()) -> Answer {
        Answer::default()
    }
}

impl From<String> for Answer {
    fn from(text: String) -> Answer {
        Answer { text, exit: Exit::Done }
    }
}

/// Why there is no result.
#[derive(Debug)]
pub(crate) struct Failure {
    /// The exit code.
    pub(crate) exit: Exit,
    /// The problem, and what to do about it. The first line is the summary.
    pub(crate) message: String,
    /// The failure as JSON, if it contains more than the message.
    pub(crate) json: Option<String>,
}

impl Failure {
    /// A failure without a JSON form.
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Failure {
        Failure { exit, message: message.into(), json: None }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        if let Some(lost) = error.distributed() {
            use plimsoll::dist::Error::{Environment, Options, WorldSize};
            let is_usage = matches!(lost, Environment(_) | Options { .. } | WorldSize { .. });
            return Failure::new(if is_usage { Exit::Usage } else { Exit::RankLost }, lost.to_string());
        }
        let exit = match error {
            Error::OutOfMemory(_) | Error::Allocator { .. } => Exit::OutOfMemory,
            _ => Exit::Usage,
        };
        Failure::new(exit, error.to_string())
    }
}

impl From<DataError> for Failure {
    fn from(error: DataError) -> Failure {
        let exit = match error {
            DataError::OutOfHostMemory { .. } => Exit::OutOfMemory,
            _ => Exit::Unreadable,
        };
        let cause = match &error {
            DataError::Sample { source, .. } => source,
            other => other,
        };
        let is_damaged = matches!(cause, DataError::Image(ImageError::Damaged { .. }));
        let option = if is_damaged { " (--skip-damaged)" } else { "" };
        Failure::new(exit, format!("{error}{option}"))
    }
}
