//! The ranks of a communicator and the links between them: [`Topology`], [`Link`].

use super::variables::Variables;
use crate::Gpu;

/// The link between two ranks of one machine.
///
/// ```
/// use plimsoll_gpu::nccl::Link;
/// let gpu = plimsoll_gpu::named("RTX-4090")?;
/// assert_eq!(Link::of(gpu), Link::SharedMemory);
/// # Ok::<(), plimsoll_gpu::UnknownGpu>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    /// NVLink between all GPUs, for example through a switch.
    NvLink,
    /// PCIe, over which the GPUs access each other's memory.
    Pcie,
    /// The host's shared memory.
    SharedMemory,
    /// Network sockets.
    Sockets,
}

impl Link {
    /// The link that GPUs of this model in one machine are assumed to have: NVLink if the datasheet of a server GPU lists it,
    /// otherwise PCIe. GeForce cards use the host's shared memory, because they cannot access each other's memory.
    pub fn of(gpu: &Gpu) -> Link {
        if gpu.card.contains("GeForce") {
            Link::SharedMemory
        } else if gpu.card.contains("PCIe") {
            // A bridge connects at most two of them.
            Link::Pcie
        } else if gpu.bandwidth.nvlink_bytes_per_s.is_some_and(|per_s| per_s >= LEAST_SWITCHED_BYTES_PER_S) {
            Link::NvLink
        } else {
            Link::Pcie
        }
    }
}

/// The minimum NVLink bandwidth, per direction, of a GPU that is connected to all others. An A100 has 300 GB/s, and a bridge
/// between two cards has 56 GB/s.
const LEAST_SWITCHED_BYTES_PER_S: u64 = 120_000_000_000;

/// The ranks of a communicator and the links between them. Each rank has its own GPU.
///
/// ```
/// use plimsoll_gpu::nccl::Topology;
/// let gpu = plimsoll_gpu::named("H100")?;
/// assert!(Topology::node(gpu, 8).multicast && !Topology::node(gpu, 2).multicast);
/// # Ok::<(), plimsoll_gpu::UnknownGpu>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Topology {
    /// The GPUs' compute capability.
    pub capability: (i32, i32),
    /// The number of ranks.
    pub ranks: u32,
    /// The number of machines. Each has the same number of ranks.
    pub nodes: u32,
    /// The link between ranks of one machine.
    pub link: Link,
    /// The number of network cards per machine that can access a GPU's memory (InfiniBand); 0 for sockets.
    pub nics: u32,
    /// Whether the GPUs can send to all others simultaneously, which NVLS needs.
    pub multicast: bool,
}

impl Topology {
    /// `ranks` of these GPUs in one machine. GPUs of compute capability 9.0 or higher with NVLink are assumed to have multicast
    /// if there are more than two of them. The two that we measured had none.
    pub fn node(gpu: &Gpu, ranks: u32) -> Topology {
        let link = Link::of(gpu);
        let multicast = link == Link::NvLink && gpu.capability >= (9, 0) && ranks > 2;
        Topology { capability: gpu.capability, ranks, nodes: 1, link, nics: 0, multicast }
    }

    /// `nodes` machines, each with `ranks` of these GPUs and one network card per GPU.
    pub fn cluster(gpu: &Gpu, nodes: u32, ranks: u32) -> Topology {
        let node = Topology::node(gpu, ranks);
        if nodes < 2 {
            return node;
        }
        Topology { ranks: node.ranks.saturating_mul(nodes), nodes, nics: ranks, ..node }
    }

    /// The number of ranks per machine.
    pub fn local_ranks(&self) -> u32 {
        (self.ranks / self.nodes.max(1)).max(1)
    }

    /// The link that ranks of one machine use, given the links that the variables disable.
    pub fn local_link(&self, variables: &Variables) -> Link {
        match self.link {
            Link::NvLink | Link::Pcie if variables.p2p => self.link,
            Link::NvLink | Link::Pcie | Link::SharedMemory if variables.shm => Link::SharedMemory,
            _ => Link::Sockets,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::named;

    #[test]
    fn servers_have_nvlink_workstations_pcie_and_geforce_shared_memory() {
        for (gpu, link) in [
            ("H100", Link::NvLink),
            ("H100-PCIe", Link::Pcie),
            ("A100-80GB", Link::NvLink),
            ("B200", Link::NvLink),
            ("V100-32GB", Link::NvLink),
            ("A40", Link::Pcie),
            ("L40S", Link::Pcie),
            ("T4", Link::Pcie),
            ("RTX-4090", Link::SharedMemory),
            ("RTX-3090", Link::SharedMemory),
        ] {
            assert_eq!(Link::of(named(gpu).unwrap()), link, "{gpu}");
        }
    }

    #[test]
    fn variables_turn_links_off_one_after_the_other() {
        let topology = Topology::node(named("H100").unwrap(), 2);
        let on = Variables::default();
        let no_p2p = Variables { p2p: false, ..on.clone() };
        let sockets = Variables { shm: false, ..no_p2p.clone() };
        assert_eq!(
            [on, no_p2p, sockets].map(|variables| topology.local_link(&variables)),
            [Link::NvLink, Link::SharedMemory, Link::Sockets]
        );
    }

    #[test]
    fn a_cluster_of_one_machine_is_a_node() {
        let gpu = named("H100").unwrap();
        assert_eq!(Topology::cluster(gpu, 1, 8), Topology::node(gpu, 8));
        let two = Topology::cluster(gpu, 2, 8);
        assert_eq!((two.ranks, two.local_ranks(), two.nics), (16, 8, 8));
        assert!(two.multicast);
    }
}
