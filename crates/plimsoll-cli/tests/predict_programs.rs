//! `plimsoll predict` on other things that ordinary programs do: profilers, notebook kernels, other allocators,
//! tensors shared between processes, `nvidia-smi`, compiler caches, parts of a job.

use std::fs;
use std::process::{Command, Output};

use serde_json::Value;

use plimsoll_needs::needs;

use crate::program::{Folder, json, plimsoll, stderr};
use crate::torch::Torch;

/// Runs a program with a Python that has PyTorch.
fn predict(name: &str, program: &str, options: &[&str], environment: &[(&str, &str)]) -> Output {
    let python = std::env::var("PLIMSOLL_PYTORCH").expect("a test that needs PyTorch");
    let folder = Folder::new(&format!("programs-{name}"));
    let file = folder.file("train.py");
    fs::write(&file, program).expect("a program");
    let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    command.arg("predict");
    if !options.iter().any(|option| option.starts_with("--gpu")) {
        command.args(["--gpu", "A100-80GB"]);
    }
    command.args(options).arg("--").args(python.split_whitespace()).arg(file);
    command.envs(environment.iter().copied()).output().expect("the program starts")
}

#[track_caller]
fn answer(output: &Output, code: i32) -> Value {
    assert_eq!(output.status.code(), Some(code), "{}", stderr(output));
    json(output)
}

#[test]
fn a_page_into_a_missing_folder_fails_before_the_run() {
    let output = plimsoll(&[
        "predict",
        "--gpu",
        "T4",
        "--html",
        "no-such-folder/page.html",
        "--",
        "sh",
        "-c",
        "echo ran",
    ]);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    assert!(stderr(&output).contains("there is no folder no-such-folder"), "{}", stderr(&output));
    assert!(!stderr(&output).contains("ran\n"), "{}", stderr(&output));
}

#[test]
fn nvidia_smi_answers_for_the_imitated_gpus() {
    let script = "nvidia-smi -L; nvidia-smi --query-gpu=name,memory.total --format=csv,noheader; echo $TRITON_CACHE_DIR";
    let output = plimsoll(&["predict", "--gpu", "T4", "--devices", "2", "--", "sh", "-c", script]);
    let said = stderr(&output);
    assert!(said.contains("GPU 1: Tesla T4 (UUID: GPU-") && said.contains("Tesla T4, 15104 MiB"), "{said}");
    assert!(said.contains("/caches/triton"), "{said}");
}

/// Keeps a result, batches, an average of the weights and a copy of them. Its gradient computation has temporaries
/// until the end.
const KEEPS: &str = "
import copy, torch
class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x
    @staticmethod
    def backward(ctx, gradient):
        x, = ctx.saved_tensors
        wide = torch.ones(64, *x.shape, device='cuda')
        return gradient * x * wide[0]
lstm, net = torch.nn.LSTM(256, 256, batch_first=True).cuda(), torch.nn.Linear(256, 4096).cuda()
average = copy.deepcopy(net)
best = {name: it.clone() for name, it in net.state_dict().items()}
data = [torch.randn(64, 16, 256, device='cuda') for _ in range(4)]
for x in data:
    x.requires_grad_()
    y = net(lstm(Square.apply(x))[0]).log_softmax(-1)
    y.sum().backward()
    lstm.zero_grad()
    net.zero_grad()
";

#[needs(pytorch)]
#[test]
fn every_byte_has_an_owner() {
    let output = predict("keeps", KEEPS, &["--whole", "--json"], &[]);
    let report = answer(&output, 0);
    let rows = report.pointer("/judged/explanation/held/by_category").and_then(Value::as_array);
    let rows = rows.unwrap_or_else(|| panic!("{report}"));
    let percent = |name: &str| {
        let of = |row: &&Value| {
            if name == "unknown" { row["category"].is_null() } else { row["category"] == name }
        };
        let bytes: f64 = rows.iter().filter(of).filter_map(|row| row["bytes"].as_f64()).sum();
        100.0 * bytes / report["judged"]["peak_allocated_bytes"].as_f64().expect("a peak")
    };
    assert!(percent("unknown") < 2.0, "{rows:?}");
    assert!(percent("input") > 1.0 && percent("output") > 5.0, "{rows:?}");
    assert!(percent("gradient") < 20.0 && percent("temporary") > 30.0, "{rows:?}");
}

