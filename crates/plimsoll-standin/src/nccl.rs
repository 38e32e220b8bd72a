//! NCCL: collectives compute nothing. Ranks may be processes of one machine, which exchange known values and their
//! progress (`exchange.rs`), or a rank may run alone.

mod collective;

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};

use crate::argument::Out;
use crate::call::{calls, new_handle, nothing, unknown};
use crate::comm::{Comm, CommHandle, comms, get};
use crate::error::{Failure, Outcome};
use crate::exchange::{Exchange, deadline};
use crate::gpu::current_device;
use crate::memory::{Kind, memory};

/// `ncclUniqueId`, which is passed by value.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct UniqueId([u8; 128]);

impl UniqueId {
    /// The ID as a folder name.
    fn name(&self) -> String {
        self.0[..12].iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

calls! { Nccl:
    fn ncclGetUniqueId(id: Out<UniqueId>) {
        id.put(unique_id())
    }
    fn ncclCommGetUniqueId(_comm: CommHandle, id: Out<UniqueId>) {
        id.put(unique_id())
    }
    fn ncclCommInitRank(comm: Out<CommHandle>, ranks: c_int, id: UniqueId, rank: c_int) {
        comm.put(join(rank, ranks, || Exchange::named(&id.name()))?)
    }
    fn ncclCommInitRankConfig(
        comm: Out<CommHandle>, ranks: c_int, id: UniqueId, rank: c_int, _config: *const c_void,
    ) {
        comm.put(join(rank, ranks, || Exchange::named(&id.name()))?)
    }
    fn ncclCommInitRankScalable(
        comm: Out<CommHandle>, ranks: c_int, rank: c_int, _count: c_int, _ids: *const c_void,
        _config: *const c_void,
    ) {
        comm.put(join(rank, ranks, || None)?)
    }
    /// Makes communicators for all ranks in one process.
    fn ncclCommInitAll(comms: Out<u8>, ranks: c_int, _devices: *const c_int) {
        let handles: Outcome<Vec<CommHandle>> = (0..ranks).map(|rank| join(rank, ranks, || None)).collect();
        comms.put_bytes(&handles?.iter().flat_map(|handle| handle.to_ne_bytes()).collect::<Vec<u8>>())
    }
    fn ncclCommSplit(
        comm: CommHandle, color: c_int, key: c_int, part: Out<CommHandle>, _config: *const c_void,
    ) {
        part.put(split(comm, color, key)?)
    }
    fn ncclCommCount(comm: CommHandle, ranks: Out<c_int>) {
        ranks.put(get(comm)?.ranks)
    }
    fn ncclCommUserRank(comm: CommHandle, rank: Out<c_int>) {
        rank.put(get(comm)?.rank)
    }
    fn ncclCommCuDevice(comm: CommHandle, device: Out<c_int>) {
        device.put(get(comm)?.device as c_int)
    }
    fn ncclCommDestroy(comm: CommHandle) {
        comms().remove(&comm);
        Ok(())
    }
    fn ncclCommAbort(comm: CommHandle) {
        comms().remove(&comm);
        Ok(())
    }
    fn ncclCommGetAsyncError(_comm: CommHandle, error: Out<c_int>) {
        error.put(0)
    }
    fn ncclMemAlloc(address: Out<u64>, bytes: usize) {
        let device = current_device()?;
        address.put(memory().allocate(device, bytes as u64, Kind::Device(device))?)
    }
    fn ncclMemFree(address: u64) {
        memory().free(address)
    }
    fn ncclRedOpCreatePreMulSum(
        operation: Out<c_int>, _scalar: *const c_void, _kind: c_int, _residence: c_int, _comm: CommHandle,
    ) {
        // The first number after NCCL's own operations, of which there are five.
        operation.put(5)
    }
    fn ncclCommMemStats(_comm: CommHandle, _statistic: c_int, value: Out<u64>) {
        value.put(0)
    }
    fn ncclCommRegister(_comm: CommHandle, _buffer: u64, _bytes: usize, handle: Out<u64>) {
        handle.put(new_handle())
    }
}

nothing! { Nccl: ncclCommFinalize ncclCommDeregister ncclRedOpDestroy }

unknown! { Nccl:
    ncclCommGrow ncclCommResume ncclCommRevoke ncclCommShrink ncclCommSuspend ncclCommWindowDeregister
    ncclCommWindowRegister ncclDevCommCreate ncclDevCommDestroy ncclGetLsaMultimemDevicePointer
    ncclGetPeerDevicePointer ncclPutSignal ncclSignal ncclWaitSignal ncclWinGetUserPtr
}

/// Makes a communicator of this many ranks. `exchange` opens the channel to the others.
fn join(rank: c_int, ranks: c_int, exchange: impl FnOnce() -> Option<Exchange>) -> Outcome<CommHandle> {
    if rank < 0 || rank >= ranks {
        return Err(Failure::InvalidValue);
    }
    let handle = new_handle();
    let device = current_device()?;
    let exchange = if ranks > 1 { exchange() } else { None };
    let messages = BTreeMap::new();
    comms().insert(handle, Comm { rank, ranks, device, exchange, calls: 0, settled: 0, messages });
    Ok(handle)
}

/// A communicator of the ranks that chose this color, in the order of their keys; null for a negative color. Without
/// the other ranks the size of that group is unknown, so the result is as large as the original communicator.
fn split(comm: CommHandle, color: c_int, key: c_int) -> Outcome<CommHandle> {
    let choice = [color, key].map(c_int::to_ne_bytes);
    let call = collective::called(comm, Some(choice.as_flattened()))?;
    let Comm { rank, ranks, exchange, .. } = get(comm)?;
    if color < 0 {
        return Ok(0);
    }
    let Some(exchange) = exchange else { return join(rank, ranks, || None) };
    let until = deadline();
    let chose = |rank: c_int| {
        let message = exchange.message(rank.unsigned_abs(), call).read(until)?;
        let &[its, key] = message.as_chunks::<4>().0 else { return None };
        (c_int::from_ne_bytes(its) == color).then_some((c_int::from_ne_bytes(key), rank))
    };
    let mut members: Vec<(c_int, c_int)> = (0..ranks).filter_map(chose).collect();
    members.sort_unstable();
    let place = members.iter().position(|(_, member)| *member == rank).ok_or(Failure::InvalidValue)?;
    join(place as c_int, members.len() as c_int, || exchange.part(&format!("{call}-{color}")))
}

/// An ID that differs between processes and calls.
fn unique_id() -> UniqueId {
    let mut id = UniqueId([0; 128]);
    id.0[..8].copy_from_slice(&new_handle().to_le_bytes());
    id.0[8..12].copy_from_slice(&std::process::id().to_le_bytes());
    id
}
