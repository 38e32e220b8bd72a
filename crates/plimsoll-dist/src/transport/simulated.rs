//! A rank of a simulated group: the other ranks do not exist, and no bytes move.

use super::Transport;
use crate::error::{Error, Result};
use crate::record::Call;

/// A rank of a simulated group. Every exchange returns an error.
///
/// ```
/// use plimsoll_dist::Communicator;
/// let rank = Communicator::simulated(3, 1024);
/// assert_eq!((rank.rank(), rank.size()), (3, 1024));
/// assert!(rank.barrier().unwrap_err().to_string().contains("this group is simulated"));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Simulated {
    /// This rank's number.
    pub rank: usize,
    /// The number of ranks that the group would have.
    pub size: usize,
}

impl Transport for Simulated {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn exchange(&self, call: &Call, _: &[&[u8]], _: &mut [&mut [u8]]) -> Result<()> {
        let why = "this group is simulated, so no bytes move: use it with a simulated device".to_owned();
        Err(Error::Argument { op: call.op.name(), why })
    }
}
