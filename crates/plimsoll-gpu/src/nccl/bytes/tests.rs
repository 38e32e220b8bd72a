//! Compares the model with NCCL 2.28.9 on two H100s in six modes, to the byte. There are also four worked examples.

use super::*;
use crate::named;
use crate::outside::local_memory_bytes;

const MIB: u64 = 1 << 20;

fn comm_of(topology: Topology, variables: Variables) -> Communicator {
    Communicator::new(topology, variables, Version::MEASURED)
}

fn two_h100(variables: Variables) -> Communicator {
    comm_of(Topology::node(named("H100").unwrap(), 2), variables)
}

fn all_to_all(comm: &Communicator, local_peers: u32) -> Bytes {
    (comm.send_to_peer(true) + comm.receive_from_peer(true)) * local_peers
}

/// How many MiB the pool of local memory grows by between one kernel's stack size (or a new context) and another's.
fn local_mib(gpu: &str, before: Option<Kernel>, kernel: Kernel) -> u64 {
    let pool = |kernel: Option<Kernel>| {
        local_memory_bytes(named(gpu).unwrap(), kernel.map_or(0, Kernel::stack_bytes))
    };
    (pool(Some(kernel)) - pool(before)) / MIB
}

fn mib(bytes: Bytes) -> u64 {
    assert_eq!(bytes.device % MIB, 0);
    bytes.device / MIB
}

/// The bytes on the device for each mode: base, ring, send and receive, for two H100s.
#[test]
fn the_six_measured_modes() {
    let default = Variables::default;
    let check = |variables: Variables, expected: [u64; 4]| {
        let comm = two_h100(variables);
        let (send, receive) = (comm.send_to_peer(true), comm.receive_from_peer(true));
        let found = [comm.base().device, comm.ring().device, send.device, receive.device];
        assert_eq!(found, expected, "{comm:?}");
        comm
    };
    // Default: 507,510,784 for a communicator with its ring; the all-to-all takes 402,653,184.
    let comm = check(default(), [205_520_896, 301_989_888, 67_108_864, 335_544_320]);
    assert_eq!((comm.at_init() + comm.ring()).device, 507_510_784);
    assert_eq!(all_to_all(&comm, 1).device, 402_653_184);
    assert_eq!(comm.tree(TreePlace::Root), Bytes::default());
    // Over the host's shared memory.
    let comm = check(Variables { p2p: false, ..default() }, [29_360_128, 0, 0, 0]);
    assert_eq!(comm.ring().host, 50_331_648);
    // Over sockets.
    let comm = check(Variables { p2p: false, shm: false, ..default() }, [16_777_216, 0, 0, 0]);
    assert_eq!(comm.ring().host, 2 * 2 * 9_641_984);
    assert!(comm.is_network_only());
    // Without cuMem, or with `NCCL_RUNTIME_CONNECT=0`, base and buffers are allocated together.
    let comm = two_h100(Variables { cumem: false, ..default() });
    assert_eq!(comm.at_init().device, 570_425_344);
    let comm = two_h100(Variables { runtime_connect: false, ..default() });
    assert_eq!(comm.at_init().device, 775_946_240);
    // With four channels.
    let four = Variables { max_channels: Some(4), ..default() };
    check(four, [28 * MIB, 50_331_648, 8 * MIB, 40 * MIB]);
}

#[test]
fn smaller_buffers_take_less_as_measured() {
    let comm = two_h100(Variables { buffer_bytes: 1 << 20, ..Variables::default() });
    assert_eq!(mib(comm.ring()), 288 - 48);
    assert_eq!(mib(all_to_all(&comm, 1)), 384 - 64);
}

