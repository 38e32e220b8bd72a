//! The GPU memory that NCCL would use for a simulated group, computed by the rules of `plimsoll-gpu`.

use plimsoll_gpu::nccl::{Communicator, Kernel, Topology, Variables, Version, library};
use plimsoll_gpu::outside::local_memory_bytes;
use plimsoll_gpu::{Gpu, named};

use super::operators::Move;
use crate::device::Device;

/// The number of GPUs of a host.
const GPUS_OF_A_HOST: usize = 8;

/// Where the ranks of a group are assumed to be: 8 ranks in a row are on one host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hosts {
    /// The number of hosts.
    pub(super) hosts: usize,
    /// The most ranks of the group on one host.
    pub(super) per_host: usize,
}

impl Hosts {
    /// The placement of these ranks, in ascending order.
    pub(super) fn of(ranks: &[usize]) -> Hosts {
        let on_each = ranks.chunk_by(|a, b| a / GPUS_OF_A_HOST == b / GPUS_OF_A_HOST).map(<[usize]>::len);
        Hosts { hosts: on_each.clone().count(), per_host: on_each.max().unwrap_or(0) }
    }
}

/// The communicator that would exist, with the parts that it has allocated so far.
#[derive(Debug, Default)]
pub(super) struct NcclBytes {
    joined: Option<Joined>,
}

#[derive(Debug)]
struct Joined {
    /// `None` if the device is not a known GPU.
    of: Option<(&'static Gpu, Communicator)>,
    hosts: Hosts,
    has_ring: bool,
    has_peers: bool,
    /// The largest stack of a kernel so far.
    stack_bytes: u32,
}

impl NcclBytes {
    /// Adds the memory that NCCL allocates for a collective to the device's memory outside the allocator. `loads` says
    /// whether this is the first communicator of the process, which loads the library.
    pub(super) fn add(&mut self, device: &Device, hosts: Hosts, what: Move, loads: impl FnOnce() -> bool) {
        let (joined, bytes) = match &mut self.joined {
            Some(joined) => (joined, 0),
            joined => {
                let new = Joined::new(named(&device.properties().name).ok(), hosts);
                let bytes = new.bytes(loads());
                (joined.insert(new), bytes)
            }
        };
        device.take_outside(bytes + joined.next(what));
    }
}

impl Joined {
    fn new(gpu: Option<&'static Gpu>, hosts: Hosts) -> Joined {
        let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        let of = gpu.map(|gpu| {
            let topology = Topology::cluster(gpu, count(hosts.hosts), count(hosts.per_host));
            // `NcclCommunicator` does the same, unless the user has set the variable.
            let set = |name: &str| {
                std::env::var(name).ok().or_else(|| (name == "NCCL_NVLS_ENABLE").then(|| "0".to_owned()))
            };
            (gpu, Communicator::new(topology, Variables::read(set), Version::MEASURED))
        });
        Joined { of, hosts, has_ring: false, has_peers: false, stack_bytes: 0 }
    }

    /// The bytes that the communicator uses when it is created, plus the library's if `loads` is set.
    fn bytes(&self, loads: bool) -> u64 {
        let own = |(gpu, communicator): &(&Gpu, Communicator)| {
            let code = if loads { library(gpu, Version::MEASURED).bytes } else { 0 };
            code + communicator.at_init().device
        };
        self.of.as_ref().map_or(0, own)
    }

    /// The bytes that a collective adds.
    fn next(&mut self, what: Move) -> u64 {
        let Some((gpu, communicator)) = &self.of else { return 0 };
        let mut bytes = 0;
        let kernel = match what {
            Move::AllToAll { .. } => {
                if !std::mem::replace(&mut self.has_peers, true) {
                    let peer = communicator.send_to_peer(true) + communicator.receive_from_peer(true);
                    bytes += (peer * (self.hosts.per_host as u32 - 1)).device; // at most 7
                    if self.hosts.hosts > 1 {
                        bytes += (communicator.net_buffers() * 2).device;
                    }
                }
                Kernel::SendReceive
            }
            Move::AllGather | Move::Broadcast { .. } => {
                if !std::mem::replace(&mut self.has_ring, true) && !communicator.is_connected_at_init() {
                    bytes += communicator.ring().device;
                }
                if what == Move::AllGather { Kernel::Ring } else { Kernel::Broadcast }
            }
        };
        let before = local_memory_bytes(gpu, self.stack_bytes);
        self.stack_bytes = self.stack_bytes.max(kernel.stack_bytes());
        bytes + local_memory_bytes(gpu, self.stack_bytes) - before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_counted_once_and_when_they_are_first_used() {
        let mut joined = Joined::new(named("H100").ok(), Hosts::of(&[0, 1]));
        // The library, the base memory, the connections to the other rank, and the stacks of the kernel.
        let first = joined.bytes(true) + joined.next(Move::AllToAll { keeps_own: false });
        assert_eq!(first, 111_149_056 + 205_520_896 + 402_653_184 + 260_046_848);
        // The ring; its kernel has a smaller stack.
        assert_eq!(joined.next(Move::AllGather), 301_989_888);
        assert_eq!(joined.next(Move::AllGather) + joined.next(Move::AllToAll { keeps_own: false }), 0);
    }
    #[test]
    fn eight_ranks_in_a_row_are_on_one_host() {
        let hosts = |ranks: &[usize]| {
            let Hosts { hosts, per_host } = Hosts::of(ranks);
            (hosts, per_host)
        };
        assert_eq!(hosts(&(0..8).collect::<Vec<_>>()), (1, 8));
        assert_eq!(hosts(&(0..20).collect::<Vec<_>>()), (3, 8));
        assert_eq!((hosts(&[1, 9]), hosts(&[8, 9, 10])), ((2, 1), (1, 3)));
    }
}
