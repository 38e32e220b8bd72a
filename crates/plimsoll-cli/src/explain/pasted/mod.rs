//! Explains input other than snapshots: a message in a log, counters, a trace of torch.profiler.
//!
//! | file | contents |
//! |---|---|
//! | `said.rs` | [`said::Said`]: an answer as lines and as JSON |
//! | `next.rs` | the next command |
//! | `accounts.rs` | an account of the GPU's bytes, from a message |
//! | `help.rs` | advice after a message |
//! | `message.rs` | an out-of-memory message: capacity or fragmentation, who uses the memory, the line |
//! | `counters.rs` | memory_stats() and memory_summary() |
//! | `profile.rs` | memory events of torch.profiler |
//! | `nsys.rs` | memory events of Nsight Systems, from its SQLite export |

mod accounts;
mod counters;
mod help;
mod message;
mod next;
pub(super) mod nsys;
mod profile;
mod said;

use std::path::Path;

use plimsoll_trace::message::Pasted;

use super::ExplainArgs;
use crate::exit::{Answer, Exit, Failure};

/// The answer, with exit code 0, as for a snapshot.
///
/// # Errors
/// If an option was given that applies only to snapshots, or a profile has no memory events.
pub(super) fn answer(file: &str, pasted: &Pasted, args: &ExplainArgs) -> Result<Answer, Failure> {
    check(file, "text", args)?;
    let said = match pasted {
        Pasted::Log(log) => message::said(log, args.shown),
        Pasted::Counters(counters) => counters::said(counters, args.shown),
        Pasted::Profile(profile) => profile::said(file, profile, args.shown)?,
    };
    Ok(Answer::from(if args.json { said.as_json(file) } else { said.as_text(file) }))
}

/// The answer about an SQLite database: an export of Nsight Systems.
///
/// # Errors
/// If an option was given that applies only to snapshots, or the database has no memory events.
pub(super) fn of_database(path: &Path, args: &ExplainArgs) -> Result<Answer, Failure> {
    let file = path.display().to_string();
    check(&file, "an SQLite database", args)?;
    let said = nsys::said(path, args.shown)?;
    Ok(Answer::from(if args.json { said.as_json(&file) } else { said.as_text(&file) }))
}

/// # Errors
/// If an option was given that applies only to snapshots.
fn check(file: &str, kind: &str, args: &ExplainArgs) -> Result<(), Failure> {
    if !args.is_for_snapshots() {
        return Ok(());
    }
    let message = format!(
        "{file} is {kind}, not a snapshot: only --json, --bytes and --rows apply. `plimsoll record` prints code \
         that records a snapshot"
    );
    Err(Failure::new(Exit::Usage, message))
}