#[test]
fn a_communicator_of_one_rank_takes_388_mib_and_nothing_more() {
    let comm = comm_of(Topology::node(named("H100").unwrap(), 1), Variables::default());
    assert_eq!(comm.at_init().device, 406_847_488);
    assert_eq!(comm.ring(), Bytes::default());
    assert!(!comm.is_connected_at_init());
    // Modes that allocate the buffers of all channels at creation, and a mode with four channels. These figures are
    // also measured.
    let made = |variables| mib(comm_of(Topology::node(named("H100").unwrap(), 1), variables).at_init());
    assert_eq!(made(Variables { runtime_connect: false, ..Variables::default() }), 388 + 512);
    assert_eq!(made(Variables { cumem: false, ..Variables::default() }), 512);
    assert_eq!(made(Variables { max_channels: Some(4), ..Variables::default() }), 28);
}

/// Each step of the measured run on two H100s: the increase in bytes that the driver reported. Streams are in `libraries.rs`.
#[test]
fn the_steps_of_the_measured_run() {
    let gpu = named("H100").unwrap();
    let comm = two_h100(Variables::default());
    let stream_page = PAGE_BYTES;
    let first = library(gpu, Version::MEASURED).bytes
        + comm.at_init().device
        + comm.ring().device
        + local_mib("H100", None, Kernel::Ring) * MIB
        + crate::outside::stream_bytes(named("H100").unwrap(), 128)
        + stream_page;
    assert_eq!(first, 889_192_448, "the first all-reduce");
    assert_eq!(local_mib("H100", Some(Kernel::Ring), Kernel::Broadcast) * MIB, 4_194_304, "broadcast");
    let local = local_mib("H100", Some(Kernel::Broadcast), Kernel::SendReceive) * MIB;
    assert_eq!(all_to_all(&comm, 1).device + local, 463_470_592, "all-to-all");
    // An unbatched send creates a new communicator: its base, and the sender's ends.
    assert_eq!((comm.at_init() + comm.send_to_peer(true)).device + stream_page, 274_726_912, "send");
    assert_eq!((comm.at_init() + comm.ring()).device, 507_510_784, "a second group");
    assert_eq!((comm.at_init() + all_to_all(&comm, 1)).device + stream_page, 610_271_232, "a third");
}

#[test]
fn worked_example_two_h100_by_nvlink() {
    let comm = two_h100(Variables::default());
    let library = library(named("H100").unwrap(), Version::MEASURED).bytes / MIB;
    assert_eq!([library, mib(comm.base()), mib(comm.ring())], [106, 196, 288]);
    let local = local_mib("H100", None, Kernel::Ring);
    assert_eq!((local, library + 196 + 288 + local), (186, 776));
    assert_eq!(mib(all_to_all(&comm, 1)), 384);
    assert_eq!(local_mib("H100", Some(Kernel::Broadcast), Kernel::SendReceive), 58);
    assert_eq!(local_mib("H100", Some(Kernel::Ring), Kernel::SendReceive), 62);
    assert_eq!(mib(comm.base() + comm.ring()), 484, "a further group");
    assert_eq!(mib(comm.base() + all_to_all(&comm, 1)), 580, "a pipeline, lazy, not batched");
    let mut with_multicast = *comm.topology();
    with_multicast.multicast = true;
    assert_eq!(mib(comm_of(with_multicast, Variables::default()).nvls()), 64);
}

