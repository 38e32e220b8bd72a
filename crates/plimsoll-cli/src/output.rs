//! Stdout and stderr. If the reader has closed its end (`| head`), the program ends quietly; any other
//! error on stdout is a failure. Control characters from a file or an argument never reach a terminal
//! (`foreign.rs`).

use std::borrow::Cow;
use std::io::{self, BufWriter, ErrorKind, IsTerminal, Write};

use serde_json::json;

use crate::exit::{Exit, Failure};
use crate::foreign::{Escaping, escaped, shown};

pub(crate) use crate::foreign::{BOLD, ERROR, RESET};

/// Writes a result to stdout, unless it is empty.
pub(crate) fn result(text: &str) -> Result<(), Failure> {
    if text.is_empty() {
        return Ok(());
    }
    let mut out = anstream::stdout().lock();
    written(writeln!(out, "{}", shown(text.trim_end())).and_then(|()| out.flush()))
}

/// Writes a line to stdout and flushes it. Returns whether the reader is still there.
pub(crate) fn line(text: &str) -> Result<bool, Failure> {
    let mut out = io::stdout().lock();
    let outcome = writeln!(out, "{}", escaped(text)).and_then(|()| out.flush());
    let read = outcome.is_ok();
    written(outcome).map(|()| read)
}

/// Writes bytes to stdout unchanged, or escaped if it is a terminal.
pub(crate) fn bytes(fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), Failure> {
    if io::stdout().is_terminal() {
        let mut out = Escaping::new(io::stdout().lock());
        return written(fill(&mut out).and_then(|()| out.flush()));
    }
    let mut out = BufWriter::with_capacity(1 << 20, io::stdout().lock());
    let filled = fill(&mut out).and_then(|()| out.flush());
    // After a failure, the buffered rest cannot be written.
    let _ = out.into_parts();
    written(filled)
}

fn written(outcome: io::Result<()>) -> Result<(), Failure> {
    match outcome {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::new(Exit::Unreadable, format!("stdout: {error}")))
        }
        _ => Ok(()),
    }
}

/// Reports a failure on stderr. If JSON was requested, an object of this schema goes to stdout.
pub(crate) fn failure(failure: &Failure, schema: Option<&str>) {
    progress(&format!("{ERROR}error:{RESET} {}", failure.message));
    if let Some(schema) = schema {
        let plain = || {
            let (message, exit) = (&failure.message, failure.exit as u8);
            let value = json!({ "schema": schema, "verdict": "failed", "summary": message, "exit": exit });
            format!("{value:#}")
        };
        // The message is already printed, and a broken stdout cannot be reported.
        let _ = result(&failure.json.clone().unwrap_or_else(plain));
    }
}

/// Writes a line of progress to stderr.
pub(crate) fn progress(line: &str) {
    // If progress cannot be printed, that is no reason to stop.
    let _ = writeln!(anstream::stderr().lock(), "{}", shown(line));
}

/// Prints clap's output: help to stdout, usage errors to stderr.
pub(crate) fn usage(error: &clap::Error) -> i32 {
    // The quoted arguments may contain escape codes. Then everything is printed plain, because clap's own
    // codes look the same.
    if std::env::args_os().any(|word| matches!(escaped(&word.to_string_lossy()), Cow::Owned(_))) {
        progress(error.to_string().trim_end());
    } else {
        // If help cannot be printed, that is no reason to fail.
        let _ = error.print();
    }
    error.exit_code()
}
