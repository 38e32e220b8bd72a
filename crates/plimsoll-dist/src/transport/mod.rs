//! How bytes get from rank to rank: one trait with one method, [`Transport::exchange`], of which every collective is made.
//!
//! `sockets.rs` connects processes, `threads.rs` the threads of one, `simulated.rs` nobody. A transport of your own (another network, a fault to test)
//! implements the trait and goes into [`Communicator::new`](crate::Communicator::new).

mod simulated;
mod sockets;
mod threads;

use std::fmt;

use crate::error::Result;
use crate::record::Call;

pub use simulated::Simulated;
pub use sockets::Sockets;
pub use threads::Threads;

/// Moves bytes between the ranks of a group.
///
/// ```
/// use plimsoll_dist::{Call, Communicator, Error, Result, Transport};
/// /// A transport whose cable is pulled.
/// #[derive(Debug)]
/// struct Broken;
/// impl Transport for Broken {
///     fn rank(&self) -> usize {
///         0
///     }
///     fn size(&self) -> usize {
///         2
///     }
///     fn exchange(&self, call: &Call, _: &[&[u8]], _: &mut [&mut [u8]]) -> Result<()> {
///         Err(Error::Timeout { rank: 1, call: call.clone(), seconds: 0 })
///     }
/// }
/// let error = Communicator::new(Broken).barrier().unwrap_err();
/// assert!(error.to_string().starts_with("rank 1 did not arrive at barrier 0"));
/// ```
pub trait Transport: fmt::Debug + Send + Sync + 'static {
    /// This rank's number.
    fn rank(&self) -> usize;

    /// How many ranks there are.
    fn size(&self) -> usize;

    /// Sends `send[r]` to each rank r and fills `receive[r]` with what r sends here. Both lists have an entry for each rank, its
    /// own too, which is ignored. Returns when all has arrived. Checks that every other rank makes the same call.
    ///
    /// # Errors
    /// [`RankLost`](crate::Error::RankLost), [`Timeout`](crate::Error::Timeout), [`Mismatch`](crate::Error::Mismatch). The
    /// group cannot be used any more then.
    fn exchange(&self, call: &Call, send: &[&[u8]], receive: &mut [&mut [u8]]) -> Result<()>;

    /// Ends what this rank sends, so that the others do not wait for it.
    fn close(&self) {}
}
