//! `plimsoll predict` as users run it: PyTorch programs on a machine without a GPU.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use plimsoll_needs::needs;

use plimsoll_standin::process::Stat;

use crate::program::{Folder, explained, json, plimsoll, signal, stderr, stdout, text};
use crate::torch::{Torch, answer};

#[test]
fn gpus_are_listed_by_name() {
    let list = text(&["predict", "--list"]);
    assert!(list.lines().any(|line| line.starts_with("A100-80GB ") && line.contains(" 8.0 ")), "{list}");
}

#[test]
fn what_cannot_be_run_as_asked_is_refused_before_it_runs() {
    for (args, said) in [
        (&["predict", "--gpu", "H9000", "--", "true"][..], "known are H200"),
        (&["predict", "--gpu", "MI300X", "--", "true"], "AMD"),
        (&["predict", "--devices", "256", "--rank", "0", "--", "true"], "--nodes 32 --devices 8"),
        (&["predict", "--devices", "8", "--nodes", "2", "--rank", "16", "--", "true"], "--rank"),
        (&["predict", "--devices", "8", "--nodes", "2", "--", "true"], "--rank"),
        (&["predict", "--gpu", "T4", "--alloc-conf", "nonsense:1", "--", "true"], "nonsense"),
        (&["predict", "--gpu", "T4", "--find", "N=1..2", "--", "true"], "does not contain {N}"),
        (&["predict", "--devices", "2", "--rank", "2", "--", "true"], "--rank"),
        (&["predict"], "COMMAND"),
    ] {
        let output = plimsoll(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", stdout(&output));
        assert!(stderr(&output).contains(said), "{args:?}: {}", stderr(&output));
    }
}

#[test]
fn a_program_without_torch_is_no_answer_and_one_that_fails_is_a_failure() {
    for (command, code, said) in [
        ("echo hello", 4, "torch was not imported"),
        ("exit 3", 5, "exit status 3"),
        ("kill -9 $$", 5, "signal 9"),
    ] {
        let output = plimsoll(&["predict", "--gpu", "T4", "--json", "--", "sh", "-c", command]);
        assert_eq!(output.status.code(), Some(code), "{command}: {}", stderr(&output));
        let summary = json(&output)["summary"].to_string();
        assert!(summary.contains(said), "{command}: {summary}");
    }
    // The program's output is not the answer.
    let output = plimsoll(&["predict", "--gpu", "T4", "--", "sh", "-c", "echo hello"]);
    assert!(stderr(&output).contains("\nhello\n") && !stdout(&output).contains("hello"));
    let output = plimsoll(&["predict", "--gpu", "T4", "--", "no-such-program"]);
    assert_eq!(output.status.code(), Some(5));
    for verb in [&["predict", "--gpu", "T4"][..], &["plan", "--gpu", "T4"], &["run"]] {
        let output = plimsoll(&[verb, &["--", "no-such-program.py"]].concat());
        assert_eq!(output.status.code(), Some(5), "{verb:?}");
        assert!(stderr(&output).contains("; try: python no-such-program.py"), "{}", stderr(&output));
    }
}

#[test]
fn everything_that_was_started_ends_with_plimsoll_also_if_it_is_killed() {
    // The programs write their process IDs.
    for args in [
        &["predict", "--allow-writes", "--gpu", "T4"][..],
        &["plan", "--allow-writes", "--gpu", "T4"],
        &["run", "--ranks", "2"],
    ] {
        let folder = Folder::new(&format!("killed-{}", args[0]));
        let pids = folder.file("pids");
        // A process in its own session, like torchrun's.
        let command = format!("setsid sleep 300 & echo $$ $! >> '{pids}'; wait");
        let mut child = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
            .args(args)
            .args(["--", "sh", "-c", &command])
            .env("TMPDIR", folder.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("it starts");
        let wanted = if args.contains(&"--ranks") { 4 } else { 2 };
        let started = || -> Vec<u32> {
            let text = fs::read_to_string(&pids).unwrap_or_default();
            text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
        };
        let soon = |what: &dyn Fn() -> bool| {
            (0..1000).any(|_| {
                std::thread::sleep(std::time::Duration::from_millis(10));
                what()
            })
        };
        assert!(soon(&|| started().len() == wanted), "{args:?}: {:?}", started());
        child.kill().expect("SIGKILL");
        child.wait().expect("its end");
        assert!(soon(&|| started().iter().all(|pid| Stat::of(*pid).is_none())), "{args:?}: {:?}", started());
        let left = || fs::read_dir(&folder.0).expect("the folder").count();
        assert!(soon(&|| left() == 1), "{args:?}: more is left than the file");
    }
}

const TRAINS: &str = "
import sys, torch
width = int(sys.argv[1])
model = torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(4)]).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(5):
    model(torch.randn(64, width, device='cuda')).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    print('step', step)
