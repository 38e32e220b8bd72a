//! NCCL. Its collectives compute nothing. Ranks may be processes on one machine, which exchange known values and their
//! progress (`exchange.rs`), or a rank may run alone.

mod collective;
mod memory;

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};

use crate::argument::Out;
use crate::call::{calls, new_handle, nothing, unknown};
use crate::comm::{Comm, CommHandle, comms, get};
use crate::error::{Failure, Outcome};
use crate::exchange::{Exchange, deadline};
use crate::gpu::current_device;
use crate::memory::Kind;
use memory::{Config, Made};

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
        comm.put(join(rank, ranks, None, || Exchange::named(&id.name()))?)
    }
    fn ncclCommInitRankConfig(
        comm: Out<CommHandle>, ranks: c_int, id: UniqueId, rank: c_int, config: Out<Config>,
    ) {
        comm.put(join(rank, ranks, memory::config(config), || Exchange::named(&id.name()))?)
    }
    fn ncclCommInitRankScalable(
        comm: Out<CommHandle>, ranks: c_int, rank: c_int, _count: c_int, _ids: *const c_void,
        config: Out<Config>,
    ) {
        comm.put(join(rank, ranks, memory::config(config), || None)?)
    }
    /// Creates communicators for all ranks in one process.
    fn ncclCommInitAll(comms: Out<u8>, ranks: c_int, _devices: *const c_int) {
        let handles: Outcome<Vec<CommHandle>> = (0..ranks).map(|rank| join(rank, ranks, None, || None)).collect();
        comms.put_bytes(&handles?.iter().flat_map(|handle| handle.to_ne_bytes()).collect::<Vec<u8>>())
    }
    fn ncclCommSplit(
        comm: CommHandle, color: c_int, key: c_int, part: Out<CommHandle>, config: Out<Config>,
    ) {
        part.put(split(comm, color, key, memory::config(config))?)
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
        destroy(comm);
        Ok(())
    }
    fn ncclCommAbort(comm: CommHandle) {
        destroy(comm);
        Ok(())
    }
    fn ncclCommGetAsyncError(_comm: CommHandle, error: Out<c_int>) {
        error.put(0)
    }
    fn ncclMemAlloc(address: Out<u64>, bytes: usize) {
        let device = current_device()?;
        address.put(crate::memory::memory().allocate(device, bytes as u64, Kind::Device(device))?)
    }
    fn ncclMemFree(address: u64) {
        crate::memory::memory().free(address)
    }
    fn ncclRedOpCreatePreMulSum(
        operation: Out<c_int>, _scalar: *const c_void, _kind: c_int, _residence: c_int, _comm: CommHandle,
    ) {
        // The first number after NCCL's own operations, of which there are five.
        operation.put(5)
    }
    /// The statistics are bytes of memory that can be suspended (0), that is suspended (1), that cannot be suspended (2), and the
    /// total (3).
    fn ncclCommMemStats(comm: CommHandle, statistic: c_int, value: Out<u64>) {
        get(comm)?;
        value.put(if statistic >= 2 { memory::bytes(comm) } else { 0 })
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

/// Creates a communicator with this many ranks. `exchange` opens the channel to the others.
///
/// # Errors
///
/// `InvalidValue` if `rank` is not below `ranks`; `OutOfMemory` if the communicator does not fit on the GPU.
fn join(
    rank: c_int,
    ranks: c_int,
    config: Option<Config>,
    exchange: impl FnOnce() -> Option<Exchange>,
) -> Outcome<CommHandle> {
    if rank < 0 || rank >= ranks {
        return Err(Failure::InvalidValue);
    }
    let handle = new_handle();
    let device = current_device()?;
    let exchange = if ranks > 1 { exchange() } else { None };
    let messages = BTreeMap::new();
    let (own, all) = (rank.unsigned_abs(), ranks.unsigned_abs());
    let is_local = exchange.is_some();
    memory::made(&Made { handle, rank: own, ranks: all, device, is_local, config })?;
    comms().insert(handle, Comm { rank, ranks, device, exchange, calls: 0, settled: 0, messages });
    Ok(handle)
}

fn destroy(comm: CommHandle) {
    comms().remove(&comm);
    memory::destroyed(comm);
}

/// A communicator of the ranks that chose this color, in the order of their keys; null for a negative color. Without
/// the other ranks, the size of that group is unknown, so the result is as large as the original communicator.
fn split(comm: CommHandle, color: c_int, key: c_int, config: Option<Config>) -> Outcome<CommHandle> {
    let choice = [color, key].map(c_int::to_ne_bytes);
    let call = collective::called(comm, Some(choice.as_flattened()))?;
    let Comm { rank, ranks, exchange, .. } = get(comm)?;
    if color < 0 {
        return Ok(0);
    }
    let Some(exchange) = exchange else { return join(rank, ranks, config, || None) };
    let until = deadline();
    let chose = |rank: c_int| {
        let message = exchange.message(rank.unsigned_abs(), call).read(until)?;
        let &[its, key] = message.as_chunks::<4>().0 else { return None };
        (c_int::from_ne_bytes(its) == color).then_some((c_int::from_ne_bytes(key), rank))
    };
    let mut members: Vec<(c_int, c_int)> = (0..ranks).filter_map(chose).collect();
    members.sort_unstable();
    let place = members.iter().position(|(_, member)| *member == rank).ok_or(Failure::InvalidValue)?;
    join(place as c_int, members.len() as c_int, config, || exchange.part(&format!("{call}-{color}")))
}

/// An ID that differs between processes and calls.
fn unique_id() -> UniqueId {
    let mut id = UniqueId([0; 128]);
    id.0[..8].copy_from_slice(&new_handle().to_le_bytes());
    id.0[8..12].copy_from_slice(&std::process::id().to_le_bytes());
    id
}
