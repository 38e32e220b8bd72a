//! The engine that moves the bytes of a group: its communicator on the host, NCCL on GPUs, and nothing on simulated
//! devices.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::Duration;

use plimsoll_cuda::{Carrier, Gpu, NcclCommunicator, NcclId, PeerCopies};
use plimsoll_dist::{Communicator, Content, Op};

use super::nccl_bytes::{Hosts, NcclBytes};
use super::operators::Move;
use super::shared::{Peers, SharedMemory};
use crate::capturing;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::stream::Stream;
use crate::tensor::Tensor;

/// How often the guard looks for lost ranks.
const LOOK: Duration = Duration::from_millis(50);

/// The connections of one rank of a group.
#[derive(Debug)]
pub(super) struct Engine {
    pub(super) communicator: Arc<Communicator>,
    /// The members of the group, by their ranks among all.
    pub(super) ranks: Vec<usize>,
    pub(super) hosts: Hosts,
    pub(super) is_simulated: bool,
    /// The number of the device that joined NCCL. A rank uses one GPU.
    nccl: Mutex<Option<(usize, Arc<NcclCommunicator>)>>,
    /// The memory that NCCL would use, if the group is simulated.
    simulated: Mutex<NcclBytes>,
    /// The memory that the ranks of this group can read.
    pub(super) peers: Mutex<Peers>,
    pub(super) shared: Arc<Shared>,
}

/// What all groups of a rank share.
#[derive(Debug)]
pub(super) struct Shared {
    /// The communicator of all ranks.
    all: Arc<Communicator>,
    /// Whether all ranks compare each collective of their GPUs before it is queued.
    checks: bool,
    /// The streams for collectives that run concurrently with computation, one for each device. Collectives of all
    /// groups use the same stream, so that all ranks run them in the same order.
    sides: Mutex<Vec<Stream>>,
    /// NCCL's communicators and groups of copy engines, which are all aborted if a rank is lost.
    carriers: Mutex<Vec<WeakCarrier>>,
    /// Whether a thread watches for lost ranks.
    is_guarded: AtomicBool,
    pub(super) memory: SharedMemory,
    /// Whether NCCL would be loaded, if the groups are simulated.
    has_library: AtomicBool,
    /// The number of collectives, and of the bytes that this rank has sent in them.
    pub(super) collectives: AtomicU64,
    pub(super) sent_bytes: AtomicU64,
}

#[derive(Debug)]
enum WeakCarrier {
    Nccl(Weak<NcclCommunicator>),
    Peers(Weak<PeerCopies>),
}

impl WeakCarrier {
    fn is_gone(&self) -> bool {
        match self {
            WeakCarrier::Nccl(nccl) => nccl.strong_count() == 0,
            WeakCarrier::Peers(peers) => peers.strong_count() == 0,
        }
    }

    fn abort(&self) {
        match self {
            WeakCarrier::Nccl(nccl) => nccl.upgrade().iter().for_each(NcclCommunicator::abort),
            WeakCarrier::Peers(peers) => peers.upgrade().iter().for_each(|peers| peers.abort()),
        }
    }
}

impl Shared {
    fn carriers(&self) -> MutexGuard<'_, Vec<WeakCarrier>> {
        self.carriers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A thread that ends the device's work if a rank is lost. The host cannot always do it: if it is far ahead of a
    /// device that waits for the lost rank, it waits in the driver for room in a queue.
    fn guard(self: &Arc<Shared>) {
        let shared = Arc::downgrade(self);
        let guard = move || {
            while let Some(shared) = shared.upgrade() {
                if shared.all.gave_up(Duration::ZERO).is_some() {
                    return shared.carriers().iter().for_each(WeakCarrier::abort);
                }
                drop(shared);
                thread::sleep(LOOK);
            }
        };
        // Without the thread, the host still notices a lost rank when it waits for the device.
        let _ = thread::Builder::new().name("plimsoll guard".to_owned()).spawn(guard);
    }

    /// From now on, waits for the device end when a rank is lost, and this carrier's work ends too.
    pub(super) fn watch(self: &Arc<Shared>, device: &Device, carrier: &Carrier) {
        if !self.is_guarded.swap(true, Ordering::Relaxed) {
            self.guard();
        }
        let mut carriers = self.carriers();
        carriers.retain(|other| !other.is_gone());
        carriers.push(match carrier {
            Carrier::Nccl(nccl) => WeakCarrier::Nccl(Arc::downgrade(nccl)),
            Carrier::Peers(peers) => WeakCarrier::Peers(Arc::downgrade(peers)),
        });
        drop(carriers);
        let shared = Arc::downgrade(self);
        // All ranks are checked, even if the group has only some of them: members may be waiting for a rank outside
        // the group.
        device.backend().wait_unless(Box::new(move |waited| {
            let shared = shared.upgrade()?;
            let source = shared.all.gave_up(waited)?;
            shared.carriers().iter().for_each(WeakCarrier::abort);
            Some(Error::Distributed { op: "synchronize", source: Box::new(source) })
        }));
    }
}

impl Engine {
    pub(super) fn new(communicator: Arc<Communicator>, is_simulated: bool) -> Engine {
        let checks = std::env::var_os("PLIMSOLL_CHECK_COLLECTIVES").is_some_and(|value| value != "0");
        let (all, ranks) = (Arc::clone(&communicator), (0..communicator.size()).collect());
        let (sides, carriers, is_guarded, memory) = Default::default();
        let (has_library, collectives, sent_bytes) = Default::default();
        let shared =
            Shared { all, checks, sides, carriers, is_guarded, memory, has_library, collectives, sent_bytes };
        Engine::of(communicator, ranks, is_simulated, Arc::new(shared))
    }

    fn of(
        communicator: Arc<Communicator>,
        ranks: Vec<usize>,
        is_simulated: bool,
        shared: Arc<Shared>,
    ) -> Engine {
        let (hosts, (nccl, simulated, peers)) = (Hosts::of(&ranks), Default::default());
        Engine { communicator, ranks, hosts, is_simulated, nccl, simulated, peers, shared }
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

    /// Begins a collective whose bytes are in `tensor`. For a GPU, this records the collective and returns what moves
    /// the bytes. The host's communicator records collectives itself.
    pub(super) fn begin(
        &self,
        tensor: &Tensor,
        what: Move,
        bytes: u64,
        content: Content<'_>,
    ) -> Result<Option<Carrier>> {
        let device = tensor.device();
        let is_shared = what.reads_peers() && self.peers().have(tensor);
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
        if let Some(lost) = self.shared.all.gave_up(Duration::ZERO) {
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
        self.shared.watch(device, &Carrier::Nccl(Arc::clone(&nccl)));
        *joined = Some((device.number(), Arc::clone(&nccl)));
        Ok(nccl)
    }
}
