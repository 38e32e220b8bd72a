//! Some of another transport's ranks, as a group of their own.

use std::sync::Arc;
use std::time::Duration;

use super::Transport;
use crate::error::{Error, Result};
use crate::record::Call;

/// One rank of a group that consists of some ranks of another transport. Errors name ranks by their numbers in that
/// transport.
///
/// ```
/// use plimsoll_dist::transport::{Part, Threads, Transport};
/// use std::sync::Arc;
/// use std::time::Duration;
/// let ranks = Threads::ranks(4, Duration::from_secs(60));
/// let parts: Vec<Option<Part>> = ranks.into_iter().map(|rank| Part::of(Arc::new(rank), &[1, 3])).collect();
/// assert!(parts[0].is_none());
/// assert_eq!(parts[3].as_ref().map(|part| (part.rank(), part.size())), Some((1, 2)));
/// ```
#[derive(Clone, Debug)]
pub struct Part {
    whole: Arc<dyn Transport>,
    /// The members, by their ranks in `whole`, in ascending order.
    ranks: Vec<usize>,
    rank: usize,
}

impl Part {
    /// The group of these ranks of `whole`, which are in ascending order. `None` if this rank is not one of them, or if they are
    /// not ranks of `whole` in ascending order.
    pub fn of(whole: Arc<dyn Transport>, ranks: &[usize]) -> Option<Part> {
        let is_ascending = ranks.is_sorted_by(|a, b| a < b);
        let are_ranks = ranks.last().is_some_and(|last| *last < whole.size());
        let rank = ranks.iter().position(|rank| *rank == whole.rank())?;
        (is_ascending && are_ranks).then(|| Part { whole, ranks: ranks.to_vec(), rank })
    }
}

impl Transport for Part {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.ranks.len()
    }

    fn exchange(&self, call: &Call, send: &[&[u8]], receive: &mut [&mut [u8]]) -> Result<()> {
        self.whole.exchange_among(&self.ranks, call, send, receive)
    }

    fn exchange_among(
        &self,
        ranks: &[usize],
        call: &Call,
        send: &[&[u8]],
        receive: &mut [&mut [u8]],
    ) -> Result<()> {
        let ranks: Vec<usize> = ranks.iter().map(|rank| self.ranks[*rank]).collect();
        self.whole.exchange_among(&ranks, call, send, receive)
    }

    fn connect_again(&self, ranks: &[usize], call: &Call) -> Result<Arc<dyn Transport>> {
        let ranks: Vec<usize> = ranks.iter().map(|rank| self.ranks[*rank]).collect();
        let whole = self.whole.connect_again(&ranks, call)?;
        Ok(Arc::new(Part { whole, ..self.clone() }))
    }

    /// Other groups may be waiting for other calls, so all ranks of the whole are asked only whether they are alive.
    fn gave_up(&self, waited: Duration, _: &dyn Fn() -> Option<Call>) -> Option<Error> {
        self.whole.gave_up(waited, &|| None)
    }
}
