//! The number of channels of a communicator: [`Channels`].
//!
//! NCCL searches the graph of links for rings. The table here has the result of that search for common machines; the
//! minimum and maximum in the variables then limit it.

use super::topology::{Link, Topology};
use super::variables::Variables;
use super::version::Version;
use crate::outside::Basis;

/// How many channels a communicator has for each purpose.
///
/// ```
/// use plimsoll_gpu::nccl::{Channels, Topology, Variables, Version};
/// let gpu = plimsoll_gpu::named("H100")?;
/// let channels = Channels::of(&Topology::node(gpu, 2), &Variables::default(), Version::MEASURED);
/// assert_eq!((channels.collective, channels.p2p, channels.per_peer, channels.nvls), (24, 32, 32, 0));
/// # Ok::<(), plimsoll_gpu::UnknownGpu>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Channels {
    /// For collectives; 0 for a single rank.
    pub collective: u32,
    /// For sends and receives, to all peers together.
    pub p2p: u32,
    /// For sends and receives, to each peer.
    pub per_peer: u32,
    /// For reductions in the NVLink switch (NVLS); 0 if it cannot be used.
    pub nvls: u32,
    /// Whether the numbers are measured, derived or assumed.
    pub basis: Basis,
}

impl Channels {
    /// The channels of a communicator with these links, variables and version.
    pub fn of(topology: &Topology, variables: &Variables, version: Version) -> Channels {
        let most = if version >= Version::new(2, 25, 0) { 64 } else { 32 };
        if topology.ranks < 2 {
            let basis = if version == Version::MEASURED { Basis::Measured } else { Basis::Derived };
            let p2p = variables.max_channels.unwrap_or(most).clamp(1, most);
            return Channels { collective: 0, p2p, per_peer: 0, nvls: 0, basis };
        }
        let found = found(topology, variables);
        let least = variables.min_channels.unwrap_or(1).clamp(1, most);
        let collective = found.collective.min(variables.max_channels.unwrap_or(most)).clamp(least, most);
        let most_p2p = variables.max_p2p_channels.unwrap_or(most).clamp(1, most);
        let least_p2p = variables.min_p2p_channels.unwrap_or(1).min(most_p2p);
        let p2p = collective.next_power_of_two().clamp(least_p2p, most_p2p);
        let is_across = topology.nodes > 1;
        let wanted = variables.per_net_peer.filter(|_| is_across).unwrap_or(found.per_peer);
        let is_compared = topology.ranks == 2 && !is_across && version == Version::MEASURED;
        Channels {
            collective,
            p2p,
            per_peer: wanted.min(p2p),
            nvls: nvls(topology, variables, version),
            basis: if is_compared { found.basis } else { found.basis.max(Basis::Derived) },
        }
    }
}

/// The result of NCCL's search.
struct Found {
    collective: u32,
    per_peer: u32,
    basis: Basis,
}

fn found(topology: &Topology, variables: &Variables) -> Found {
    let row = |collective, per_peer, basis| Found { collective, per_peer, basis };
    let link = topology.local_link(variables);
    if topology.nodes > 1 {
        return match topology.nics {
            0 => row(2, 2, Basis::Assumed),
            // Two channels for each network card, as NCCL's code computes for an H100 machine with eight cards.
            nics => row((2 * nics).min(32), 2, if nics == 8 { Basis::Derived } else { Basis::Assumed }),
        };
    }
    match (link, topology.capability) {
        (Link::NvLink, (9, 0)) => row(24, 32, Basis::Measured),
        (Link::NvLink, (8, 0)) => row(24, 32, Basis::Derived),
        (Link::NvLink, (10, _)) => row(32, 32, Basis::Derived),
        (Link::NvLink, _) => row(12, 2, Basis::Assumed),
        (Link::Pcie, _) => row(4, 2, Basis::Assumed),
        // Measured on H100s with peer access disabled; the row for sockets was measured with shared memory disabled
        // as well.
        (Link::SharedMemory, (9, 0)) => row(4, 2, Basis::Measured),
        (Link::SharedMemory, _) => row(4, 2, Basis::Derived),
        (Link::Sockets, _) => row(2, 2, Basis::Measured),
    }
}

