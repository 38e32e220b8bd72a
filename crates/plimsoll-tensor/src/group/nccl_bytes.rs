//! The GPU memory that NCCL would take for a simulated group, by the rules of `plimsoll-gpu`.

use plimsoll_gpu::nccl::{Communicator, Kernel, Topology, Variables, Version, library};
use plimsoll_gpu::outside::local_memory_bytes;
use plimsoll_gpu::{Gpu, named};

use super::operators::Move;
use crate::device::Device;

/// The number of GPUs of a machine.
const GPUS_OF_A_MACHINE: u32 = 8;

/// The communicator that would exist, with the parts that it has allocated so far. If there are at most 8 ranks, all of them are
/// assumed to be on one machine.
#[derive(Debug, Default)]
pub(super) struct NcclBytes {
    joined: Option<Joined>,
}

#[derive(Debug)]
struct Joined {
    /// `None` if the device is no known GPU.
    of: Option<(&'static Gpu, Communicator)>,
    ranks: u32,
    has_ring: bool,
    has_peers: bool,
    /// The largest stack of a kernel so far.
    stack_bytes: u32,
}

impl NcclBytes {
    /// Adds the memory that NCCL allocates for a collective to the device's memory outside the allocator.
    pub(super) fn add(&mut self, device: &Device, ranks: usize, what: Move) {
        let ranks = u32::try_from(ranks).unwrap_or(u32::MAX);
        let (joined, bytes) = match &mut self.joined {
            Some(joined) => (joined, 0),
            joined => {
                let new = Joined::new(named(&device.properties().name).ok(), ranks);
                let bytes = new.bytes();
                (joined.insert(new), bytes)
            }
        };
        device.take_outside(bytes + joined.next(what));
    }
}

impl Joined {
    fn new(gpu: Option<&'static Gpu>, ranks: u32) -> Joined {
        let per_machine = ranks.min(GPUS_OF_A_MACHINE);
        let of = gpu.map(|gpu| {
            let topology = Topology::cluster(gpu, ranks.div_ceil(per_machine), per_machine);
            // `NcclCommunicator` does the same, unless the user has set the variable.
            let set = |name: &str| {
                std::env::var(name).ok().or_else(|| (name == "NCCL_NVLS_ENABLE").then(|| "0".to_owned()))
            };
            (gpu, Communicator::new(topology, Variables::read(set), Version::MEASURED))
        });
        Joined { of, ranks, has_ring: false, has_peers: false, stack_bytes: 0 }
    }

    /// The bytes that it takes when it is created.
    fn bytes(&self) -> u64 {
        let own = |(gpu, communicator): &(&Gpu, Communicator)| {
            library(gpu, Version::MEASURED).bytes + communicator.at_init().device
        };
        self.of.as_ref().map_or(0, own)
    }

    /// The bytes that a collective adds.
    fn next(&mut self, what: Move) -> u64 {
        let Some((gpu, communicator)) = &self.of else { return 0 };
        let per_machine = self.ranks.min(GPUS_OF_A_MACHINE);
        let mut bytes = 0;
        let kernel = match what {
            Move::AllToAll => {
                if !std::mem::replace(&mut self.has_peers, true) {
                    let peer = communicator.send_to_peer(true) + communicator.receive_from_peer(true);
                    bytes += (peer * (per_machine - 1)).device;
                    if per_machine < self.ranks {
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
        let mut joined = Joined::new(named("H100").ok(), 2);
        // The library, the base memory, the connections to the other rank, and the stacks of the kernel.
        let first = joined.bytes() + joined.next(Move::AllToAll);
        assert_eq!(first, 111_149_056 + 205_520_896 + 402_653_184 + 260_046_848);
        // The ring; its kernel has a smaller stack.
        assert_eq!(joined.next(Move::AllGather), 301_989_888);
        assert_eq!(joined.next(Move::AllGather) + joined.next(Move::AllToAll), 0);
    }
}
