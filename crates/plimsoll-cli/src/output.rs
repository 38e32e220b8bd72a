//! The two streams. A reader that goes away (`| head`) ends the program quietly; any other trouble with
//! stdout is a failure.

use std::io::{ErrorKind, Write};

use crate::exit::{Exit, Failure};

/// Writes a result to stdout.
pub(crate) fn result(text: &str) -> Result<(), Failure> {
    let mut out = anstream::stdout().lock();
    match writeln!(out, "{}", text.trim_end()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::new(Exit::Unreadable, format!("stdout: {error}")))
        }
        _ => Ok(()),
    }
}

/// Says on stderr why there is no result; the JSON form, where there is one, is the result.
pub(crate) fn failure(failure: &Failure) {
    progress(&format!("{ERROR}error:{RESET} {}", failure.message));
    if let Some(json) = &failure.json {
        // The message is out already; there is nobody left to tell about a broken stdout.
        let _ = result(json);
    }
}

/// Writes a line of progress to stderr.
pub(crate) fn progress(line: &str) {
    // Progress that nobody can read is no reason to stop.
    let _ = writeln!(anstream::stderr().lock(), "{line}");
}

/// Bold, where the stream shows it; `anstream` takes the codes out elsewhere.
pub(crate) const BOLD: &str = "\x1b[1m";
/// Bold red, for the word that announces a failure.
pub(crate) const ERROR: &str = "\x1b[1;31m";
/// Back to plain.
pub(crate) const RESET: &str = "\x1b[0m";
