//! The errors of this crate. Their messages also say what to do.

use std::fmt;

use crate::record::Call;

/// The result of a call that can fail because of another process or the network.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why ranks cannot continue together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The launcher's variables are missing or unreadable, or they disagree.
    #[error("{0}")]
    Environment(String),
    /// The store could not be reached, or gave an answer that the protocol does not allow.
    #[error("store at {address}: {why}")]
    Store {
        /// Its host and port.
        address: String,
        /// The cause of the error.
        why: String,
    },
    /// Ranks did not join in time.
    #[error(
        "{} did not join within {seconds} s: {}",
        ranks(.missing),
        "look for their errors, and check that all processes were started and reach the store"
    )]
    Missing {
        /// The missing ranks.
        missing: Vec<usize>,
        /// How long this rank waited for them.
        seconds: u64,
    },
    /// Ranks were started with different options or versions.
    #[error("rank {rank} was started with {theirs}, rank {own_rank} with {ours}: use the same for all ranks")]
    Options {
        /// The other rank.
        rank: usize,
        /// The other rank's options and version.
        theirs: String,
        /// This rank.
        own_rank: usize,
        /// This rank's options and version.
        ours: String,
    },
    /// Ranks were started with different numbers of ranks.
    #[error(
        "rank {rank} was started as one of {theirs} ranks, rank {own_rank} as one of {ours}: set WORLD_SIZE to the same number for all ranks"
    )]
    WorldSize {
        /// The other rank.
        rank: usize,
        /// The number of ranks that the other rank expects.
        theirs: usize,
        /// This rank.
        own_rank: usize,
        /// The number of ranks that this rank expects.
        ours: usize,
    },
    /// Another rank is gone, has failed, or did not reach a collective.
    #[error("{lost}{}", during(.call.as_ref()))]
    RankLost {
        /// The rank, and the reason.
        lost: Box<Lost>,
        /// The collective that this rank was in, if any.
        call: Option<Call>,
    },
    /// A rank did not reach a collective in time.
    #[error(
        "rank {rank} did not reach {call} within {seconds} s; it may be stopped, overloaded or in other code \
         (PLIMSOLL_COLLECTIVE_TIMEOUT_S sets the time)"
    )]
    Timeout {
        /// The missing rank.
        rank: usize,
        /// The collective that this rank is in.
        call: Call,
        /// How long it waited.
        seconds: u64,
    },
    /// Two ranks are in different collectives.
    #[error(
        "rank {rank} is in {theirs} while this rank is in {ours}: all ranks must call the same collectives, with the same \
         sizes and types, in the same order"
    )]
    Mismatch {
        /// The other rank.
        rank: usize,
        /// The call of the other rank, without its label, which is not sent.
        theirs: Box<Call>,
        /// The call of this rank.
        ours: Box<Call>,
    },
    /// A collective was called with an invalid argument.
    #[error("{op}: {why}")]
    Argument {
        /// The name of the collective.
        op: &'static str,
        /// The reason why the argument is invalid.
        why: String,
    },
}

impl Error {
    /// The same error, for a rank that was in this collective, if any.
    pub(crate) fn in_call(self, latest: Option<&Call>) -> Error {
        match (self, latest) {
            (Error::RankLost { lost, .. }, Some(call)) => Error::RankLost { lost, call: Some(call.clone()) },
            (Error::Timeout { rank, seconds, .. }, Some(call)) => {
                Error::Timeout { rank, call: call.clone(), seconds }
            }
            (other, _) => other,
        }
    }
}

/// A rank that is gone or has failed, so that the others cannot continue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// Its rank.
    pub rank: usize,
    /// The host on which it ran; empty if the rank is a thread.
    pub host: String,
    /// Its process id; 0 if the rank is a thread.
    pub pid: u32,
    /// Its device.
    pub device: String,
    /// What happened to it, worded to follow its name: `is gone: its connection closed`, `failed: out of
    /// memory`.
    pub why: String,
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Lost { rank, host, pid, device, why } = self;
        match (host.is_empty(), device.is_empty()) {
            (true, _) => write!(f, "rank {rank} {why}"),
            (false, true) => write!(f, "rank {rank} (host {host}, pid {pid}) {why}"),
            (false, false) => write!(f, "rank {rank} (host {host}, pid {pid}, {device}) {why}"),
        }
    }
}

fn during(call: Option<&Call>) -> String {
    call.map_or(String::new(), |call| format!("\nthis rank was in {call}"))
}

/// Formats a list of ranks: `rank 3`, `ranks 1, 2 and 14 more`.
fn ranks(missing: &[usize]) -> String {
    const SHOWN: usize = 8;
    let some: Vec<String> = missing.iter().take(SHOWN).map(ToString::to_string).collect();
    match missing {
        [one] => format!("rank {one}"),
        _ if missing.len() > SHOWN => format!("ranks {} and {} more", some.join(", "), missing.len() - SHOWN),
        _ => format!("ranks {}", some.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Op;

    #[test]
    fn a_lost_rank_is_named_with_its_host_and_what_this_rank_did() {
        let lost = Lost {
            rank: 1,
            host: "b".to_owned(),
            pid: 4711,
            device: "cpu".to_owned(),
            why: "is gone: its connection closed".to_owned(),
        };
        let call = Call {
            number: 20_930,
            op: Op::AllToAll,
            bytes: 61_481_600,
            label: "bucket 3".to_owned(),
            dtype: String::new(),
            group: String::new(),
        };
        assert_eq!(
            Error::RankLost { lost: Box::new(lost), call: Some(call) }.to_string(),
            "rank 1 (host b, pid 4711, cpu) is gone: its connection closed\n\
             this rank was in all_to_all 20930 of `bucket 3` (61481600 bytes)"
        );
    }

    #[test]
    fn missing_ranks_are_listed_up_to_eight() {
        assert_eq!(ranks(&[3]), "rank 3");
        assert_eq!(ranks(&[1, 2]), "ranks 1, 2");
        assert_eq!(ranks(&(0..10).collect::<Vec<_>>()), "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 2 more");
    }
}