print('peaks', torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
";

#[needs(pytorch)]
#[test]
fn the_peaks_are_the_programs_own() {
    let torch = Torch::new("peaks", TRAINS);
    let whole = torch.predict(&["--whole", "--json"], &["512"]);
    let report = answer(&whole, 0);
    let judged = &report["judged"];
    let peaks = format!("peaks {} {}\n", judged["peak_allocated_bytes"], judged["peak_reserved_bytes"]);
    assert!(stderr(&whole).contains(&peaks), "{peaks}{}", stderr(&whole));
    assert_eq!(report["verdict"]["is"], "fits");
    assert_eq!(judged["process"]["steps"], 5);
    assert_eq!(judged["explanation"]["replay"]["identical"], true);

    let snapshot = torch.folder.file("run.pickle");
    let three = torch.predict(&["--json", "--snapshot", &snapshot], &["512"]);
    let report = answer(&three, 0);
    assert_eq!(
        (&report["judged"]["process"]["steps"], &report["judged"]["process"]["state"]),
        (&3.into(), &"stopped".into())
    );
    assert!(stderr(&three).contains("step 1") && !stderr(&three).contains("step 3"), "{}", stderr(&three));
    assert_eq!(explained(&snapshot)["peak_allocated"]["allocated_bytes"], judged["peak_allocated_bytes"]);
}

#[needs(pytorch, nightly)]
#[test]
fn the_largest_width_that_fits_is_found() {
    let torch = Torch::new("find", TRAINS);
    let options = ["--gpu", "1GiB", "--cc", "8.0", "--context", "0", "--find", "W=2..5", "--json"];
    let report = answer(&torch.predict(&options, &["{W}000"]), 0);
    assert_eq!(report["largest"], 3, "{report}");
    let tried = report["tried"].as_array().expect("runs");
    let first_not = tried.iter().find(|it| it["verdict"]["is"] == "runs out").expect("one that does not fit");
    assert!(
        first_not["verdict"]["line"].as_str().is_some_and(|line| line.contains("train.py:")),
        "{first_not}"
    );
}

const FAILS: &str = "
import sys, torch
x = torch.ones(1 << 20, device='cuda')
if sys.argv[1] == 'out':
    kept = [torch.empty(1 << 30, device='cuda') for _ in range(1000)]
if sys.argv[1] == 'caught':
    try:
        torch.empty(1 << 40, device='cuda')
    except torch.cuda.OutOfMemoryError:
        print('too large')
if sys.argv[1] == 'own':
    raise KeyError('mine')
if sys.argv[1] == 'read':
    assert int(x.sum()) > 0, 'no rows'
";

#[needs(pytorch)]
#[test]
fn memory_that_ran_out_and_other_failures_have_different_verdicts() {
    let torch = Torch::new("fails", FAILS);
    let report = |how: &str, code| answer(&torch.predict(&["--json"], &[how]), code)["verdict"].clone();
    let out = report("out", 4);
    assert!(out["line"].as_str().is_some_and(|line| line.contains("train.py:5")), "{out}");
    assert_eq!((&out["asked_bytes"], &out["caught"]), (&(4_u64 << 30).into(), &false.into()));
    let caught = report("caught", 0);
    assert_eq!((&caught["is"], &caught["caught_requests"]), (&"fits".into(), &1.into()));
    let read = report("read", 5);
    assert!(
        read["hint"].as_str().is_some_and(|hint| hint.contains("reads from the GPU just above")),
        "{read}"
    );
    let own = report("own", 5);
    assert!(
        own["hint"].is_null() && own["how"].as_str().is_some_and(|how| how.starts_with("KeyError")),
        "{own}"
    );
}

const SHARDS: &str = "
import os, torch, torch.distributed as dist
from torch.distributed.fsdp import fully_shard
dist.init_process_group('nccl')
torch.cuda.set_device(int(os.environ['LOCAL_RANK']))
model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(4)]).cuda()
for layer in model:
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.Adam(model.parameters())
for _ in range(3):
    model(torch.randn(64, 512, device='cuda')).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
