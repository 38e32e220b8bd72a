//! What people have instead of a snapshot, explained: a message in a log, counters, a trace of torch.profiler.
//!
//! | file | contents |
//! |---|---|
//! | `said.rs` | [`said::Said`]: an answer as lines and as JSON |
//! | `message.rs` | an out-of-memory message: capacity or fragmentation, the holders of the memory, the line |
//! | `counters.rs` | memory_stats() and memory_summary() |
//! | `profile.rs` | memory events of torch.profiler |
//! | `next.rs` | the next command |

mod counters;
mod message;
mod next;
mod profile;
mod said;

use plimsoll_trace::message::Pasted;

use super::ExplainArgs;
use crate::exit::{Answer, Exit, Failure};

/// The answer; it is done (0), as an explanation of a snapshot is.
///
/// # Errors
/// An option that only a snapshot can have; a profile without memory.
pub(super) fn answer(file: &str, pasted: &Pasted, args: &ExplainArgs) -> Result<Answer, Failure> {
    if args.is_for_snapshots() {
        let message = format!(
            "{file} is not a snapshot but a text: only --json, --bytes and --rows go with it; `plimsoll record` prints \
             code that records a snapshot"
        );
        return Err(Failure::new(Exit::Usage, message));
    }
    let said = match pasted {
        Pasted::Log(log) => message::said(log, args.shown),
        Pasted::Counters(counters) => counters::said(counters, args.shown),
        Pasted::Profile(profile) => profile::said(file, profile, args.shown)?,
    };
    Ok(Answer::from(if args.json { said.as_json(file) } else { said.as_text(file) }))
}
