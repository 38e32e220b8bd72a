//! How a request would be served, and why: [`Allocator::explain`](crate::Allocator::explain).
//!
//! It is for comparing two allocators at the first request where they differ. It changes nothing and visits all
//! candidates, so it is too slow to run for every request.

use std::fmt;

use crate::config::Config;
use crate::pools::{Pools, SizedRequest, fits_oversize_rules};
use crate::request::Addr;
use crate::rounding::is_oversize;

/// The cached blocks that are large enough for a request, in the order in which they are tried.
///
/// ```
/// use plimsoll_alloc::{Allocator, Config, Request, SimDriver, Verdict};
///
/// let mut allocator = Allocator::new(Config::default(), SimDriver::with_capacity(64 << 20), ());
/// let x = allocator.malloc(Request::of(3 << 20))?;
/// let why = allocator.explain(Request::of(5 << 20))?;
/// assert_eq!((why.block_bytes, why.candidates.len()), (5 << 20, 1));
/// assert_eq!(why.candidates[0].verdict, Verdict::Taken); // the rest of the segment
/// # allocator.free(x);
/// # Ok::<(), plimsoll_alloc::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// The request rounded up to a block, bytes.
    pub block_bytes: u64,
    /// The size of the new segment if no candidate serves the request, bytes.
    pub segment_bytes: u64,
    /// The cached blocks of the request's pool and stream that are large enough.
    pub candidates: Vec<Candidate>,
}

/// One cached block that is large enough for a request; see [`Explanation`] for an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// Its address.
    pub addr: Addr,
    /// Its size, bytes.
    pub bytes: u64,
    /// The number of its segment, in order of creation.
    pub segment_number: u64,
    /// Whether it serves the request, or why not.
    pub verdict: Verdict,
}

/// The result for a candidate.
///
/// ```
/// # use plimsoll_alloc::Verdict;
/// assert_eq!(Verdict::Oversize.to_string(), "at least max_split_size, and the request is not");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It serves the request.
    Taken,
    /// Another candidate comes first: smaller, or of equal size in an older segment or at a lower address.
    Later,
    /// It is in an expandable segment, and `expandable_segments` is off.
    Expandable,
    /// It is in an expandable segment. With the unmapped block after it, it is larger than the next candidate.
    GrowsMore,
    /// It is at least `max_split_size`, and the request is not.
    Oversize,
    /// The request is at least `max_split_size`, and the block exceeds it by too much.
    TooMuchOver,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Taken => "taken",
            Self::Later => {
                "another block comes first: smaller, or in an older segment, or at a lower address"
            }
            Self::Expandable => "in an expandable segment, and expandable_segments is off",
            Self::GrowsMore => "larger than the next block, including the unmapped part after it",
            Self::Oversize => "at least max_split_size, and the request is not",
            Self::TooMuchOver => "exceeds the request by max_non_split_rounding_mb or more",
        })
    }
}

impl Explanation {
    /// The cached blocks that could serve a request now, which one would, and why.
    pub(crate) fn of(sized: &SizedRequest, pools: &Pools, config: &Config) -> Self {
        let fit = pools.find_fit(sized);
        let mut at = pools.best_fit(sized.pool, sized.request.stream, sized.block_bytes);
        let (mut candidates, mut before_fit) = (Vec::new(), true);
        while let Some(id) = at {
            let block = pools.block(id);
            let verdict = if Some(id) == fit {
                before_fit = false;
                verdict_of_fit(config, sized.block_bytes, block.bytes)
            } else if !before_fit {
                Verdict::Later
            } else if sized.expandable {
                Verdict::GrowsMore
            } else {
                Verdict::Expandable
            };
            let (addr, bytes, segment_number) = (block.addr, block.bytes, block.segment_number);
            candidates.push(Candidate { addr, bytes, segment_number, verdict });
            at = pools.next_fit(id);
        }
        Self { block_bytes: sized.block_bytes, segment_bytes: sized.segment_bytes, candidates }
    }
}

fn verdict_of_fit(config: &Config, wanted_bytes: u64, found_bytes: u64) -> Verdict {
    if fits_oversize_rules(config, wanted_bytes, found_bytes) {
        Verdict::Taken
    } else if is_oversize(config, wanted_bytes) {
        Verdict::TooMuchOver
    } else {
        Verdict::Oversize
    }
}
