//! Why a request would be served as it would: [`Allocator::explain`].
//!
//! For whoever compares two allocators and finds the first request on which they differ. It changes nothing
//! and walks over all candidates, so it is not for each request.

use std::fmt;

use crate::allocator::Allocator;
use crate::driver::Driver;
use crate::error::Error;
use crate::event::Observer;
use crate::request::{Addr, Request};
use crate::size::is_oversize;

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
    /// What the request is rounded to, bytes.
    pub block_bytes: u64,
    /// What the device is asked for if none is taken, bytes.
    pub segment_bytes: u64,
    /// The cached blocks of the request's pool and stream that hold it.
    pub candidates: Vec<Candidate>,
}

/// One cached block that is large enough for a request; see [`Explanation`] for an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// Where it starts.
    pub addr: Addr,
    /// Its size, bytes.
    pub bytes: u64,
    /// The number of its segment, in the order in which segments were made.
    pub segment_number: u64,
    /// Whether it is taken, and why not.
    pub verdict: Verdict,
}

/// What becomes of a candidate.
///
/// ```
/// # use plimsoll_alloc::Verdict;
/// assert_eq!(Verdict::Oversize.to_string(), "beyond max_split_size, and the request is not");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It serves the request.
    Taken,
    /// Another one comes first: smaller, or as large and of an older segment, or at a lower address.
    Later,
    /// It is in an expandable segment, and `expandable_segments` is off.
    Expandable,
    /// With what could be mapped behind it, it is larger than the next one.
    GrowsMore,
    /// It is beyond `max_split_size`, and the request is not.
    Oversize,
    /// The request is beyond `max_split_size`, and the block is too much larger.
    TooMuchOver,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Taken => "taken",
            Self::Later => "another comes first: smaller, or of an older segment, or at a lower address",
            Self::Expandable => "in an expandable segment, and expandable_segments is off",
            Self::GrowsMore => "larger than the next one, with what could be mapped behind it",
            Self::Oversize => "beyond max_split_size, and the request is not",
            Self::TooMuchOver => "more than max_non_split_rounding_mb over the request",
        })
    }
}

impl<D: Driver, O: Observer> Allocator<D, O> {
    /// Which cached blocks could serve a request as things stand, which one would, and why. What becomes free
    /// only when the request asks about events is not among them.
    ///
    /// # Errors
    /// [`Error::Pool`] if the request's pool does not exist, [`Error::TooLarge`] from one exbibyte on.
    pub fn explain(&self, request: Request) -> Result<Explanation, Error> {
        let ask = self.ask(request)?;
        let fit = self.pools.find_fit(&ask);
        let (blocks, cached) = (&self.pools.blocks, &self.pools.pool(ask.pool).cached);
        let mut at = cached.first_from(blocks, request.stream, ask.block_bytes);
        let (mut candidates, mut before_fit) = (Vec::new(), true);
        while let Some(id) = at {
            let block = &blocks[id];
            let verdict = if Some(id) == fit {
                before_fit = false;
                self.verdict_of_fit(ask.block_bytes, block.bytes)
            } else if !before_fit {
                Verdict::Later
            } else if ask.expandable {
                Verdict::GrowsMore
            } else {
                Verdict::Expandable
            };
            let (addr, bytes, segment_number) = (block.addr, block.bytes, block.segment_number);
            candidates.push(Candidate { addr, bytes, segment_number, verdict });
            at = cached.after(blocks, id);
        }
        Ok(Explanation { block_bytes: ask.block_bytes, segment_bytes: ask.segment_bytes, candidates })
    }

    fn verdict_of_fit(&self, wanted_bytes: u64, found_bytes: u64) -> Verdict {
        if crate::search::fits_oversize_rules(&self.config, wanted_bytes, found_bytes) {
            Verdict::Taken
        } else if is_oversize(&self.config, wanted_bytes) {
            Verdict::TooMuchOver
        } else {
            Verdict::Oversize
        }
    }
}