const PROFILES: &str = "
import torch
from torch.profiler import profile, ProfilerActivity
layer = torch.nn.Linear(64, 64).cuda()
with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], profile_memory=True) as profiler:
    layer(torch.ones(8, 64, device='cuda')).sum().backward()
print(len(profiler.key_averages()), 'rows')
";

#[needs(pytorch)]
#[test]
fn a_program_that_profiles_its_kernels_runs() {
    let output = predict("profiles", PROFILES, &["--json"], &[]);
    assert_eq!(answer(&output, 0)["verdict"]["is"], "fits");
    assert!(stderr(&output).contains(" rows"), "{}", stderr(&output));
}

const SHARES: &str = "
import torch, torch.multiprocessing as mp
def work(tensors, sizes):
    tensor = tensors.get()
    sizes.put((tensor.is_cuda, tensor.numel()))
if __name__ == '__main__':
    context = mp.get_context('spawn')
    tensors, sizes = context.Queue(), context.Queue()
    kept = torch.ones(1 << 20, device='cuda')
    process = context.Process(target=work, args=(tensors, sizes))
    process.start()
    tensors.put(kept)
    assert sizes.get(timeout=120) == (True, 1 << 20)
    process.join()
";

#[needs(pytorch)]
#[test]
fn a_tensor_goes_to_another_process() {
    let output = predict("shares", SHARES, &["--json"], &[]);
    assert_eq!(answer(&output, 0)["verdict"]["is"], "fits");
}

const TRAINS: &str = "
import torch
layer = torch.nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.Adam(layer.parameters())
for _ in range(9):
    layer(torch.randn(64, 1024, device='cuda')).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
";

#[needs(pytorch)]
#[test]
fn an_allocator_without_a_record_still_has_peaks() {
    for (options, environment, what) in [
        (&["--alloc-conf", "backend:cudaMallocAsync"][..], &[][..], "cudaMallocAsync"),
        (&[], &[("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")], "PYTORCH_NO_CUDA_MEMORY_CACHING"),
    ] {
        let output = predict("allocators", TRAINS, &[&["--json"], options].concat(), environment);
        let report = answer(&output, 0);
        // Parameters, gradients and Adam's two averages of 4 MiB each.
        let reserved = report["judged"]["peak_reserved_bytes"].as_u64().expect("a number");
        assert!((16 << 20..64 << 20).contains(&reserved), "{what}: {report}");
        assert!(report["not_counted"].to_string().contains(what), "{report}");
    }
}

/// An optimizer that wraps another one, whose own `step` is never called.
const WRAPS: &str = "
import torch
class Around(torch.optim.Optimizer):
    def __init__(self, parameters, inner, **options):
        super().__init__(parameters, options)
        self.inner = inner(self.param_groups, **options)
layer = torch.nn.Linear(64, 64).cuda()
optimizer = Around(layer.parameters(), torch.optim.SGD, lr=0.1)
for _ in range(9):
    layer(torch.randn(8, 64, device='cuda')).square().mean().backward()
    optimizer.inner.step()
    optimizer.zero_grad()
";

#[needs(pytorch)]
#[test]
fn an_optimizer_around_another_one_does_not_count_for_itself() {
    let output = predict("wraps", WRAPS, &["--json"], &[]);
    assert_eq!(answer(&output, 0)["judged"]["process"]["steps"], 3);
}

const STARTS: &str = "
import subprocess, sys
if len(sys.argv) < 2:
    done = subprocess.run([sys.executable, __file__, 'kernel'], capture_output=True, text=True)
    assert 'finished' in done.stdout, 'the kernel died'
import torch
layer = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(layer.parameters())
for _ in range(9):
    layer(torch.ones(8, 64, device='cuda')).sum().backward()
    optimizer.step()
print('finished')
";

#[needs(pytorch)]
#[test]
fn a_program_that_misses_the_process_that_was_ended_after_its_steps_has_not_failed() {
    let output = predict("starts", STARTS, &["--json"], &[]);
    assert_eq!(answer(&output, 0)["verdict"]["is"], "fits");
}

const SELECTS: &str = "
import torch
scores = torch.rand(8, 100, device='cuda')
chosen = scores[scores > 0.5]
print(chosen.view(-1).max())
";

