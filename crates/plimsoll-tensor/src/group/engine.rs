//! The engine that moves the bytes of a group: its communicator on the host, NCCL on GPUs, and nothing on simulated
//! devices.

use std::sync::{Arc, Mutex, PoisonError};

use plimsoll_cuda::{Gpu, NcclCommunicator, NcclId};
use plimsoll_dist::{Communicator, Content, Op};

use super::nccl_bytes::NcclBytes;
use super::operators::Move;
use crate::capturing;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::stream::Stream;

/// The connections of one rank of a group.
#[derive(Debug)]
pub(super) struct Engine {
    pub(super) communicator: Arc<Communicator>,
    pub(super) is_simulated: bool,
    /// Whether all ranks compare each collective of their GPUs before it is queued.
    checks: bool,
    /// The number of the device that NCCL was joined with. A rank uses one GPU.
    nccl: Mutex<Option<(usize, Arc<NcclCommunicator>)>>,
    /// The streams for collectives that run concurrently with computation, one for each device.
    sides: Mutex<Vec<Stream>>,
    /// The memory that NCCL would use, if the group is simulated.
    simulated: Mutex<NcclBytes>,
}

impl Engine {
    pub(super) fn new(communicator: Arc<Communicator>, is_simulated: bool) -> Engine {
        let checks = std::env::var_os("PLIMSOLL_CHECK_COLLECTIVES").is_some_and(|value| value != "0");
        let (nccl, sides, simulated) = Default::default();
        Engine { communicator, is_simulated, checks, nccl, sides, simulated }
    }

    /// A stream for collectives, separate from the computation's stream. In a capture, it is a branch of the graph.
    pub(super) fn stream(&self, device: &Device) -> Stream {
        let branches = device.backend().gpu().is_some() || !device.has_values();
        if !branches && capturing::is_open(device.number()) {
            return device.current_stream();
        }
        let mut sides = self.sides.lock().unwrap_or_else(PoisonError::into_inner);
        let known = sides.iter().find(|side| side.device() == device).cloned();
        let stream = known.unwrap_or_else(|| {
            let side = Stream::new(device);
            sides.push(side.clone());
            side
        });
        capturing::allow_branch(device.number(), stream.id());
        stream
    }

    /// Begins a collective of tensors on `device`. If that is a GPU, this records the collective and returns the NCCL
    /// communicator that moves the bytes. The host's communicator records collectives itself.
    pub(super) fn begin(
        &self,
        device: &Device,
        what: Move,
        bytes: u64,
        content: Content<'_>,
    ) -> Result<Option<Arc<NcclCommunicator>>> {
        if self.is_simulated {
            let mut simulated = self.simulated.lock().unwrap_or_else(PoisonError::into_inner);
            simulated.add(device, self.communicator.size(), what);
        }
        let Some(gpu) = device.backend().gpu() else { return Ok(None) };
        let nccl = self.joined(device, gpu)?;
        let op = match what {
            Move::AllGather => Op::AllGather,
            Move::AllToAll => Op::AllToAll,
            Move::Broadcast { .. } => Op::Broadcast,
        };
        let checks = self.checks && !capturing::is_open(device.number());
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let announced = self.communicator.announce(op, bytes, content, checks);
        announced.map_err(|source| Error::Distributed { op: op.name(), source: Box::new(source) })?;
        Ok(Some(nccl))
    }

    /// This rank's NCCL communicator. The first call on each rank joins the ranks.
    fn joined(&self, device: &Device, gpu: &Gpu) -> Result<Arc<NcclCommunicator>> {
        const OP: &str = "ncclCommInitRank";
        let mut joined = self.nccl.lock().unwrap_or_else(PoisonError::into_inner);
        match &*joined {
            Some((number, nccl)) if *number == device.number() => return Ok(Arc::clone(nccl)),
            Some(_) => {
                let message = format!("{}: this rank's collectives already use another GPU", device.name());
                return Err(Error::argument(OP, message));
            }
            None => {}
        }
        capturing::refuse(
            device.number(),
            OP,
            "it waits for other ranks: run the step once before the capture",
        )?;
        let failed = |source| Error::Cuda { device: device.name().to_owned(), op: OP, source };
        let (rank, size) = (self.communicator.rank(), self.communicator.size());
        let mut id = NcclId([0; 128]);
        if rank == 0 {
            id = gpu.nccl_id().map_err(failed)?;
        }
        let content = Content { label: "NCCL's id", dtype: "uint8" };
        let sent = self.communicator.broadcast(&mut id.0, 0, content);
        sent.map_err(|source| Error::Distributed { op: OP, source: Box::new(source) })?;
        let nccl = Arc::new(gpu.join(id, rank, size).map_err(failed)?);
        let (communicator, ours) = (Arc::downgrade(&self.communicator), Arc::downgrade(&nccl));
        device.backend().wait_unless(Box::new(move |waited| {
            let source = communicator.upgrade()?.gave_up(waited)?;
            if let Some(nccl) = ours.upgrade() {
                nccl.abort();
            }
            Some(Error::Distributed { op: "synchronize", source: Box::new(source) })
        }));
        *joined = Some((device.number(), Arc::clone(&nccl)));
        Ok(nccl)
    }
}
