//! How the program ends: the documented exit codes, and a failure with its words.

use std::process::ExitCode;

use plimsoll::Error;
use plimsoll::data::{DataError, ImageError};

/// The schema of a failure as JSON, unless the verb has another.
pub(crate) const ERROR_SCHEMA: &str = "plimsoll.error/1";

/// The exit codes of `plimsoll --help`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) enum Exit {
    /// Done.
    #[default]
    Done = 0,
    /// An assertion failed; the result says which.
    Assertion = 1,
    /// An argument that can be read but not used.
    Usage = 2,
    /// Input could not be read, or output not written.
    Unreadable = 3,
    /// Our run was out of memory, or the answer is incomplete.
    OutOfMemory = 4,
    /// A program of the user's failed.
    Program = 5,
    /// Another rank of a training failed.
    RankLost = 6,
    /// Our run was ended by SIGHUP, after saving; 128 and the signal's number, as shells report it.
    HungUp = 129,
    /// By Ctrl-C (SIGINT).
    Interrupted = 130,
    /// By SIGTERM.
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

    /// The one with this number.
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
    /// What to print; nothing if it is written already.
    pub(crate) text: String,
    /// 0; 1 where the result is that something was not as asserted, 4 where that cannot be known.
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
    /// With which code to exit.
    pub(crate) exit: Exit,
    /// What went wrong and what to do, in words; the first line is the essence.
    pub(crate) message: String,
    /// The same for a program that asked for JSON, where there is more to say than the message.
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
            use plimsoll::dist::Error::{Environment, Options};
            let is_usage = matches!(lost, Environment(_) | Options { .. });
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
