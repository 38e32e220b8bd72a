//! NCCL: a communicator answers at once, alone in its process; collectives do nothing. So ranks may run as
//! processes of one machine, or one rank may run by itself.

mod collective;

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::sync::{Mutex, MutexGuard};

use crate::argument::Out;
use crate::call::{calls, new_handle, nothing, unknown};
use crate::error::{Failure, Outcome};
use crate::memory::{Kind, memory};
use crate::runtime::current_device;

/// A communicator's handle.
type CommHandle = u64;

/// `ncclUniqueId`, which goes by value.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
struct UniqueId([u8; 128]);

/// What a communicator knows of itself.
#[derive(Debug, Clone, Copy)]
struct Comm {
    rank: c_int,
    ranks: c_int,
    device: usize,
}

static COMMS: Mutex<BTreeMap<CommHandle, Comm>> = Mutex::new(BTreeMap::new());

calls! { Nccl:
    fn ncclGetUniqueId(id: Out<UniqueId>) {
        id.put(unique_id())
    }
    fn ncclCommGetUniqueId(_comm: CommHandle, id: Out<UniqueId>) {
        id.put(unique_id())
    }
    fn ncclCommInitRank(comm: Out<CommHandle>, ranks: c_int, _id: UniqueId, rank: c_int) {
        comm.put(join(rank, ranks)?)
    }
    fn ncclCommInitRankConfig(
        comm: Out<CommHandle>, ranks: c_int, _id: UniqueId, rank: c_int, _config: *const c_void,
    ) {
        comm.put(join(rank, ranks)?)
    }
    fn ncclCommInitRankScalable(
        comm: Out<CommHandle>, ranks: c_int, rank: c_int, _count: c_int, _ids: *const c_void,
        _config: *const c_void,
    ) {
        comm.put(join(rank, ranks)?)
    }
    /// All ranks in one process.
    fn ncclCommInitAll(comms: Out<u8>, ranks: c_int, _devices: *const c_int) {
        let handles: Outcome<Vec<CommHandle>> = (0..ranks).map(|rank| join(rank, ranks)).collect();
        comms.put_bytes(&handles?.iter().flat_map(|handle| handle.to_ne_bytes()).collect::<Vec<u8>>())
    }
    /// The part's size is not known without the other ranks; it has this rank's place in the whole.
    fn ncclCommSplit(
        comm: CommHandle, color: c_int, _key: c_int, part: Out<CommHandle>, _config: *const c_void,
    ) {
        let Comm { rank, ranks, .. } = get(comm)?;
        // A negative color takes no part.
        if color < 0 { part.put(0) } else { part.put(join(rank, ranks)?) }
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

fn comms() -> MutexGuard<'static, BTreeMap<CommHandle, Comm>> {
    COMMS.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn get(comm: CommHandle) -> Outcome<Comm> {
    comms().get(&comm).copied().ok_or(Failure::InvalidHandle)
}

/// A new communicator of this many ranks.
fn join(rank: c_int, ranks: c_int) -> Outcome<CommHandle> {
    if rank < 0 || rank >= ranks {
        return Err(Failure::InvalidValue);
    }
    let handle = new_handle();
    comms().insert(handle, Comm { rank, ranks, device: current_device()? });
    Ok(handle)
}

/// An identity that differs between processes and calls.
fn unique_id() -> UniqueId {
    let mut id = UniqueId([0; 128]);
    id.0[..8].copy_from_slice(&new_handle().to_le_bytes());
    id.0[8..12].copy_from_slice(&std::process::id().to_le_bytes());
    id
}
