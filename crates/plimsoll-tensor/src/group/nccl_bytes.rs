//! The GPU memory that NCCL would take for a simulated group, by the rules of `plimsoll-gpu`.

use plimsoll_gpu::nccl::{Communicator, Kernel, Topology, Variables, Version, library};
use plimsoll_gpu::outside::local_memory_bytes;
use plimsoll_gpu::{Gpu, named};

use super::operators::Move;
use crate::device::Device;

/// The parts of a communicator that exist so far. All ranks are assumed to be on one machine if they are at most 8.
#[derive(Debug, Default)]
pub(super) struct NcclBytes {
    is_joined: bool,
    has_ring: bool,
    has_peers: bool,
    /// The largest stack of a kernel so far.
    stack_bytes: u32,
}

/// The number of GPUs of a machine.
const GPUS_OF_A_MACHINE: u32 = 8;

impl NcclBytes {
    /// Adds to the device's memory outside the allocator what a collective makes NCCL take.
    pub(super) fn add(&mut self, device: &Device, ranks: usize, what: Move) {
        let Ok(gpu) = named(&device.properties().name) else { return };
        let ranks = u32::try_from(ranks).unwrap_or(u32::MAX);
        device.take_outside(self.next(gpu, ranks, what));
    }

    fn next(&mut self, gpu: &Gpu, ranks: u32, what: Move) -> u64 {
        let per_machine = ranks.min(GPUS_OF_A_MACHINE);
        let topology = Topology::cluster(gpu, ranks.div_ceil(per_machine), per_machine);
        // As `NcclCommunicator` does, unless the user has set it.
        let set = |name: &str| {
            std::env::var(name).ok().or_else(|| (name == "NCCL_NVLS_ENABLE").then(|| "0".to_owned()))
        };
        let communicator = Communicator::new(topology, Variables::read(set), Version::MEASURED);
        let mut bytes = 0;
        if !std::mem::replace(&mut self.is_joined, true) {
            bytes += library(gpu, Version::MEASURED).bytes + communicator.at_init().device;
        }
        let is_connected = communicator.is_connected_at_init();
        let kernel = match what {
            Move::AllToAll => {
                if !std::mem::replace(&mut self.has_peers, true) {
                    let peer = communicator.send_to_peer(true) + communicator.receive_from_peer(true);
                    bytes += (peer * (per_machine - 1)).device;
                    if per_machine < ranks {
                        bytes += (communicator.net_buffers() * 2).device;
                    }
                }
                Kernel::SendReceive
            }
            Move::AllGather | Move::Broadcast { .. } => {
                if !std::mem::replace(&mut self.has_ring, true) && !is_connected {
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
        let (gpu, mut bytes) = (named("H100").unwrap(), NcclBytes::default());
        // The library, the base, the connections to the other rank, and the stacks of the kernel.
        let first = bytes.next(gpu, 2, Move::AllToAll);
        assert_eq!(first, 111_149_056 + 205_520_896 + 402_653_184 + 260_046_848);
        // The ring; its kernel has a smaller stack.
        assert_eq!(bytes.next(gpu, 2, Move::AllGather), 301_989_888);
        assert_eq!(bytes.next(gpu, 2, Move::AllGather) + bytes.next(gpu, 2, Move::AllToAll), 0);
    }
}
