//! Collectives: they compute nothing. Those that only move values move what is known of them
//! (`memory/recent.rs`), as if every rank had sent what this one sends.

use std::cell::RefCell;
use std::ffi::c_int;

use super::{CommHandle, get};
use crate::argument::Out;
use crate::call::{calls, work};
use crate::error::{Failure, Outcome};
use crate::memory::recent::recent;
use crate::stream::{StreamHandle, ran_on};

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
    /// How many groups this thread has begun, and the broadcasts in them.
    static GROUP: RefCell<(usize, Vec<Broadcast>)> = const { RefCell::new((0, Vec::new())) };
}

calls! { Nccl:
    fn ncclAllGather(from: u64, to: u64, count: usize, kind: c_int, comm: CommHandle, stream: StreamHandle) {
        ran_on(stream);
        let bytes = bytes_of(count, kind)?;
        let mut recent = recent();
        for rank in 0..get(comm)?.ranks.unsigned_abs() {
            recent.moved(to + u64::from(rank) * bytes as u64, from, bytes);
        }
        Ok(())
    }
    fn ncclBroadcast(
        from: u64, to: u64, count: usize, kind: c_int, root: c_int, comm: CommHandle, stream: StreamHandle,
    ) {
        ran_on(stream);
        let broadcast = Broadcast { comm, from, to, bytes: bytes_of(count, kind)?, root };
        let begun = GROUP.with_borrow_mut(|(depth, broadcasts)| {
            broadcasts.push(broadcast);
            *depth
        });
        if begun == 0 { settle() } else { Ok(()) }
    }
    /// In place: what is there stays.
    fn ncclBcast(
        _buffer: u64, _count: usize, _kind: c_int, _root: c_int, _comm: CommHandle, stream: StreamHandle,
    ) {
        ran_on(stream);
        Ok(())
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

work! { Nccl:
    ncclAllReduce ncclReduceScatter ncclReduce ncclAlltoAll ncclGather ncclScatter ncclSend ncclRecv
}

/// Does the broadcasts that this thread has gathered. PyTorch makes one of each rank for an `all_gather`:
/// those of the other ranks bring what this one sends.
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

/// The size of so many elements of a kind: `ncclDataType_t`.
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