#[needs(pytorch)]
#[test]
fn a_failure_on_an_empty_selection_says_that_it_is_empty_here() {
    let output = predict("selects", SELECTS, &["--json"], &[]);
    let hint = answer(&output, 5)["verdict"]["hint"].to_string();
    assert!(hint.contains("selection by GPU values at train.py:4 is empty here"), "{hint}");
    let output = predict("selects", SELECTS, &["--json", "--assume", "train.py:4=half"], &[]);
    answer(&output, 0);
}

const PARTS: &str = "
import os, torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
device = torch.device('cuda', int(os.environ['LOCAL_RANK']))
torch.cuda.set_device(device)
dist.init_process_group('nccl', device_id=device)
assert (dist.get_world_size(), dist.get_rank(), torch.cuda.device_count()) == (16, 11, 8)
mesh = init_device_mesh('cuda', (4, 4), mesh_dim_names=('replicate', 'shard'))
half = dist.split_group(split_ranks=[list(range(8)), list(range(8, 16))])
for group, size, rank in ((mesh['shard'].get_group(), 4, 3), (mesh['replicate'].get_group(), 4, 2), (half, 8, 3)):
    assert (group.size(), group.rank()) == (size, rank), (group.size(), group.rank())
    whole = torch.empty(8 * size, device=device)
    dist.all_gather_into_tensor(whole, torch.ones(8, device=device), group=group)
    part = torch.empty(8, device=device)
    dist.reduce_scatter_tensor(part, whole, group=group)
";

#[needs(pytorch)]
#[test]
fn parts_of_a_job_have_their_own_size_and_ranks_though_one_rank_runs_alone() {
    let options = ["--json", "--nodes", "2", "--devices", "8", "--rank", "11"];
    let output = predict("parts", PARTS, &options, &[]);
    let report = answer(&output, 0);
    assert_eq!(report["judged"]["process"]["rank"], 11, "{report}");
}

const COMPILES: &str = "
import os, torch
os.environ['TORCHINDUCTOR_CACHE_DIR'] = os.environ['USERS_CACHE']
from torch._inductor import async_compile
async_compile.AsyncCompile.wait_pool_ready()
layer = torch.compile(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU()).cuda())
layer(torch.ones(8, 64, device='cuda')).sum().backward()
";

#[needs(pytorch)]
#[test]
fn what_is_tuned_here_is_not_left_in_the_users_caches() {
    let home = Folder::new("programs-home");
    let cache = Folder::new("programs-cache");
    let environment = [
        ("HOME", home.path()),
        ("USERS_CACHE", cache.path()),
        ("TRITON_CACHE_DIR", cache.path()),
        ("TORCHINDUCTOR_CACHE_DIR", cache.path()),
    ];
    let output = predict("compiles", COMPILES, &["--json"], &environment);
    answer(&output, 0);
    assert_eq!(cache.names(), [""; 0]);
    assert!(!home.0.join(".triton").exists(), "{:?}", home.names());
}

const COMPILES_TWICE: &str = "
import subprocess, sys, torch
if len(sys.argv) < 2:
    for caches in ('cold', 'warm'):
        subprocess.run([sys.executable, __file__, caches], check=True)
    sys.exit()
x = torch.randn(1024, 1024, device='cuda')
torch.compile(lambda x: (x.t() * x).sin(), options=dict(max_autotune_pointwise=True))(x)
print(sys.argv[1], torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved(), flush=True)
";

#[needs(pytorch, nightly)]
#[test]
fn the_peaks_with_a_warm_compile_cache_are_those_of_a_second_process() {
    let output = predict("compiles-twice", COMPILES_TWICE, &["--json", "--whole"], &[]);
    let report = answer(&output, 0);
    let (cold, warm) = (&report["judged"], &report["with_warm_compile_cache"]);
    for (caches, peaks) in [("cold", cold), ("warm", warm)] {
        let line = format!("{caches} {} {}\n", peaks["peak_allocated_bytes"], peaks["peak_reserved_bytes"]);
        assert!(stderr(&output).contains(&line), "{line}{}", stderr(&output));
    }
    assert!(cold["peak_reserved_bytes"].as_u64() > warm["peak_reserved_bytes"].as_u64(), "{report}");
}

