//! The memory that a program uses on a GPU outside PyTorch's allocator, as `predict` reports it.

use plimsoll_needs::needs;
use serde_json::Value;

use crate::program::stderr;
use crate::torch::{Torch, answer};

/// Two ranks with lazy initialization: a collective, a send that is not batched, a group of one rank. With an
/// argument, that many MiB are allocated first.
const GROUPS: &str = "
import os, sys, torch, torch.distributed as dist
rank = int(os.environ['LOCAL_RANK'])
torch.cuda.set_device(rank)
taken = torch.empty(int(sys.argv[1]) << 20, dtype=torch.uint8, device='cuda') if len(sys.argv) > 1 else None
x = torch.ones(1 << 20, device='cuda')
x @ x.view(1, -1).T.flatten()
dist.init_process_group('nccl')
dist.all_reduce(x)
dist.send(x, 1) if rank == 0 else dist.recv(x, 0)
mesh = dist.init_device_mesh('cuda', (1, 2))
dist.all_reduce(x, group=mesh.get_group(0))
free, total = torch.cuda.mem_get_info()
print(f'outside {total - free - torch.cuda.memory_reserved()}', flush=True)
dist.destroy_process_group()
";

/// The program, to be run on two ranks. `name` is the test's name, which names its folder.
fn two_ranks(name: &str, program: &str) -> Torch {
    let mut torch = Torch::new(name, program);
    torch
        .python
        .extend(["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"].map(str::to_owned));
    torch
}

/// The bytes of each row, by owner and part, on the device of the process that decides.
fn rows(report: &Value) -> Vec<(String, u64)> {
    let rows = report["outside"].as_array().expect("rows").iter();
    let name = |row: &Value, key: &str| row[key].as_str().expect("a name").to_owned();
    rows.map(|row| ([name(row, "owner"), name(row, "part")].join("/"), row["bytes"].as_u64().expect("bytes")))
        .collect()
}

#[needs(pytorch)]
#[test]
fn each_communicator_is_a_row_and_the_account_closes() {
    let output =
        two_ranks("groups-1", GROUPS).predict(&["--json", "--whole", "--gpu", "H100", "--devices", "2"], &[]);
    let report = answer(&output, 0);
    let rows = rows(&report);
    let has = |owner: &str, bytes: u64| {
        assert!(rows.contains(&(owner.to_owned(), bytes)), "{owner} {bytes}: {rows:#?}");
    };
    has("context/", 552_402_944);
    has("PyTorch's kernels/", 96_468_992);
    has("cuBLAS/", 71_303_168);
    has("NCCL's library/", 111_149_056);
    has("NCCL communicator 1, 2 ranks/base", 205_520_896);
    has("NCCL communicator 1, 2 ranks/ring", 301_989_888);
    // Rank 1, which receives, has the buffers, so it decides the verdict.
    has("NCCL communicator 2, 2 ranks/peers", 335_544_320);
    has("NCCL communicator 3, 1 rank/base", 406_847_488);
    let outside: u64 = rows.iter().map(|(_, bytes)| bytes).sum();
    assert!(stderr(&output).contains(&format!("outside {outside}")), "{outside}: {}", stderr(&output));
    let [reserved, spare] = [
        report["judged"]["peak_reserved_bytes"].as_u64().unwrap(),
        report["verdict"]["spare_bytes"].as_u64().unwrap(),
    ];
    let totals = &report["totals"];
    assert_eq!(totals["cuda_bytes"], reserved + outside + spare);
    assert_eq!(
        (totals["reserve_bytes"].as_u64(), totals["smi_bytes"].as_u64()),
        (Some(503_316_480), Some(85_520_809_984))
    );
    assert_eq!(report["gpu"]["context_bytes"], outside);
}

#[needs(pytorch, nightly)]
#[test]
fn a_communicator_that_does_not_fit_is_pytorchs_error_and_the_verdict_names_it() {
    // 81,079 MiB in all, of which the program can use 79,800.
    let options = ["--json", "--whole", "--gpu", "H100", "--devices", "2"];
    let output = two_ranks("groups-2", GROUPS).predict(&options, &["79900"]);
    assert!(stderr(&output).contains("DistBackendError"), "{}", stderr(&output));
    let report = answer(&output, 4);
    let summary = report["summary"].as_str().unwrap();
    assert_eq!(report["verdict"]["is"], "runs out", "{summary}");
    assert!(summary.contains("NCCL communicator 1, 2 ranks"), "{summary}");
}

#[needs(pytorch, nightly)]
#[test]
fn a_group_of_one_rank_is_advised_against_where_it_takes_a_hundredth_of_the_gpu() {
    let output = two_ranks("groups-3", GROUPS)
        .predict(&["--json", "--whole", "--gpu", "24GiB", "--cc", "9.0", "--devices", "2"], &[]);
    let report = answer(&output, 0);
    let advice = report["outside_advice"].as_array().unwrap();
    let said = |words: &str| advice.iter().any(|line| line.as_str().unwrap().contains(words));
    assert!(said("388.00 MiB can be saved outside PyTorch: groups of one rank"), "{advice:?}");
    assert!(!said("NCCL_BUFFSIZE"), "{advice:?}");
    // Two communicators of two ranks: 32 channels less of three pages each, a ring and a peer's buffers with half the channels.
    assert!(
        said("496.00 MiB can be saved outside PyTorch: NCCL's channels: NCCL_MAX_NCHANNELS=12"),
        "{advice:?}"
    );
}

