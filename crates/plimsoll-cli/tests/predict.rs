//! `plimsoll predict` as its users meet it: PyTorch programs where there is no GPU.

#![allow(clippy::print_stderr, reason = "a test that skips says so")]

use std::fs;
use std::process::Output;

use serde_json::Value;

mod program;
use program::{Folder, explained, json, plimsoll, stderr, stdout, text};

#[test]
fn gpus_are_listed_by_name() {
    let list = text(&["predict", "--list"]);
    assert!(list.lines().any(|line| line.starts_with("A100-80GB ") && line.contains(" 8.0 ")), "{list}");
}

#[test]
fn what_cannot_be_run_as_asked_is_refused_before_it_runs() {
    for (args, said) in [
        (&["predict", "--gpu", "H9000", "--", "true"][..], "known are H200"),
        (&["predict", "--gpu", "24GiB", "--", "true"], "--cc"),
        (&["predict", "--alloc-conf", "nonsense:1", "--", "true"], "nonsense"),
        (&["predict", "--find", "N=1..2", "--", "true"], "{N} is nowhere"),
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
        ("echo hello", 4, "no torch was imported"),
        ("exit 3", 5, "exit status 3"),
        ("kill -9 $$", 5, "signal 9"),
    ] {
        let output = plimsoll(&["predict", "--json", "--", "sh", "-c", command]);
        assert_eq!(output.status.code(), Some(code), "{command}: {}", stderr(&output));
        let summary = json(&output)["summary"].to_string();
        assert!(summary.contains(said), "{command}: {summary}");
    }
    // What the program prints is not the answer.
    let output = plimsoll(&["predict", "--", "sh", "-c", "echo hello"]);
    assert!(stderr(&output).contains("\nhello\n") && !stdout(&output).contains("hello"));
    let output = plimsoll(&["predict", "--", "no-such-program"]);
    assert_eq!(output.status.code(), Some(5));
}

/// A folder with a program, and the Python of PyTorch's that runs it.
struct Torch {
    folder: Folder,
    python: Vec<String>,
}

impl Torch {
    /// Nothing where there is no PyTorch, which is said.
    fn new(name: &str, program: &str) -> Option<Torch> {
        let Ok(python) = std::env::var("PLIMSOLL_PYTORCH") else {
            eprintln!("skipped: PLIMSOLL_PYTORCH does not name a Python with PyTorch");
            return None;
        };
        let folder = Folder::new(&format!("predict-{name}"));
        fs::write(folder.file("train.py"), program).expect("a program");
        Some(Torch { folder, python: python.split_whitespace().map(str::to_owned).collect() })
    }

    fn predict(&self, options: &[&str], arguments: &[&str]) -> Output {
        let program = self.folder.file("train.py");
        let python = self.python.iter().map(String::as_str);
        let mut args = vec!["predict"];
        args.extend(options.iter().copied().chain(["--"]).chain(python).chain([program.as_str()]));
        args.extend(arguments);
        plimsoll(&args)
    }
}

