//! Charges the GPU memory of NCCL's communicators (`plimsoll_gpu::nccl`) at the calls that allocate it.
//!
//! A communicator allocates its base when it is created, a ring or a tree at the first collective, and a connection to
//! a peer at the first send to it or receive from it. Destroying the communicator frees all of these. The library's
//! code and the kernels' local memory remain.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

use plimsoll_gpu::nccl::{Bytes, Communicator, Kernel, Topology, TreePlace, Variables, Version, library};
use plimsoll_gpu::outside::{Basis, Figure};

use crate::argument::Out;
use crate::comm::CommHandle;
use crate::error::Outcome;
use crate::gpu::{Outside, setup};
use crate::lock::locked;
use crate::memory::memory;
use crate::{outside, settings};

/// The owner, in the ledger, of the library's code.
const LIBRARY: &str = "NCCL's library";

/// The number of streams of a communicator.
const STREAMS: u64 = 2;

/// The first fields of `ncclConfig_t`. Other fields follow.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
    cluster: c_int,
    least_blocks: c_int,
    most_blocks: c_int,
}

/// The direction of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Way {
    Send,
    Receive,
}

/// A new communicator.
pub(super) struct Made {
    pub(super) handle: CommHandle,
    pub(super) rank: u32,
    pub(super) ranks: u32,
    pub(super) device: usize,
    /// Whether all ranks are processes of this machine.
    pub(super) is_local: bool,
    pub(super) config: Option<Config>,
}

/// The memory charged to a communicator so far.
struct Held {
    model: Communicator,
    owner: String,
    device: usize,
    rank: u32,
    has_ring: bool,
    has_tree: bool,
    has_nvls: bool,
    peers: BTreeSet<(u32, Way)>,
    net: BTreeSet<Way>,
}

static HELD: Mutex<BTreeMap<CommHandle, Held>> = Mutex::new(BTreeMap::new());

/// The number of the next communicator.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// Charges a new communicator.
///
/// # Errors
///
/// `OutOfMemory` if it does not fit.
pub(super) fn made(comm: &Made) -> Outcome {
    if setup().outside == Outside::Nothing {
        return Ok(());
    }
    let Made { handle, rank, ranks, device, is_local, config } = *comm;
    let gpu = &setup().gpu;
    memory().uses.grow(device, LIBRARY, library(gpu, version()))?;
    let (topology, is_certain) = topology(ranks, is_local);
    let mut variables = variables().clone();
    if let Some(Config { least_blocks, most_blocks, .. }) = config {
        let given = |blocks: c_int| u32::try_from(blocks).ok().filter(|blocks| *blocks > 0);
        variables.min_channels = variables.min_channels.max(given(least_blocks));
        variables.max_channels = [variables.max_channels, given(most_blocks)].into_iter().flatten().min();
    }
    let mut model = Communicator::new(topology, variables, version());
    if !is_certain {
        model.channels.basis = Basis::Assumed;
    }
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let owner = format!("NCCL communicator {number}, {ranks} rank{}", if ranks == 1 { "" } else { "s" });
    let connected = model.is_connected_at_init();
    let net = if connected { BTreeSet::from([Way::Send, Way::Receive]) } else { BTreeSet::new() };
    let held = Held {
        model,
        owner,
        device,
        rank,
        has_ring: connected,
        has_tree: connected,
        has_nvls: connected,
        peers: BTreeSet::new(),
        net,
    };
    let part = if connected { "base and buffers" } else { "base" };
    held.charge(part, held.model.at_init())?;
    outside::made_streams(device, STREAMS).inspect_err(|_| held.discharge())?;
    locked(&HELD).insert(handle, held);
    Ok(())
}

/// Begins a collective on a communicator. It uses rings unless `NCCL_ALGO` says otherwise.
///
/// # Errors
///
/// `OutOfMemory` if the buffers or the stack that it needs do not fit.
pub(super) fn collective(handle: CommHandle, kernel: Kernel) -> Outcome {
    let mut all = locked(&HELD);
    let Some(held) = all.get_mut(&handle).filter(|held| held.model.topology().ranks > 1) else {
        return Ok(());
    };
    let is_sum = kernel == Kernel::Ring;
    if is_sum && is_only(&held.model, "nvls") {
        if !held.has_nvls {
            held.charge("NVLS", held.model.nvls())?;
            held.has_nvls = true;
        }
    } else if is_sum && is_only(&held.model, "tree") {
        if !held.has_tree {
            let local = held.model.topology().local_ranks();
            let of_tree = held.model.tree(TreePlace::of(held.rank % local, local));
            held.charge("ring and tree", held.model.ring() + of_tree)?;
            (held.has_tree, held.has_ring) = (true, true);
        }
        return outside::stack(held.device, Kernel::Tree.stack_bytes());
    } else if !held.has_ring {
        held.charge("ring", held.model.ring())?;
        held.has_ring = true;
    }
    outside::stack(held.device, kernel.stack_bytes())
}