";

#[needs(pytorch)]
#[test]
fn one_rank_without_the_others_takes_what_it_takes_beside_them() {
    let alone = Torch::new("ranks", SHARDS);
    let mut together = Torch::new("ranks-together", SHARDS);
    together
        .python
        .extend(["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"].map(str::to_owned));
    let pairs = (0..3).map(|_| {
        let alone = answer(&alone.predict(&["--json", "--devices", "2", "--rank", "1"], &[]), 0);
        assert_eq!(alone["judged"]["process"]["rank"], 1);
        let together = answer(&together.predict(&["--json", "--devices", "2"], &[]), 0);
        let ranks = together["processes"].as_array().expect("processes");
        assert_eq!(ranks.len(), 2, "{together}");
        (ranks[1]["devices"].clone(), alone["judged"]["process"]["devices"].clone())
    });
    // A thread of NCCL's back end drops tensors when it looks, ten times a second: on a busy machine, that may be a step later.
    let differ: Vec<_> = pairs.take_while(|(beside, alone)| beside != alone).collect();
    assert!(differ.len() < 3, "{differ:?}");
}

const ASSUMES: &str = "
import sys, torch
matrix = torch.eye(512).to_sparse_csr().cuda()
weights = torch.randn(512, 64, device='cuda', requires_grad=True)
torch.sparse.mm(matrix, weights).sum().backward()
if sys.argv[1] == 'exit':
    torch.fft.fft(torch.randn(64, 64, device='cuda'))
    import os
    os._exit(0)
if sys.argv[1] == 'refused':
    import ctypes
    ctypes.CDLL(None).cuMulticastCreate()
    raise RuntimeError('CUDA error: operation not supported')
";

#[needs(pytorch)]
#[test]
fn assumptions_are_among_the_limits_however_the_program_ends() {
    let torch = Torch::new("assumes", ASSUMES);
    let limits = |report: &Value| report["not_counted"].to_string();
    let exit = answer(&torch.predict(&["--whole", "--json"], &["exit"]), 0);
    assert_eq!(exit["exact"], false);
    for said in ["cuSPARSE is assumed to need", "cuFFT is assumed to need"] {
        assert!(limits(&exit).contains(said), "{}", limits(&exit));
    }
    let refused = answer(&torch.predict(&["--json"], &["refused"]), 5);
    let hint = refused["verdict"]["hint"].to_string();
    assert!(hint.contains("does not support: cuMulticastCreate"), "{refused}");
    let torch = Torch::new("assumes-nothing", TRAINS);
    assert_eq!(answer(&torch.predict(&["--json"], &["64"]), 0)["exact"], true);
}

const TRANSFORMS: &str = "
import torch
torch.fft.fft(torch.randn(64, 1 << 17, device='cuda'))
";

#[needs(pytorch)]
#[test]
fn the_peaks_without_the_workspaces_of_cufft_are_reported_too() {
    let torch = Torch::new("transforms", TRANSFORMS);
    let output = torch.predict(&["--whole"], &[]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stdout(&output).contains("without cuFFT's workspaces ("), "{}", stdout(&output));
}

const CONVOLVES: &str = "
import os, sys, torch
os.makedirs(sys.argv[1])
model = torch.nn.Conv2d(64, 64, 3, padding=1, device='cuda')
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(3):
    model(torch.randn(32, 64, 56, 56, device='cuda')).sum().backward()
    optimizer.step()
";

#[needs(pytorch)]
#[test]
fn cudnn_is_asked_for_its_workspaces_and_the_program_runs_once() {
    let torch = Torch::new("convolves", CONVOLVES);
    let out = torch.folder.file("out");
    let report = answer(&torch.predict(&["--gpu", "H200", "--json"], &[&out]), 0);
    let limits = report["not_counted"].to_string();
    assert!(limits.contains("cuDNN chose its kernels and workspaces itself"), "{limits}");
    let without = &report["without_cudnn_workspaces"];
    assert!(without["left_out"].as_u64().is_some_and(|count| count > 0), "{report}");
    let none = torch.folder.file("none");
    let report =
        answer(&torch.predict(&["--gpu", "H200", "--json", "--cudnn-workspace", "none"], &[&none]), 0);
    let peak = |key| (&without[key], &report["judged"][key]);
    for key in ["peak_allocated_bytes", "peak_reserved_bytes"] {
        let (replayed, run) = peak(key);
        assert_eq!(replayed, run, "{key}: the replay gives what a run without workspaces gives");
    }
}