#[needs(pytorch, nightly)]
#[test]
fn a_given_context_is_in_place_of_all_but_nccl_and_zero_of_all() {
    let rows_with = |context: &str| {
        let options = ["--json", "--whole", "--gpu", "H100", "--devices", "2", "--context", context];
        rows(&answer(&two_ranks("groups-4", GROUPS).predict(&options, &[]), 0))
    };
    let given = rows_with("1GiB");
    assert_eq!(given[0], ("context/".to_owned(), 1 << 30));
    assert!(
        given[1..].iter().all(|(owner, _)| owner.starts_with("NCCL") || owner.starts_with("local")),
        "{given:?}"
    );
    assert!(given.len() > 3, "{given:?}");
    assert_eq!(rows_with("0"), []);
}

/// Communicators that are freed before PyTorch's memory peaks.
const EARLIER: &str = "
import os, torch, torch.distributed as dist
torch.cuda.set_device(int(os.environ['LOCAL_RANK']))
dist.init_process_group('nccl')
x = torch.ones(1 << 10, device='cuda')
for group in [dist.new_group([0, 1]) for _ in range(4)]:
    dist.all_reduce(x, group=group)
dist.destroy_process_group()
big = torch.empty(1500 << 20, dtype=torch.uint8, device='cuda')
";

#[needs(pytorch, nightly)]
#[test]
fn what_is_gone_before_pytorchs_peak_is_not_added_to_it() {
    let torch = two_ranks("earlier", EARLIER);
    let report = answer(
        &torch.predict(&["--json", "--whole", "--gpu", "4GiB", "--cc", "9.0", "--devices", "2"], &[]),
        0,
    );
    let outside: u64 = rows(&report).iter().map(|(_, bytes)| bytes).sum();
    let spare = report["verdict"]["spare_bytes"].as_u64().unwrap();
    // PyTorch had one segment when the process's memory peaked.
    assert_eq!(report["totals"]["cuda_bytes"], (2 << 20) + outside + spare);
}

/// Managed memory, as paged optimizers of bitsandbytes allocate it, and more tensors than then fit beside it.
const PAGED: &str = "
import ctypes, torch
kept = torch.empty(1 << 30, dtype=torch.uint8, device='cuda')
address = ctypes.c_void_p()
assert ctypes.CDLL(None).cudaMallocManaged(ctypes.byref(address), ctypes.c_size_t(2 << 30), 1) == 0
more = torch.empty(2 << 30, dtype=torch.uint8, device='cuda')
";

#[needs(pytorch)]
#[test]
fn managed_memory_moves_to_the_host_for_tensors() {
    let torch = Torch::new("paged", PAGED);
    let report = answer(&torch.predict(&["--json", "--gpu", "4GiB", "--cc", "9.0"], &[]), 0);
    let limits = report["not_counted"].as_array().expect("limits");
    let said = |limit: &Value| limit.as_str().is_some_and(|limit| limit.starts_with("managed memory"));
    assert!(report["verdict"]["is"] == "fits" && limits.iter().any(said), "{report}");
}

/// Lines that a program of `outside/` printed: its stage, and the bytes outside the allocator.
fn stages(text: &str, wanted: &[(&str, Value)]) -> Vec<(String, i64)> {
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let lines = lines.filter(|line| wanted.iter().all(|(key, value)| line[*key] == *value));
    let stage = |line: Value| Some((line["stage"].as_str()?.to_owned(), line["outside"].as_i64()?));
    lines.filter_map(stage).collect()
}

/// The recorded results of two H100s for the programs in that folder.
const H100: &str = include_str!("../../plimsoll-standin/tests/pytorch/outside/h100.jsonl");

#[needs(pytorch)]
#[test]
fn first_uses_in_one_process_are_within_six_mib_of_an_h100() {
    let program = include_str!("../../plimsoll-standin/tests/pytorch/outside/one_process.py");
    let torch = Torch::new("one-process", program);
    let output = torch.predict(&["--whole", "-q", "--gpu", "H100"], &["1"]);
    let here = stages(&stderr(&output), &[]);
    let card = stages(H100, &[("program", "one_process".into()), ("order", 1.into())]);
    assert!(card.len() == 27 && here.len() == card.len(), "{}", stderr(&output));
    for ((stage, here), (named, card)) in here.iter().zip(&card) {
        assert!(stage == named && (here - card).abs() <= 6 << 20, "{stage}: {here}, {named}: {card}");
    }
}

#[needs(pytorch, nightly)]
#[test]
fn first_uses_of_nccl_are_those_of_two_h100() {
    let program = include_str!("../../plimsoll-standin/tests/pytorch/outside/two_ranks.py");
    for mode in ["lazy", "eager", "buff", "chan", "nop2p", "socket", "nocumem", "connected"] {
        let torch = two_ranks(&format!("two-ranks-{mode}"), program);
        let output = torch.predict(&["--whole", "-q", "--gpu", "H100", "--devices", "2"], &[mode]);
        let here = stages(&stderr(&output), &[]);
        let card = stages(H100, &[("program", "two_ranks".into()), ("mode", mode.into())]);
        assert!(card.len() == 14 && here == card, "{mode}: {here:?}, {card:?}");
    }
}
