//! NCCL's collectives, which compute nothing. Collectives that only move values do move known values (`memory/recent.rs`).
//! Between processes, each rank sends its own values. Otherwise, every rank is assumed to send this rank's values.

use std::cell::RefCell;
use std::ffi::c_int;

use plimsoll_gpu::nccl::Kernel;

use super::memory::{self, Way};
use crate::argument::Out;
use crate::call::calls;
use crate::comm::{Comm, CommHandle, comms, get};
use crate::error::{Failure, Outcome};
use crate::exchange::{Message, deadline};
use crate::memory::recent::{self, recent};
use crate::memory::writes::written;
use crate::stream::{StreamHandle, kernel_on, kernel_somewhere, ran_on};

/// A broadcast.
#[derive(Debug, Clone, Copy)]
struct Broadcast {
    comm: CommHandle,
    from: u64,
    to: u64,
    bytes: usize,
    root: c_int,
}

thread_local! {
    /// The nesting depth of this thread's open groups, and the broadcasts in them.
    static GROUP: RefCell<(usize, Vec<Broadcast>)> = const { RefCell::new((0, Vec::new())) };
}

calls! { Nccl:
    fn ncclAllGather(from: u64, to: u64, count: usize, kind: c_int, comm: CommHandle, stream: StreamHandle) {
        memory::collective(comm, Kernel::Ring)?;
        ran_on(stream);
        let bytes = bytes_of(count, kind)?;
        let call = called(comm, known(from, bytes).as_deref())?;
        let joined = get(comm)?;
        let (own, ranks) = joined.place();
        written(to, bytes.saturating_mul(ranks.len()));
        let mut recent = recent();
        for rank in ranks {
            let to = to + u64::from(rank) * bytes as u64;
            match &joined.exchange {
                Some(exchange) if rank != own => recent.expected(to, exchange.message(rank, call), bytes),
                _ => recent.moved(to, from, bytes),
            }
        }
        Ok(())
    }
    fn ncclBroadcast(
        from: u64, to: u64, count: usize, kind: c_int, root: c_int, comm: CommHandle, stream: StreamHandle,
    ) {
        memory::collective(comm, Kernel::Broadcast)?;
        ran_on(stream);
        broadcast(Broadcast { comm, from, to, bytes: bytes_of(count, kind)?, root })
    }
    /// An in-place broadcast.
    fn ncclBcast(
        buffer: u64, count: usize, kind: c_int, root: c_int, comm: CommHandle, stream: StreamHandle,
    ) {
        memory::collective(comm, Kernel::Broadcast)?;
        ran_on(stream);
        broadcast(Broadcast { comm, from: buffer, to: buffer, bytes: bytes_of(count, kind)?, root })
    }
    fn ncclSend(from: u64, count: usize, kind: c_int, peer: c_int, comm: CommHandle, stream: StreamHandle) {
        memory::peer(comm, peer.unsigned_abs(), Way::Send)?;
        ran_on(stream);
        let known = known(from, bytes_of(count, kind)?);
        if let Some(message) = between(comm, |own| (own, peer.unsigned_abs()))? {
            message.send(known.as_deref());
        }
        Ok(())
    }
    fn ncclRecv(to: u64, count: usize, kind: c_int, peer: c_int, comm: CommHandle, stream: StreamHandle) {
        memory::peer(comm, peer.unsigned_abs(), Way::Receive)?;
        let bytes = bytes_of(count, kind)?;
        written(to, bytes);
        if let Some(message) = between(comm, |own| (peer.unsigned_abs(), own))? {
            ran_on(stream);
            recent().expected(to, message, bytes);
        } else {
            kernel_on(stream);
        }
        Ok(())
    }
    fn ncclAllReduce(
        _from: u64, to: u64, count: usize, kind: c_int, _operation: c_int, comm: CommHandle,
    ) {
        memory::collective(comm, Kernel::Ring)?;
        computed(comm, to, bytes_of(count, kind)?)
    }
    fn ncclReduceScatter(
        _from: u64, to: u64, count: usize, kind: c_int, _operation: c_int, comm: CommHandle,
    ) {
        memory::collective(comm, Kernel::Ring)?;
        computed(comm, to, bytes_of(count, kind)?)
    }
    fn ncclReduce(
        _from: u64, to: u64, count: usize, kind: c_int, _operation: c_int, root: c_int, comm: CommHandle,
    ) {
        memory::collective(comm, Kernel::Ring)?;
        let is_root = get(comm)?.rank == root;
        computed(comm, to, if is_root { bytes_of(count, kind)? } else { 0 })
    }
    fn ncclAlltoAll(_from: u64, to: u64, count: usize, kind: c_int, comm: CommHandle) {
        peers(comm, get(comm)?.place().1, &[Way::Send, Way::Receive])?;
        let ranks = get(comm)?.place().1.len();
        computed(comm, to, bytes_of(count, kind)?.saturating_mul(ranks))
    }
    fn ncclGather(_from: u64, to: u64, count: usize, kind: c_int, root: c_int, comm: CommHandle) {
        let joined = get(comm)?;
        star(&joined, comm, root, Way::Send)?;
        let ranks = if joined.rank == root { joined.place().1.len() } else { 0 };
        computed(comm, to, bytes_of(count, kind)?.saturating_mul(ranks))
    }
    fn ncclScatter(_from: u64, to: u64, count: usize, kind: c_int, root: c_int, comm: CommHandle) {
        star(&get(comm)?, comm, root, Way::Receive)?;
        computed(comm, to, bytes_of(count, kind)?)
    }
    fn ncclGroupStart() {
        GROUP.with_borrow_mut(|(depth, _)| *depth += 1);
        Ok(())
    }
    fn ncclGroupEnd() {
        let left = GROUP.with_borrow_mut(|(depth, _)| {
            *depth = depth.saturating_sub(1);
            *depth
        });
        if left == 0 { settle() } else { Ok(()) }
    }
    fn ncclGroupSimulateEnd(_information: Out<u8>) {
        Ok(())
    }
}