#[needs(pytorch)]
#[test]
fn the_snapshots_of_all_ranks_are_kept_in_a_folder() {
    let mut torch = Torch::new("kept", SHARDS);
    torch
        .python
        .extend(["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"].map(str::to_owned));
    let folder = torch.folder.file("kept") + "/";
    let output = torch.predict(&["--json", "--devices", "2", "--snapshot", &folder], &[]);
    let report = answer(&output, 0);
    let side_by_side = json(&plimsoll(&["explain", "--json", &folder]));
    let ranks = side_by_side["ranks"].as_array().expect("ranks");
    let names: Vec<&Value> = ranks.iter().map(|rank| &rank["name"]).collect();
    assert_eq!(names, ["rank 0", "rank 1"], "{side_by_side}");
    let own = report["judged"]["process"]["rank"].as_u64().expect("a rank");
    assert!(fs::exists(format!("{folder}rank{own}.pickle")).expect("a folder"));
    // Snapshots of another run would be mistaken for ranks of this one.
    let again = torch.predict(&["--snapshot", &folder], &[]);
    assert_eq!(again.status.code(), Some(2), "{}", stderr(&again));
}

const SHARES: &str = "
import sys, torch, torch.multiprocessing as mp
def work(barrier, gibibytes):
    try:
        kept = [torch.empty(1 << 30, dtype=torch.uint8, device='cuda') for _ in range(gibibytes)]
    except torch.cuda.OutOfMemoryError:
        barrier.abort()
        raise
    barrier.wait()
    free, total = torch.cuda.mem_get_info()
    print(f'taken {total - free}', flush=True)
    barrier.wait()
if __name__ == '__main__':
    context = mp.get_context('spawn')
    barrier = context.Barrier(2, timeout=60)
    both = [context.Process(target=work, args=(barrier, int(sys.argv[1]))) for _ in range(2)]
    [process.start() for process in both]
    [process.join() for process in both]
";

#[needs(pytorch)]
#[test]
fn processes_share_a_gpu_with_a_context_each() {
    let torch = Torch::new("shares", SHARES);
    let gpu = ["--gpu", "8GiB", "--cc", "8.0", "--context", "512MiB", "--json"];
    let fits = torch.predict(&gpu, &["1"]);
    let report = answer(&fits, 0);
    assert_eq!(report["verdict"]["spare_bytes"], 5_u64 << 30, "{report}");
    assert_eq!(stderr(&fits).matches(&format!("taken {}", 3_u64 << 30)).count(), 2, "{}", stderr(&fits));
    // Each process alone would fit.
    let report = answer(&torch.predict(&gpu, &["4"]), 4);
    assert_eq!(report["verdict"]["is"], "runs out", "{report}");
}

const AGREES: &str = "
import os, torch, torch.distributed as dist
rank = int(os.environ['LOCAL_RANK'])
torch.cuda.set_device(rank)
dist.init_process_group('nccl')
objects = [None, None]
dist.all_gather_object(objects, 'x' * (rank + 1))
assert objects == ['x', 'xx'], objects
if rank == 0:
    dist.send_object_list(['y'], 1)
else:
    got = [None]
    dist.recv_object_list(got, 0)
    assert got == ['y'], got
length = torch.tensor([7 + rank], device='cuda')
dist.broadcast(length, src=1)
assert length.item() == 8, length
if rank == 0:
    dist.send(torch.tensor([5], device='cuda'), 1)
    dist.send(torch.tensor([6], device='cuda'), 1)
else:
    got, more = (torch.zeros(1, dtype=torch.long, device='cuda') for _ in range(2))
    dist.recv(got, 0)
    dist.recv(more, 0)
    assert (got.item(), more.item()) == (5, 6), (got, more)
every = torch.zeros(2, dtype=torch.long, device='cuda')
dist.all_gather_into_tensor(every, torch.tensor([3 + rank], device='cuda'))
assert every.tolist() == [3, 4], every
";

