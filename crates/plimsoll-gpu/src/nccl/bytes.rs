//! The bytes that a communicator uses, and when: [`Communicator`], [`Bytes`], [`Kernel`].
//!
//! A communicator allocates its *base* when it is created: three allocations per channel and two more, each in its own
//! page. Buffers are allocated by the first call that needs them: a *ring* by the first collective, a *tree* if NCCL
//! selects one, and the connection to a *peer* by the first send to it or receive from it. A buffer is in the
//! receiver's memory, and its head is in the sender's.

use std::ops::{Add, AddAssign, Mul};

use super::channels::Channels;
use super::topology::{Link, Topology};
use super::variables::Variables;
use super::version::Version;
use crate::Gpu;
use crate::outside::{Basis, Figure, Library, Loading, PAGE_BYTES, whole_pages};

/// The size of a connection's head, which is in the sender's memory.
const HEAD_BYTES: u64 = 4096;

/// The pinned host memory of a communicator.
const PINNED_BYTES: u64 = 1_179_652;

/// How many steps per channel fit into the buffers that all sends over the network share: two buffers of 8 steps are
/// kept ready.
const SHARED_STEPS: u64 = 16;

/// A step of a send within a node.
const STEP_BYTES: u64 = 512 << 10;
/// A step of a send over the network.
const NET_STEP_BYTES: u64 = 128 << 10;

/// An NVLS buffer. Each channel has two for each GPU of the node.
const NVLS_BYTES: u64 = 1 << 20;

/// The bytes that a rank uses on its GPU, and on the host (pinned, or shared with other ranks).
///
/// ```
/// use plimsoll_gpu::nccl::Bytes;
/// assert_eq!(Bytes::device(2) + Bytes::host(3) * 2, Bytes { device: 2, host: 6 });
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Bytes {
    /// On the GPU.
    pub device: u64,
    /// On the host.
    pub host: u64,
}

impl Bytes {
    /// This many bytes on the GPU.
    pub const fn device(bytes: u64) -> Bytes {
        Bytes { device: bytes, host: 0 }
    }

    /// This many bytes on the host.
    pub const fn host(bytes: u64) -> Bytes {
        Bytes { device: 0, host: bytes }
    }
}

impl Add for Bytes {
    type Output = Bytes;

    fn add(self, other: Bytes) -> Bytes {
        Bytes { device: self.device.saturating_add(other.device), host: self.host.saturating_add(other.host) }
    }
}

impl AddAssign for Bytes {
    fn add_assign(&mut self, other: Bytes) {
        *self = *self + other;
    }
}

impl Mul<u32> for Bytes {
    type Output = Bytes;

    fn mul(self, times: u32) -> Bytes {
        let times = u64::from(times);
        Bytes { device: self.device.saturating_mul(times), host: self.host.saturating_mul(times) }
    }
}

/// A kernel of NCCL, whose stack is in the context's pool of local memory.
///
/// ```
/// use plimsoll_gpu::{nccl::Kernel, outside::local_memory_bytes};
/// let gpu = plimsoll_gpu::named("H100")?;
/// let pool = |stack| local_memory_bytes(gpu, stack);
/// assert_eq!(pool(Kernel::Ring.stack_bytes()) - pool(0), 186 << 20);
/// # Ok::<(), plimsoll_gpu::UnknownGpu>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kernel {
    /// For a collective over rings, except a broadcast.
    Ring,
    /// For a broadcast.
    Broadcast,
    /// For a collective over trees.
    Tree,
    /// For sends and receives, including those of an all-to-all.
    SendReceive,
}

impl Kernel {
    /// The stack size per thread in NCCL 2.28.9 for compute capability 9.0, according to `cuobjdump
    /// --dump-resource-usage`.
    pub fn stack_bytes(self) -> u32 {
        match self {
            Kernel::Ring => 1736,
            Kernel::Broadcast => 1752,
            Kernel::Tree => 1864,
            Kernel::SendReceive => 1976,
        }
    }
}

/// The GPU memory that NCCL itself uses from a process's first communicator on.
///
/// ```
/// use plimsoll_gpu::nccl::{Version, library};
/// assert_eq!(library(plimsoll_gpu::named("H100")?, Version::MEASURED).bytes, 111_149_056);
/// # Ok::<(), plimsoll_gpu::UnknownGpu>(())
/// ```
pub fn library(gpu: &Gpu, version: Version) -> Figure {
    let figure = Library::Nccl.first_use(gpu, Loading::Lazy);
    if version == Version::MEASURED { figure } else { Figure::new(figure.bytes, Basis::Assumed) }
}

