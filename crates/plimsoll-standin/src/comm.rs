//! NCCL's communicators: the ranks of this process, and the progress of each. `nccl.rs` has the calls.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::{Mutex, MutexGuard};
use std::time::Instant;

use crate::error::{Failure, Outcome};
use crate::exchange::Exchange;
use crate::lock::locked;

/// A communicator's handle.
pub(crate) type CommHandle = u64;

/// A communicator.
#[derive(Debug, Clone)]
pub(crate) struct Comm {
    pub(crate) rank: c_int,
    pub(crate) ranks: c_int,
    pub(crate) device: usize,
    /// The channel to the other ranks, if they are processes of this machine.
    pub(crate) exchange: Option<Exchange>,
    /// The number of collectives that it has started.
    pub(crate) calls: u64,
    /// The number of collectives that the other ranks are known to have started.
    pub(crate) settled: u64,
    /// The number of point-to-point messages, by sender and receiver.
    pub(crate) messages: BTreeMap<(u32, u32), u64>,
}

impl Comm {
    /// This rank, and the range of all ranks.
    pub(crate) fn place(&self) -> (u32, std::ops::Range<u32>) {
        (self.rank.unsigned_abs(), 0..self.ranks.unsigned_abs())
    }
}

static COMMS: Mutex<BTreeMap<CommHandle, Comm>> = Mutex::new(BTreeMap::new());

/// The communicators of this process, until the guard is dropped.
pub(crate) fn comms() -> MutexGuard<'static, BTreeMap<CommHandle, Comm>> {
    locked(&COMMS)
}

/// Whether a communicator exists.
pub(crate) fn is_in_use() -> bool {
    !comms().is_empty()
}

/// A communicator.
///
/// # Errors
///
/// `InvalidHandle` if there is no such communicator.
pub(crate) fn get(comm: CommHandle) -> Outcome<Comm> {
    comms().get(&comm).cloned().ok_or(Failure::InvalidHandle)
}

/// Waits until the other ranks have started the collectives that this rank has started, as a GPU would before copying
/// anything to the host.
pub(crate) fn wait_for_others(until: Instant) {
    let mut open = Vec::new();
    for (handle, comm) in comms().iter().filter(|(_, comm)| comm.calls > comm.settled) {
        let Some(exchange) = &comm.exchange else { continue };
        let (own, ranks) = comm.place();
        let others = ranks.filter(|rank| *rank != own);
        let last = others.map(|rank| exchange.message(rank, comm.calls - 1)).collect::<Vec<_>>();
        open.push((*handle, comm.calls, last));
    }
    for (handle, calls, last) in open {
        for message in last {
            let _missing = !message.wait(until);
        }
        if let Some(comm) = comms().get_mut(&handle) {
            comm.settled = calls;
        }
    }
}
