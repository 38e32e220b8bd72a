//! Moves bytes from rank to rank: all collectives are built on one method of a trait, [`Transport::exchange`].
//!
//! `sockets.rs` connects processes, `threads.rs` connects threads of one process, and `simulated.rs` connects nothing.
//! `part.rs` uses some of the ranks of one of these. To use another network or to inject faults in a test, implement
//! the trait and pass it to [`Communicator::new`](crate::Communicator::new).

mod part;
mod simulated;
mod sockets;
mod threads;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::record::Call;

pub use part::Part;
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
/// assert!(error.to_string().starts_with("rank 1 did not reach barrier 0"));
/// ```
pub trait Transport: fmt::Debug + Send + Sync + 'static {
    /// This rank's number.
    fn rank(&self) -> usize;

    /// The number of ranks.
    fn size(&self) -> usize;

    /// Sends `send[r]` to each rank r and fills `receive[r]` with the bytes that rank r sends to this one. Both lists have an
    /// entry for every rank; this rank's own entry is ignored. Returns when everything has arrived. Checks that every other rank
    /// makes the same call.
    ///
    /// # Errors
    /// [`RankLost`](crate::Error::RankLost), [`Timeout`](crate::Error::Timeout) or
    /// [`Mismatch`](crate::Error::Mismatch). After an error, the group can no longer be used.
    fn exchange(&self, call: &Call, send: &[&[u8]], receive: &mut [&mut [u8]]) -> Result<()>;

    /// Like [`Transport::exchange`], but only among `ranks`, which are in ascending order and include this rank. Both
    /// lists have an entry for each of them. The default is an error.
    ///
    /// # Errors
    /// The same errors as [`Transport::exchange`]; also if this transport cannot exchange bytes among some of its
    /// ranks.
    fn exchange_among(
        &self,
        ranks: &[usize],
        call: &Call,
        send: &[&[u8]],
        receive: &mut [&mut [u8]],
    ) -> Result<()> {
        let _ = (send, receive);
        let why = format!("this transport has no groups of {} of its {} ranks", ranks.len(), self.size());
        Err(Error::Argument { op: call.op.name(), why })
    }

    /// Connects `ranks` once more; the list is as in [`Transport::exchange_among`], and each of them must make the same
    /// `call`. Exchanges on the new connections may run at the same time as those on the old ones. Ranks keep their
    /// numbers. The default is an error.
    ///
    /// # Errors
    /// If a connection cannot be made; also the same errors as [`Transport::exchange`].
    fn connect_again(&self, ranks: &[usize], call: &Call) -> Result<Arc<dyn Transport>> {
        let why = format!("this transport cannot connect {} ranks once more", ranks.len());
        Err(Error::Argument { op: call.op.name(), why })
    }

    /// After this rank has waited for `waited` for work on its device, returns the reason why it should stop waiting,
    /// if there is one. `call` returns the latest collective. The default is to keep waiting.
    fn gave_up(&self, waited: Duration, call: &dyn Fn() -> Option<Call>) -> Option<Error> {
        let _ = (waited, call);
        None
    }

    /// Stops sending, so that the other ranks do not wait for this one.
    fn close(&self) {}
}