/// The answer of a run that ends with this code.
#[track_caller]
fn answer(output: &Output, code: i32) -> Value {
    assert_eq!(output.status.code(), Some(code), "{}", stderr(output));
    json(output)
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

#[test]
fn the_peaks_are_the_programs_own() {
    let Some(torch) = Torch::new("peaks", TRAINS) else { return };
    let whole = torch.predict(&["--whole", "--json"], &["512"]);
    let told = answer(&whole, 0);
    let judged = &told["judged"];
    let peaks = format!("peaks {} {}\n", judged["peak_allocated_bytes"], judged["peak_reserved_bytes"]);
    assert!(stderr(&whole).contains(&peaks), "{peaks}{}", stderr(&whole));
    assert_eq!(told["verdict"]["is"], "fits");
    assert_eq!(judged["process"]["steps"], 5);
    assert_eq!(judged["explanation"]["replay"]["identical"], true);

    let snapshot = torch.folder.file("run.pickle");
    let three = torch.predict(&["--json", "--snapshot", &snapshot], &["512"]);
    let told = answer(&three, 0);
    assert_eq!(
        (&told["judged"]["process"]["steps"], &told["judged"]["process"]["state"]),
        (&3.into(), &"stopped".into())
    );
    assert!(stderr(&three).contains("step 1") && !stderr(&three).contains("step 3"), "{}", stderr(&three));
    assert_eq!(explained(&snapshot)["peak_allocated"]["allocated_bytes"], judged["peak_allocated_bytes"]);
}

#[test]
fn the_largest_width_that_fits_is_found() {
    let Some(torch) = Torch::new("find", TRAINS) else { return };
    let options = ["--gpu", "1GiB", "--cc", "8.0", "--context", "0", "--find", "W=2..5", "--json"];
    let told = answer(&torch.predict(&options, &["{W}000"]), 0);
    assert_eq!(told["largest"], 3, "{told}");
    let tried = told["tried"].as_array().expect("runs");
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

#[test]
fn how_a_program_fails_is_told_apart() {
    let Some(torch) = Torch::new("fails", FAILS) else { return };
    let told = |how: &str, code| answer(&torch.predict(&["--json"], &[how]), code)["verdict"].clone();
    let out = told("out", 4);
    assert!(out["line"].as_str().is_some_and(|line| line.contains("train.py:5")), "{out}");
    assert_eq!((&out["asked_bytes"], &out["caught"]), (&(4_u64 << 30).into(), &false.into()));
    assert_eq!(told("caught", 4)["caught"], true);
    let read = told("read", 5);
    assert!(read["hint"].as_str().is_some_and(|hint| hint.contains("read back")), "{read}");
    let own = told("own", 5);
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

#[test]
fn one_rank_without_the_others_takes_what_it_takes_beside_them() {
    let Some(torch) = Torch::new("ranks", SHARDS) else { return };
    let alone = answer(&torch.predict(&["--json", "--devices", "2", "--rank", "1"], &[]), 0);
    assert_eq!(alone["judged"]["process"]["rank"], 1);
    let mut together = torch;
    together.python.extend(["-m", "torch.distributed.run", "--nproc-per-node", "2"].map(str::to_owned));
    let together = answer(&together.predict(&["--json", "--devices", "2"], &[]), 0);
    let ranks = together["processes"].as_array().expect("processes");
    assert_eq!(ranks.len(), 2, "{together}");
    assert_eq!(ranks[1]["devices"], alone["judged"]["process"]["devices"]);
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
if sys.argv[1] == 'selects':
    torch.randn(512, 64, device='cuda').nonzero()
if sys.argv[1] == 'refused':
    torch._cslt_compress(torch.ones(64, 64, device='cuda', dtype=torch.half))
";

#[test]
fn what_the_stand_in_took_to_be_so_is_among_the_limits_however_the_program_ends() {
    let Some(torch) = Torch::new("assumes", ASSUMES) else { return };
    let limits = |told: &Value| told["not_counted"].to_string();
    let exit = answer(&torch.predict(&["--whole", "--json"], &["exit"]), 0);
    assert_eq!(exit["exact"], false);
    for said in ["cuSPARSE is taken to need", "cuFFT is taken to need no workspace"] {
        assert!(limits(&exit).contains(said), "{exit}");
    }
    let refused = answer(&torch.predict(&["--json"], &["refused"]), 5);
    let hint = refused["verdict"]["hint"].to_string();
    assert!(hint.contains("does not imitate what was called: cusparseLt"), "{refused}");
    let selects = answer(&torch.predict(&["--whole", "--json"], &["selects"]), 0);
    assert!(limits(&selects).contains("what is selected by values of the device is empty"), "{selects}");
    let torch = Torch::new("assumes-nothing", TRAINS).expect("as before");
    assert_eq!(answer(&torch.predict(&["--json"], &["64"]), 0)["exact"], true);
}