/// A rank's place in a tree. Within a node, trees are chains.
///
/// ```
/// use plimsoll_gpu::nccl::TreePlace;
/// assert_eq!(TreePlace::of(7, 8), TreePlace::Leaf);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TreePlace {
    /// It has only a child.
    Root,
    /// It has a parent and a child.
    Inner,
    /// It has only a parent.
    Leaf,
}

impl TreePlace {
    /// The place of this rank among the `ranks` ranks of a node.
    pub fn of(rank: u32, ranks: u32) -> TreePlace {
        match rank {
            0 => TreePlace::Root,
            _ if rank + 1 >= ranks => TreePlace::Leaf,
            _ => TreePlace::Inner,
        }
    }
}

/// A communicator, as seen from one of its ranks.
///
/// ```
/// use plimsoll_gpu::nccl::{Communicator, Topology, Variables, Version};
/// let topology = Topology::node(plimsoll_gpu::named("H100")?, 2);
/// let comm = Communicator::new(topology, Variables::default(), Version::MEASURED);
/// assert_eq!(comm.at_init().device, 205_520_896);
/// assert_eq!(comm.ring().device, 301_989_888);
/// # Ok::<(), plimsoll_gpu::UnknownGpu>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Communicator {
    topology: Topology,
    variables: Variables,
    version: Version,
    /// How many channels it has.
    pub channels: Channels,
}

/// How bytes get from rank to rank.
#[derive(Clone, Copy)]
enum Transport {
    P2pWrite,
    P2pRead,
    SharedMemory,
    NetGdr,
    Net,
}

impl Communicator {
    /// A communicator with these links, variables and version.
    pub fn new(topology: Topology, variables: Variables, version: Version) -> Communicator {
        let channels = Channels::of(&topology, &variables, version);
        Communicator { topology, variables, version, channels }
    }

    /// Its ranks and links.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// The variables that it was created with.
    pub fn variables(&self) -> &Variables {
        &self.variables
    }

    /// The base: the bytes that it uses without any buffers.
    pub fn base(&self) -> Bytes {
        let Channels { collective, p2p, nvls, .. } = self.channels;
        // Without cuMem, these small allocations share pages with others.
        if !self.variables.cumem {
            return Bytes::host(PINNED_BYTES);
        }
        let own = if self.version >= Version::new(2, 23, 0) { 2 } else { 1 };
        let of_nvls = if nvls > 0 { nvls + 1 } else { 0 };
        Bytes::device(PAGE_BYTES) * (3 * collective.max(p2p) + own + of_nvls) + Bytes::host(PINNED_BYTES)
    }

    /// Whether all buffers are allocated when it is created: before NCCL 2.22, without cuMem, or with `NCCL_RUNTIME_CONNECT=0`.
    pub fn is_connected_at_init(&self) -> bool {
        self.version < Version::new(2, 22, 0) || !self.variables.runtime_connect || !self.variables.cumem
    }

    /// The bytes that it allocates when it is created.
    pub fn at_init(&self) -> Bytes {
        if !self.is_connected_at_init() {
            return self.base();
        }
        let shared_bytes = u64::from(self.channels.p2p) * SHARED_STEPS * STEP_BYTES;
        self.base() + self.ring() + self.tree(TreePlace::Inner) + self.nvls() + Bytes::device(shared_bytes)
    }

    /// The ring: in each channel, a connection to the next rank and one from the previous rank. On several machines, the ranks of
    /// a machine take equal shares of the channels that lead to the next machine.
    pub fn ring(&self) -> Bytes {
        if self.topology.ranks < 2 {
            return Bytes::default();
        }
        let (across, inside) = self.split_channels();
        let (local, net) = (self.local(), self.net());
        (self.send(local) + self.receive(local)) * inside + (self.send(net) + self.receive(net)) * across
    }

    /// The bytes that a tree uses in addition to the ring. For several machines, this has not been confirmed on any
    /// GPU.
    pub fn tree(&self, place: TreePlace) -> Bytes {
        if self.topology.ranks < 3 {
            return Bytes::default();
        }
        let (across, inside) = self.split_channels();
        let (local, net) = (self.local(), self.net());
        let of_local = match place {
            TreePlace::Root => self.receive(local),
            TreePlace::Inner => self.receive(local) + self.send(local),
            TreePlace::Leaf => self.send(local),
        };
        of_local * inside + (self.receive(net) + self.receive(local)) * across
    }