/// The number of channels for reductions in the NVLink switch.
fn nvls(topology: &Topology, variables: &Variables, version: Version) -> u32 {
    if !topology.multicast || !variables.nvls || topology.local_link(variables) != Link::NvLink {
        return 0;
    }
    let of_blackwell = if version >= Version::new(2, 27, 0) { 24 } else { 32 };
    let found = if topology.capability >= (10, 0) { of_blackwell } else { 16 };
    variables.nvls_channels.unwrap_or(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::named;

    fn counts(topology: &Topology, variables: &Variables) -> [u32; 4] {
        let Channels { collective, p2p, per_peer, nvls, .. } =
            Channels::of(topology, variables, Version::MEASURED);
        [collective, p2p, per_peer, nvls]
    }

    #[test]
    fn machines_of_the_table_have_its_channels() {
        for (gpu, nodes, ranks, expected) in [
            ("H100", 1, 2, [24, 32, 32, 0]),
            ("H100", 1, 8, [24, 32, 32, 16]),
            ("H200", 1, 4, [24, 32, 32, 16]),
            ("A100-80GB", 1, 8, [24, 32, 32, 0]),
            ("B200", 1, 8, [32, 32, 32, 24]),
            ("H100", 2, 8, [16, 16, 2, 16]),
            ("RTX-4090", 1, 2, [4, 4, 2, 0]),
            ("H100", 1, 1, [0, 64, 0, 0]),
        ] {
            let topology = Topology::cluster(named(gpu).unwrap(), nodes, ranks);
            assert_eq!(counts(&topology, &Variables::default()), expected, "{nodes} x {ranks} {gpu}");
        }
    }

    #[test]
    fn variables_cut_the_channels_as_on_two_h100() {
        let alone = Topology::node(named("H100").unwrap(), 1);
        let four = Variables { max_channels: Some(4), ..Variables::default() };
        assert_eq!(counts(&alone, &four), [0, 4, 0, 0]);
        let topology = Topology::node(named("H100").unwrap(), 2);
        let default = Variables::default;
        for (variables, expected) in [
            (Variables { max_channels: Some(4), ..default() }, [4, 4, 4, 0]),
            (Variables { p2p: false, ..default() }, [4, 4, 2, 0]),
            (Variables { p2p: false, shm: false, ..default() }, [2, 2, 2, 0]),
            (Variables { min_channels: Some(32), ..default() }, [32, 32, 32, 0]),
            (Variables { max_p2p_channels: Some(8), ..default() }, [24, 8, 8, 0]),
            (Variables { max_channels: Some(1 << 31), ..default() }, [24, 32, 32, 0]),
            (Variables { min_channels: Some(u32::MAX), ..default() }, [64, 64, 32, 0]),
        ] {
            assert_eq!(counts(&topology, &variables), expected, "{variables:?}");
        }
    }

    #[test]
    fn versions_change_the_most_and_the_channels_of_nvls() {
        let of = |gpu: &str, ranks, version| {
            Channels::of(&Topology::node(named(gpu).unwrap(), ranks), &Variables::default(), version)
        };
        assert_eq!(of("H100", 1, Version::new(2, 24, 3)).p2p, 32);
        assert_eq!(of("B200", 8, Version::new(2, 26, 2)).nvls, 32);
        assert_eq!(of("H100", 2, Version::MEASURED).basis, Basis::Measured);
        assert_eq!(of("H100", 2, Version::new(2, 27, 7)).basis, Basis::Derived);
        assert_eq!(of("H100", 8, Version::MEASURED).basis, Basis::Derived);
        assert_eq!(of("A40", 2, Version::MEASURED).basis, Basis::Assumed);
    }
}