#[needs(pytorch)]
#[test]
fn ranks_hear_what_others_send_them() {
    let mut torch = Torch::new("agrees", AGREES);
    torch
        .python
        .extend(["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"].map(str::to_owned));
    answer(&torch.predict(&["--json", "--devices", "2"], &[]), 0);
}

/// The group is kept, as DeepSpeed keeps its groups, and the process sleeps after the destructors of PyTorch's libraries.
const LEAVES: &str = "
import ctypes, os
libc = ctypes.CDLL(None)
libc.__cxa_atexit(libc.usleep, ctypes.c_void_p(600_000), None)
import torch, torch.distributed as dist
torch.cuda.set_device(int(os.environ['LOCAL_RANK']))
dist.init_process_group('nccl')
ctypes.pythonapi.Py_IncRef(ctypes.py_object(dist.group.WORLD))
dist.all_reduce(torch.ones(1 << 10, device='cuda'))
";

#[needs(pytorch)]
#[test]
fn ranks_may_leave_their_group_to_the_end_of_the_process() {
    let mut torch = Torch::new("leaves", LEAVES);
    torch
        .python
        .extend(["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"].map(str::to_owned));
    answer(&torch.predict(&["--json", "--devices", "2"], &[]), 0);
}

const RESUMES: &str = "
import io, torch
import torch.distributed.optim
layer = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.AdamW(layer.parameters())
for step in range(3):
    probabilities = torch.distributions.Categorical(logits=layer(torch.ones(64, device='cuda')))
    (-probabilities.log_prob(probabilities.sample())).backward()
    optimizer.step()
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    optimizer.load_state_dict(torch.load(file, map_location='cuda'))
";

#[needs(pytorch)]
#[test]
fn a_program_that_resumes_or_checks_its_distributions_runs() {
    let torch = Torch::new("resumes", RESUMES);
    let report = answer(&torch.predict(&["--json"], &[]), 0);
    assert_eq!(report["judged"]["process"]["steps"], 3);
}

const WAITS: &str = "
import subprocess, sys, time, torch
kept = torch.empty(1 << 30, dtype=torch.uint8, device='cuda')
other = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)
print('started', other.pid, flush=True)
while True:
    time.sleep(0.1)
";

#[needs(pytorch)]
#[test]
fn a_signal_or_a_timeout_ends_the_run_with_a_report_and_no_process_is_left() {
    let torch = Torch::new("waits", WAITS);
    let gone = |output: &Output| {
        let said = stderr(output);
        let (_, number) = said.split_once("started ").expect("the program's output");
        let number = number.lines().next().expect("a number");
        !fs::read_to_string(format!("/proc/{number}/stat")).is_ok_and(|it| !it.contains(") Z "))
    };
    let expired = torch.predict(&["--json", "--timeout", "30s"], &[]);
    let report = answer(&expired, 4);
    assert_eq!(report["judged"]["peak_allocated_bytes"], 1 << 30, "{report}");
    assert!(gone(&expired));

    let temporary = torch.folder.file("temporary");
    fs::create_dir(&temporary).expect("a folder");
    let python = torch.python.iter().map(String::as_str);
    let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    command.args(["predict", "--gpu", "T4", "--json", "--"]).args(python).arg(torch.folder.file("train.py"));
    let child = command.env("TMPDIR", &temporary).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.expect("it starts");
    // After the program has started.
    let mut said = BufReader::new(child.stderr.take().expect("a pipe"));
    let mut before = String::new();
    while !before.contains("started ") {
        assert!(said.read_line(&mut before).expect("text") > 0, "{before}");
    }
    signal(child.id(), "TERM");
    let mut output = child.wait_with_output().expect("an end");
    output.stderr = before.into_bytes();
    let report = answer(&output, 4);
    assert!(report["summary"].as_str().is_some_and(|it| it.contains("interrupted")), "{report}");
    assert_eq!(report["judged"]["peak_allocated_bytes"], 1 << 30, "{report}");
    assert!(gone(&output));
    // Files that PyTorch keeps there remain.
    let left = fs::read_dir(&temporary).expect("a folder").map(|entry| entry.expect("an entry").file_name());
    let ours = left.filter(|name| name.to_string_lossy().starts_with("plimsoll")).count();
    assert_eq!(ours, 0, "our folder is gone");
}