/// Attention in 16 bits, which cuDNN computes on Hopper, without and with a mask.
const ATTENDS: &str = "
import torch, torch.nn.functional as F
q = torch.randn(2, 4, 128, 64, device='cuda', dtype=torch.bfloat16, requires_grad=True)
mask = torch.ones(2, 1, 128, 128, dtype=torch.bool, device='cuda')
for step in range(4):
    F.scaled_dot_product_attention(q, q, q, attn_mask=mask if step % 2 else None).sum().backward()
";

#[needs(pytorch)]
#[test]
fn attention_that_cudnn_computes_needs_no_gpu() {
    let output = predict("attends", ATTENDS, &["--json", "--gpu=H200"], &[]);
    let report = answer(&output, 0);
    assert!(report["judged"]["peak_allocated_bytes"].as_u64().is_some_and(|it| it > 0), "{report}");
}

/// Boxes with unknown scores, as in a detection model; the last three boxes are known.
const BOXES: &str = "
import torch
from torchvision.ops import batched_nms, nms
boxes = torch.rand(3000, 4, device='cuda')
scores, labels = torch.rand(3000, device='cuda'), torch.arange(3000).cuda() % 7
kept = nms(boxes, scores, 0.5)
features = torch.zeros(len(kept), 1 << 12, device='cuda')
print('kept', len(kept), len(batched_nms(boxes, scores, labels, 0.5)[:2000]), labels[kept].max().item())
known = torch.tensor([[0.0, 0, 9, 9], [0, 0, 9, 8], [20, 20, 30, 30]]).cuda()
assert nms(known, torch.tensor([0.5, 0.9, 0.1]).cuda(), 0.5).tolist() == [1, 2]
";

#[needs(pytorch, torchvision)]
#[test]
fn nms_keeps_all_boxes_or_the_assumed_one_and_the_bytes_at_stake_are_named() {
    let torch = Torch::new("boxes", BOXES);
    let output = torch.predict(&["--whole", "--json"], &[]);
    let report = answer(&output, 0);
    let said = stderr(&output);
    assert!(said.contains("kept 3000 2000 6\n") && said.contains("kept 1 1 0\n"), "{said}");
    let warned = report["warnings"][0].as_str().expect("a warning");
    assert!(
        warned.starts_with(
            "train.py:6, 8: `nms` is assumed to keep all boxes, 3000; at stake, all 2 lines together: up to 4"
        ),
        "{warned}"
    );
    assert!(warned.ends_with(" MiB less"), "{warned}");
    let (all, none) =
        (&report["judged"]["peak_allocated_bytes"], &report["with_least_values"]["peak_allocated_bytes"]);
    assert!(all.as_u64() > none.as_u64().map(|it| it + (40 << 20)), "{all} {none}");
    let mut reads = report["reads"].as_array().expect("reads").iter();
    assert!(reads.all(|read| read["decides"] == false || read["line"] != 10), "{report}");
}

/// Two training loops in one function that ends with the loop, the second with a larger batch; then a 64 MiB
/// tensor.
const TWICE: &str = "
import sys, torch
def train(model, batch, steps):
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        model(torch.randn(batch, 64, device='cuda')).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
model = torch.nn.Linear(64, 1024).cuda()
train(model, 32, int(sys.argv[1]))
train(model, 2048, 12)
last = torch.zeros(1 << 24, device='cuda')
";

#[needs(pytorch)]
#[test]
fn a_second_training_and_a_tensor_behind_it_run_or_the_first_line_says_that_they_did_not() {
    let torch = Torch::new("twice", TWICE);
    let [few, all] =
        [&["--json"][..], &["--json", "--whole"]].map(|it| answer(&torch.predict(it, &["12"]), 0));
    assert_eq!(few["summary"], all["summary"]);
    assert!(few["judged"]["peak_allocated_bytes"].as_u64() > Some(64 << 20), "{few}");
    // A loop that is too long is not run to its end.
    let report = answer(&torch.predict(&["--json"], &["1000000"]), 0);
    let said = report["summary"].as_str().expect("a sentence");
    let expected =
        " in the first 3 steps (train.py:11 and 1 more line after the loop were not run: --whole): at most";
    assert!(said.starts_with("fits") && said.contains(expected), "{said}");
    assert!(report["not_run"].to_string().contains("train.py:12  last = torch.zeros"), "{report}");
}
