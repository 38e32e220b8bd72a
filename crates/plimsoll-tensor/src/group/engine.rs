//! The engine that moves the bytes of a group: its communicator on the host, NCCL on GPUs, and nothing on simulated
//! devices.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use plimsoll_cuda::{Carrier, Gpu, NcclCommunicator, NcclId};
use plimsoll_dist::{Communicator, Content, Op};

use super::memory::{Peers, SharedMemory};
use super::nccl_bytes::{Hosts, NcclBytes};
use super::operators::Move;
use super::watch::Watch;
use crate::capturing;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::stream::{Stream, current};
use crate::tensor::Tensor;

/// The number of groups so far.
static MADE: AtomicU64 = AtomicU64::new(0);

/// The connections of one rank of a group.
#[derive(Debug)]
pub(super) struct Engine {
    /// A number that is unique among the groups of this process.
    pub(super) number: u64,
    pub(super) communicator: Arc<Communicator>,
    /// The members of the group, by their ranks among all.
    pub(super) ranks: Vec<usize>,
    pub(super) hosts: Hosts,
    pub(super) is_simulated: bool,
    /// The number of the device that joined NCCL. A rank uses one GPU.
    nccl: Mutex<Option<(usize, Arc<NcclCommunicator>)>>,
    /// The memory that NCCL would use, if the group is simulated.
    simulated: Mutex<NcclBytes>,
    /// How the ranks of this group read each other's memory.
    pub(super) peers: Mutex<Peers>,
    pub(super) shared: Arc<Shared>,
    /// The same ranks over their own connections, once a thread has needed them.
    background: Mutex<Option<Arc<Engine>>>,
}

/// What all groups of a rank share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) watch: Arc<Watch>,
    /// Whether all ranks compare each collective of their GPUs before it is queued.
    checks: bool,
    /// The streams for collectives that run concurrently with computation, one for each device. Collectives of all
    /// groups use the same stream, so that all ranks run them in the same order.
    sides: Mutex<Vec<Stream>>,
    pub(super) memory: SharedMemory,
    /// Whether NCCL would be loaded, if the groups are simulated.
    has_library: AtomicBool,
    /// The number of collectives, and of the bytes that this rank has sent in them.
    pub(super) collectives: AtomicU64,
    pub(super) sent_bytes: AtomicU64,
}

impl Engine {
    pub(super) fn new(communicator: Arc<Communicator>, is_simulated: bool) -> Engine {
        let checks = std::env::var_os("PLIMSOLL_CHECK_COLLECTIVES").is_some_and(|value| value != "0");
        let (watch, ranks) = (Watch::new(&communicator), (0..communicator.size()).collect());
        let (sides, memory, has_library, collectives, sent_bytes) = Default::default();
        let shared = Shared { watch, checks, sides, memory, has_library, collectives, sent_bytes };
        Engine::of(communicator, ranks, is_simulated, Arc::new(shared))
    }

    fn of(
        communicator: Arc<Communicator>,
        ranks: Vec<usize>,
        is_simulated: bool,
        shared: Arc<Shared>,
    ) -> Engine {
        let (hosts, (nccl, simulated, peers, background)) = (Hosts::of(&ranks), Default::default());
        let number = MADE.fetch_add(1, Ordering::Relaxed);
        Engine {
            number,
            communicator,
            ranks,
            hosts,
            is_simulated,
            nccl,
            simulated,
            peers,
            shared,
            background,
        }
    }

    /// The engine for the same ranks on another thread. The first call on each rank connects the ranks.
    pub(super) fn background(&self) -> Result<Arc<Engine>> {
        let mut background = self.background.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = &*background {
            return Ok(Arc::clone(known));
        }
        let failed = |source| Error::Distributed { op: "background", source: Box::new(source) };
        let again = Arc::new(self.communicator.duplicate().map_err(failed)?);
        let engine = Engine::of(again, self.ranks.clone(), self.is_simulated, Arc::clone(&self.shared));
        Ok(Arc::clone(background.insert(Arc::new(engine))))
    }

    /// The engine for a group of some of these ranks, in ascending order.
    pub(super) fn part(&self, ranks: &[usize], name: &str) -> Result<Engine> {
        let failed = |source| Error::Distributed { op: "new_group", source: Box::new(source) };
        let part = self.communicator.new_group(ranks, name).map_err(failed)?;
        let ranks = ranks.iter().map(|rank| self.ranks[*rank]).collect();
        Ok(Engine::of(Arc::new(part), ranks, self.is_simulated, Arc::clone(&self.shared)))
    }

    /// A stream for collectives, separate from the computation's stream. In a capture, it is a branch of the graph.
    pub(super) fn stream(&self, device: &Device) -> Stream {
        let branches = device.gpu().is_some() || !device.has_values();
        if !branches && capturing::is_open(device.number()) {
            return device.current_stream();
        }
        let mut sides = self.shared.sides.lock().unwrap_or_else(PoisonError::into_inner);
        let known = sides.iter().find(|side| side.device() == device).cloned();
        let stream = known.unwrap_or_else(|| {
            let side = Stream::new(device);
            sides.push(side.clone());
            side
        });
        capturing::allow_branch(device.number(), stream.id());
        stream
    }

    /// Begins a collective whose bytes are in `tensor`. For a GPU, this records the collective and returns the object
    /// that moves the bytes. The host's communicator records collectives itself.
    pub(super) fn begin(
        &self,
        tensor: &Tensor,
        what: Move,
        bytes: u64,
        content: Content<'_>,
    ) -> Result<Option<Carrier>> {
        let device = tensor.device();
        // Copies of one group must be on one stream, so those on other streams are NCCL's.
        let is_beside = || current(device) == self.stream(device).id();
        let is_shared = what.reads_peers() && self.shared.memory.has(self.number, tensor) && is_beside();
        if self.is_simulated && !is_shared {
            let mut simulated = self.simulated.lock().unwrap_or_else(PoisonError::into_inner);
            let loads = || !self.shared.has_library.swap(true, Ordering::Relaxed);
            simulated.add(device, self.hosts, what, loads);
        }
        let Some(gpu) = device.gpu() else { return Ok(None) };
        let op = match what {
            Move::AllGather => Op::AllGather,
            Move::AllToAll { .. } => Op::AllToAll,
            Move::Broadcast { .. } => Op::Broadcast,
        };
        let failed = |source| Error::Distributed { op: op.name(), source: Box::new(source) };
        if let Some(lost) = self.shared.watch.ended(Duration::ZERO) {
            return Err(failed(lost));
        }
        let peers = if is_shared { self.peers().copies() } else { None };
        let carrier = match peers {
            Some(peers) => Carrier::Peers(peers),
            None => Carrier::Nccl(self.joined(device, gpu)?),
        };
        let checks = self.shared.checks && !capturing::is_open(device.number());
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let announced = self.communicator.announce(op, bytes, content, checks);
        announced.map_err(failed)?;
        Ok(Some(carrier))
    }

    pub(super) fn peers(&self) -> MutexGuard<'_, Peers> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
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
        self.shared.watch.add(device, &Carrier::Nccl(Arc::clone(&nccl)));
        *joined = Some((device.number(), Arc::clone(&nccl)));
        Ok(nccl)
    }
}