/// Charges this rank's connections to these ranks.
fn peers(comm: CommHandle, ranks: std::ops::Range<u32>, ways: &[Way]) -> Outcome {
    for rank in ranks {
        ways.iter().try_for_each(|way| memory::peer(comm, rank, *way))?;
    }
    Ok(())
}

/// Charges the connections of a gather or scatter: this rank's connection to the root or, on the root, those to all ranks.
fn star(joined: &Comm, comm: CommHandle, root: c_int, way: Way) -> Outcome {
    if joined.rank != root {
        return memory::peer(comm, root.unsigned_abs(), way);
    }
    let back = if way == Way::Send { Way::Receive } else { Way::Send };
    peers(comm, joined.place().1, &[back])
}

/// Counts a collective of a communicator, and publishes it together with the values that this rank sends, if they are known.
/// Returns the number of the collective.
pub(super) fn called(comm: CommHandle, known: Option<&[u8]>) -> Outcome<u64> {
    let mut comms = comms();
    let joined = comms.get_mut(&comm).ok_or(Failure::InvalidHandle)?;
    let call = joined.calls;
    joined.calls += 1;
    let own = joined.place().0;
    if let Some(exchange) = &joined.exchange {
        exchange.message(own, call).send(known);
    }
    Ok(call)
}

/// Runs a collective whose result is unknown. It writes this many bytes at `to`.
fn computed(comm: CommHandle, to: u64, bytes: usize) -> Outcome {
    kernel_somewhere();
    if bytes > 0 {
        written(to, bytes);
    }
    called(comm, None).map(drop)
}

/// The next message between this rank and another. `None` if the ranks are not separate processes.
fn between(comm: CommHandle, ends: impl Fn(u32) -> (u32, u32)) -> Outcome<Option<Message>> {
    let mut comms = comms();
    let joined = comms.get_mut(&comm).ok_or(Failure::InvalidHandle)?;
    let (sender, receiver) = ends(joined.place().0);
    let count = joined.messages.entry((sender, receiver)).or_default();
    let call = *count;
    *count += 1;
    Ok(joined.exchange.as_ref().map(|exchange| exchange.message_to(sender, receiver, call)))
}

/// The values at an address, if they are known. They may come from other ranks.
fn known(from: u64, bytes: usize) -> Option<Vec<u8>> {
    recent::known(from, bytes, deadline())
}

fn broadcast(broadcast: Broadcast) -> Outcome {
    let Broadcast { comm, from, to, bytes, root } = broadcast;
    written(to, bytes);
    let joined = get(comm)?;
    let Some(exchange) = &joined.exchange else { return gathered(broadcast) };
    let is_root = joined.rank == root;
    let sent = if is_root { known(from, bytes) } else { None };
    let call = called(comm, sent.as_deref())?;
    if is_root {
        recent().moved(to, from, bytes);
    } else {
        recent().expected(to, exchange.message(root.unsigned_abs(), call), bytes);
    }
    Ok(())
}

/// A broadcast among ranks of one process. It completes when its group ends.
fn gathered(broadcast: Broadcast) -> Outcome {
    let begun = GROUP.with_borrow_mut(|(depth, broadcasts)| {
        broadcasts.push(broadcast);
        *depth
    });
    if begun == 0 { settle() } else { Ok(()) }
}

/// Runs this thread's pending broadcasts. PyTorch implements `all_gather` as one broadcast per rank. The broadcasts from the
/// other ranks yield this rank's values, because theirs are unknown.
fn settle() -> Outcome {
    let broadcasts = GROUP.with_borrow_mut(|(_, broadcasts)| std::mem::take(broadcasts));
    let mut recent = recent();
    for broadcast in &broadcasts {
        let rank = get(broadcast.comm)?.rank;
        let sent = broadcasts.iter().find(|sent| sent.comm == broadcast.comm && sent.root == rank);
        let from = sent.filter(|sent| sent.bytes == broadcast.bytes).map_or(broadcast.from, |sent| sent.from);
        recent.moved(broadcast.to, from, broadcast.bytes);
    }
    Ok(())
}

/// The bytes of `count` elements of the type `kind`, an `ncclDataType_t`.
fn bytes_of(count: usize, kind: c_int) -> Outcome<usize> {
    let each = match kind {
        0 | 1 | 10 | 11 => 1,
        6 | 9 => 2,
        2 | 3 | 7 => 4,
        4 | 5 | 8 => 8,
        _ => return Err(Failure::InvalidValue),
    };
    count.checked_mul(each).ok_or(Failure::InvalidValue)
}