#[test]
fn worked_example_eight_h100_by_nvswitch() {
    let comm = comm_of(Topology::node(named("H100").unwrap(), 8), Variables::default());
    assert_eq!([mib(comm.base()), mib(comm.ring())], [196 + 17 * 2, 288]);
    assert_eq!(106 + mib(comm.base() + comm.ring()) + 186, 810, "the first all-reduce");
    let tree = |rank| mib(comm.tree(TreePlace::of(rank, 8)));
    assert_eq!([tree(3), tree(0), tree(7)], [288, 240, 48]);
    assert_eq!(local_mib("H100", Some(Kernel::Ring), Kernel::Tree), 34);
    assert_eq!(mib(comm.nvls()), 256);
    assert_eq!(mib(all_to_all(&comm, 7)), 2_688);
    assert_eq!(mib(comm.base() + comm.ring()), 518, "a further group");
    assert_eq!(mib(all_to_all(&comm, 2)), 768, "a stage with two neighbours");
    assert_eq!(mib((comm.base() + all_to_all(&comm, 1)) * 2), 1_228, "lazy, not batched");
    // With the library, all local memory and PyTorch's streams, the total is 3.26 GiB. NVIDIA/nccl#1685 reports 3.28
    // GiB.
    let local = 186 + local_mib("H100", Some(Kernel::Ring), Kernel::SendReceive);
    assert_eq!(106 + 230 + 2_688 + local + 70, 3_342);
}

#[test]
fn worked_example_two_rtx_4090_without_peer_access() {
    let comm = comm_of(Topology::node(named("RTX-4090").unwrap(), 2), Variables::default());
    assert_eq!((mib(comm.base()), comm.ring()), (28, Bytes::host(48 * MIB)));
    let local = local_mib("RTX-4090", None, Kernel::Ring);
    assert_eq!((local, 106 + 28 + local), (136, 270));
    assert_eq!(all_to_all(&comm, 1), Bytes::host(24 * MIB));
    assert_eq!(local_mib("RTX-4090", Some(Kernel::Ring), Kernel::SendReceive), 44);
    assert_eq!(mib((comm.base() + all_to_all(&comm, 1)) * 2), 56, "a pipeline, lazy, not batched");
    assert_eq!((all_to_all(&comm, 1) * 2).host, 48 * MIB);
}

#[test]
fn worked_example_two_nodes_of_eight_h100_by_infiniband() {
    let comm = comm_of(Topology::cluster(named("H100").unwrap(), 2, 8), Variables::default());
    assert_eq!(mib(comm.base()), (3 * 16 + 2) * 2 + 34);
    assert_eq!(mib(comm.ring()), 14 * 12 + 2 * 20);
    assert_eq!(106 + mib(comm.base() + comm.ring()) + 186, 634, "the first all-reduce");
    assert_eq!(mib(comm.nvls()), 256);
    assert!(mib(comm.tree(TreePlace::Inner)).abs_diff(200) <= 8, "about 200");
    assert_eq!(mib(all_to_all(&comm, 7)), 168);
    assert_eq!(mib(comm.net_buffers()), 32);
    assert_eq!(comm.send_to_peer(false), Bytes::default());
    assert_eq!(mib(comm.base() + comm.ring()), 342, "a further group");
    assert_eq!(mib(comm.net_buffers() * 2), 64, "a pipeline between nodes");
}

#[test]
fn an_a100_reads_from_its_peer_and_an_older_nccl_has_one_allocation_less() {
    let topology = Topology::node(named("A100-80GB").unwrap(), 2);
    let comm = comm_of(topology, Variables::default());
    assert_eq!([mib(comm.send_to_peer(true)), mib(comm.receive_from_peer(true))], [32 * 6, 32 * 6]);
    let older = Communicator::new(topology, Variables::default(), Version::new(2, 22, 3));
    assert_eq!(mib(comm.base()) - mib(older.base()), 2);
    let connected = Communicator::new(topology, Variables::default(), Version::new(2, 21, 5));
    assert!(connected.is_connected_at_init() && !older.is_connected_at_init());
    assert_eq!(library(named("A100-80GB").unwrap(), Version::MEASURED).basis, Basis::Assumed);
}

#[test]
fn sizes_at_the_edge_of_a_number_do_not_overflow() {
    let huge = Variables { buffer_bytes: u64::MAX, ll_bytes: u64::MAX, ..Variables::default() };
    let comm = two_h100(huge);
    assert!(comm.ring().device > u64::MAX / 2);
    assert!(all_to_all(&comm, u32::MAX).device > u64::MAX / 2);
}