    /// Buffers for reductions in the NVLink switch.
    pub fn nvls(&self) -> Bytes {
        Bytes::device(2 * NVLS_BYTES) * self.channels.nvls * self.topology.local_ranks()
    }

    /// The connection for sends to a peer. A peer on another machine adds no bytes here: such sends share
    /// [`Communicator::net_buffers`].
    pub fn send_to_peer(&self, is_local: bool) -> Bytes {
        self.peer(is_local, |comm| comm.send(comm.local()))
    }

    /// The connection for receives from a peer, like [`Communicator::send_to_peer`].
    pub fn receive_from_peer(&self, is_local: bool) -> Bytes {
        self.peer(is_local, |comm| comm.receive(comm.local()))
    }

    /// The buffers that all sends over the network share. All receives share buffers of the same size. A communicator allocates
    /// each of the two once.
    pub fn net_buffers(&self) -> Bytes {
        let bytes = u64::from(self.channels.p2p) * SHARED_STEPS * NET_STEP_BYTES;
        match self.net() {
            Transport::NetGdr => Bytes::device(whole_pages(bytes)),
            _ => Bytes::host(bytes),
        }
    }

    /// Whether ranks of one machine can reach each other only over the network.
    pub fn is_network_only(&self) -> bool {
        self.topology.local_link(&self.variables) == Link::Sockets
    }

    fn peer(&self, is_local: bool, connection: impl Fn(&Communicator) -> Bytes) -> Bytes {
        if is_local && !self.is_network_only() {
            connection(self) * self.channels.per_peer
        } else {
            Bytes::default()
        }
    }

    /// The number of channels whose next rank is on another machine, and the number whose next rank is on this one.
    fn split_channels(&self) -> (u32, u32) {
        let all = self.channels.collective;
        let across = match self.topology.nodes {
            0 | 1 => 0,
            _ => all.div_ceil(self.topology.local_ranks()),
        };
        (across, all - across)
    }

    fn local(&self) -> Transport {
        match self.topology.local_link(&self.variables) {
            // Between GPUs of compute capability 8.0 with NVLink, the receiver reads the sender's buffers.
            Link::NvLink if self.topology.capability == (8, 0) => Transport::P2pRead,
            Link::NvLink | Link::Pcie => Transport::P2pWrite,
            Link::SharedMemory => Transport::SharedMemory,
            Link::Sockets => Transport::Net,
        }
    }

    fn net(&self) -> Transport {
        let is_direct = self.topology.nics > 0 && self.variables.net_gdr;
        if is_direct { Transport::NetGdr } else { Transport::Net }
    }

    /// The size of all buffers of a connection, including its head.
    fn buffer_bytes(&self) -> u64 {
        let Variables { buffer_bytes, ll_bytes, ll128_bytes, .. } = self.variables;
        [buffer_bytes, ll_bytes, ll128_bytes].into_iter().fold(HEAD_BYTES, u64::saturating_add)
    }

    /// The sender's end of a connection.
    fn send(&self, transport: Transport) -> Bytes {
        let simple_bytes = self.variables.buffer_bytes;
        match transport {
            Transport::P2pWrite => Bytes::device(whole_pages(HEAD_BYTES)),
            Transport::P2pRead => Bytes::device(whole_pages(HEAD_BYTES.saturating_add(simple_bytes))),
            Transport::SharedMemory => Bytes::host(whole_pages(HEAD_BYTES)),
            Transport::NetGdr => Bytes::device(whole_pages(self.buffer_bytes())),
            Transport::Net => Bytes::host(self.buffer_bytes().saturating_add(HEAD_BYTES)),
        }
    }

    /// The receiver's end of a connection.
    fn receive(&self, transport: Transport) -> Bytes {
        let simple_bytes = self.variables.buffer_bytes;
        match transport {
            Transport::P2pWrite | Transport::NetGdr => Bytes::device(whole_pages(self.buffer_bytes())),
            Transport::P2pRead => Bytes::device(whole_pages(self.buffer_bytes() - simple_bytes)),
            Transport::SharedMemory => Bytes::host(whole_pages(self.buffer_bytes())),
            Transport::Net => Bytes::host(self.buffer_bytes().saturating_add(HEAD_BYTES)),
        }
    }
}

#[cfg(test)]
mod tests;