fn is_only(model: &Communicator, algorithm: &str) -> bool {
    model.variables().is_only(algorithm) && (algorithm != "nvls" || model.channels.nvls > 0)
}

/// Charges the connection for a message to or from a peer.
///
/// # Errors
///
/// `OutOfMemory` if its connection does not fit.
pub(super) fn peer(handle: CommHandle, peer: u32, way: Way) -> Outcome {
    let mut all = locked(&HELD);
    let Some(held) = all.get_mut(&handle) else { return Ok(()) };
    if peer != held.rank && !held.peers.contains(&(peer, way)) {
        let local = held.model.topology().local_ranks();
        let is_local = peer / local == held.rank / local && !held.model.is_network_only();
        if is_local {
            let bytes = match way {
                Way::Send => held.model.send_to_peer(true),
                Way::Receive => held.model.receive_from_peer(true),
            };
            held.charge("peers", bytes)?;
        } else if !held.net.contains(&way) {
            held.charge("network buffers", held.model.net_buffers())?;
            held.net.insert(way);
        }
        held.peers.insert((peer, way));
    }
    outside::stack(held.device, Kernel::SendReceive.stack_bytes())
}

/// Frees the memory of a destroyed communicator.
pub(super) fn destroyed(handle: CommHandle) {
    if let Some(held) = locked(&HELD).remove(&handle) {
        held.discharge();
        outside::ended_streams(held.device, STREAMS);
    }
}

/// The GPU memory that is charged to a communicator, in bytes; 0 if nothing is charged.
pub(super) fn bytes(handle: CommHandle) -> u64 {
    let all = locked(&HELD);
    all.get(&handle).map_or(0, |held| memory().uses.charged_bytes(held.device, &held.owner))
}

impl Held {
    fn charge(&self, part: &'static str, bytes: Bytes) -> Outcome {
        if bytes.device == 0 {
            return Ok(());
        }
        let figure = Figure { bytes: bytes.device, basis: self.model.channels.basis };
        memory().uses.charge(self.device, &self.owner, part, figure)
    }

    fn discharge(&self) {
        memory().uses.discharge(self.device, &self.owner);
    }
}

/// The ranks and links of a communicator, and whether we know which machines the ranks are on. A rank that runs alone
/// knows only the number of ranks. If there are more ranks than the machine has GPUs, they are on several machines;
/// otherwise they are assumed to be on one.
fn topology(ranks: u32, is_local: bool) -> (Topology, bool) {
    let gpu = &setup().gpu;
    let devices = u32::try_from(setup().in_the_machine).unwrap_or(u32::MAX).max(1);
    if is_local || ranks <= devices {
        let alone = !is_local && ranks > 1;
        let world = settings::text("WORLD_SIZE").and_then(|text| text.parse::<u32>().ok());
        return (Topology::node(gpu, ranks), !alone || world.is_none_or(|world| world <= devices));
    }
    let nodes = ranks.div_ceil(devices);
    (Topology::cluster(gpu, nodes, ranks.div_ceil(nodes)), ranks.is_multiple_of(devices))
}

fn variables() -> &'static Variables {
    static READ: OnceLock<Variables> = OnceLock::new();
    READ.get_or_init(|| Variables::read(settings::text))
}

/// The version of the loaded NCCL library, or [`Version::MEASURED`] if none is loaded.
fn version() -> Version {
    static READ: OnceLock<Version> = OnceLock::new();
    *READ.get_or_init(|| {
        // SAFETY: the name ends with a zero.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, c"ncclGetVersion".as_ptr()) };
        let ask: Option<extern "C" fn(*mut c_int) -> c_int> =
            // SAFETY: null becomes None; otherwise the symbol is this function, with its type from `nccl.h`.
            unsafe { std::mem::transmute::<*mut c_void, _>(found) };
        let mut code = 0;
        let is_known = ask.is_some_and(|ask| ask(&raw mut code) == 0);
        u32::try_from(code).ok().filter(|_| is_known).map_or(Version::MEASURED, Version::from_code)
    })
}

/// The configuration that a program passes, if any.
pub(super) fn config(config: Out<Config>) -> Option<Config> {
    if config.is_null() { None } else { config.get().ok() }
}
