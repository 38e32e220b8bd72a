//! The library that counts a process's memory on the host (`host/`), in small programs whose memory is known, and what
//! `predict` says about it.

use std::fs;
use std::process::Command;

use plimsoll_needs::needs;
use serde_json::Value;

use crate::program::{Folder, plimsoll};
use crate::torch::{Torch, answer};

/// The library; this package's build script compiles it.
const LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/host.bin"));

const MIB: u64 = 1 << 20;

/// The bytes by which the kernel's counters for a process may be off, plus the memory that an interpreter itself
/// allocates during the test.
const NEAR: u64 = 3 * MIB;

/// The beginning of every program: `truth()` prints the bytes that are resident now and cannot be dropped, and leaves time
/// for a sample.
const BEGIN: &str = "
import ctypes, mmap, os, sys, time
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
MIB = 1 << 20
def resident(*kinds):
    lines = [line.split() for line in open('/proc/self/status')]
    return sum(int(line[1]) << 10 for line in lines if line[0] in kinds)
def truth():
    print('truth', resident('RssAnon:', 'RssShmem:'), flush=True)
    time.sleep(0.3)
";

/// The lines of a process's file, and the bytes that the program said were resident.
struct Counted {
    lines: Vec<Vec<String>>,
    truth: Option<u64>,
}

impl Counted {
    /// The fields after the first words of a line; `None` if no line begins with them.
    fn line(&self, words: &[&str]) -> Option<&[String]> {
        let begins = |line: &&Vec<String>| line.iter().zip(words).all(|(field, word)| field == word);
        self.lines.iter().find(begins).map(|line| &line[words.len()..])
    }

    /// Anonymous, pinned, shared and file bytes at the peak of a phase.
    fn peak(&self, phase: &str) -> [u64; 4] {
        let fields = self.line(&["peak", phase]).unwrap_or_else(|| panic!("no {phase}: {:?}", self.lines));
        [0, 1, 2, 3].map(|place| fields[place].parse().expect("bytes"))
    }

    /// The bytes of an owner, or of a mapped file.
    fn owned(&self, kind: &str, name: &str) -> u64 {
        let is_it = |line: &&Vec<String>| line[0] == kind && line.last().is_some_and(|it| it == name);
        let line = self.lines.iter().find(is_it);
        line.unwrap_or_else(|| panic!("no {kind} {name}: {:?}", self.lines))[2].parse().expect("bytes")
    }
}

/// Runs a program with the library. The first result is the program's, and the second is its fork's, if it made one.
fn counted(python: &[&str], name: &str, program: &str) -> (Counted, Option<Counted>) {
    let folder = Folder::new(&format!("host-{name}"));
    let library = folder.file("libplimsoll_host.so");
    fs::write(&library, LIBRARY).expect("the library");
    let mut command = Command::new(python[0]);
    command.args(&python[1..]).arg("-c").arg(format!("{BEGIN}{program}"));
    command.env("LD_PRELOAD", &library).env("PLIMSOLL_HOST_FOLDER", folder.path());
    command.current_dir(folder.path());
    let output = command.output().expect("a Python");
    let (said, complaints) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{name}: {complaints}");
    let truth = said.lines().filter_map(|line| line.strip_prefix("truth ")?.parse().ok()).max();
    let entries = fs::read_dir(folder.path()).expect("a folder").map(|entry| entry.expect("an entry").path());
    let mut found = (None, None);
    for path in entries.filter(|path| path.extension().is_some_and(|ending| ending == "host")) {
        let text = fs::read_to_string(path).expect("a file");
        let lines = text.lines().map(|line| line.split('\t').map(str::to_owned).collect());
        let counted = Counted { lines: lines.collect(), truth };
        let is_fork = counted.line(&["process"]).is_some_and(|fields| fields[3] == "1");
        *(if is_fork { &mut found.1 } else { &mut found.0 }) = Some(counted);
    }
    (found.0.unwrap_or_else(|| panic!("{name}: no file: {said}{complaints}")), found.1)
}

#[track_caller]
fn check_near(found: u64, expected: u64, near: u64) {
    assert!(found.abs_diff(expected) <= near, "{found} is not {expected}, give or take {near}");
}

#[needs(python3)]
#[test]
fn the_peak_is_what_was_resident_however_it_was_requested() {
    let programs = [
        ("bytes", "b = b'x' * (64 * MIB); truth(); del b", 64),
        ("freed", "b = b'x' * (96 * MIB); truth(); del b; c = b'x' * (32 * MIB); del c", 96),
        ("grows", "b = bytearray()\nfor _ in range(64): b += b'x' * MIB\ntruth(); del b", 64),
        ("arena", "l = [object() for _ in range(1 << 22)]; truth(); del l", 96),
        ("untouched", "libc.malloc(512 * MIB); b = b'x' * (32 * MIB); truth(); del b", 32),
        ("at-the-end", "b = b'x' * (64 * MIB); truth(); os._exit(0)", 64),
        ("small", "l = [b'x' * (MIB // 4 + i) for i in range(400)]; truth(); del l", 100),
    ];
    for (name, program, least) in programs {
        let (counted, _) = counted(&["python3"], name, program);
        let [anonymous, pinned, shared, _] = counted.peak("load");
        let truth = counted.truth.expect("it printed it");
        assert!(truth >= least * MIB, "{name}: {truth}");
        check_near(anonymous, truth, NEAR.max(truth / 20));
        assert_eq!((pinned, shared), (0, 0), "{name}");
    }
}

#[needs(python3)]
#[test]
fn aligned_memory_shared_memory_and_pages_of_files_are_kept_apart() {
    let program = "
p = ctypes.c_void_p()
assert libc.posix_memalign(ctypes.byref(p), 64, 48 * MIB) == 0
ctypes.memset(p, 1, 48 * MIB)
s = mmap.mmap(-1, 24 * MIB)
for _ in range(24): s.write(b'x' * MIB)
with open('weights.bin', 'wb') as file:
    for _ in range(40): file.write(b'x' * MIB)
f = open('weights.bin', 'rb'); m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)
l = libc.plimsoll_host_enter(b'named')
libc.plimsoll_host_own(ctypes.c_uint64(p.value), b'weights')
c = bytearray(16 * MIB)
truth()
";
    let (counted, _) = counted(&["python3"], "kinds", program);
    let [anonymous, _, shared, file] = counted.peak("load");
    assert_eq!(shared, 24 * MIB);
    check_near(anonymous + shared, counted.truth.expect("it printed it"), NEAR);
    // No page of it was read, but all of them may be.
    assert!(file >= 40 * MIB, "{file}");
    assert_eq!(counted.owned("file", "weights.bin"), 40 * MIB);
    assert_eq!(counted.owned("owner", "shared memory"), 24 * MIB);
    check_near(counted.owned("owner", "weights"), 48 * MIB, MIB);
    check_near(counted.owned("owner", "named"), 16 * MIB, MIB);
}

#[needs(python3)]
#[test]
fn a_fork_has_only_the_pages_that_it_does_not_share() {
    let program = "
b = bytearray(b'x' * (64 * MIB))
libc.plimsoll_host_phase(1)
if (pid := os.fork()) == 0:
    for at in range(0, 32 * MIB, 4096): b[at] = 1
    own = b'x' * (24 * MIB)
    os._exit(0)
os.waitpid(pid, 0)
import subprocess
try: subprocess.run(['/no/such/program'])
except FileNotFoundError: pass
assert sum(name.endswith('.host') for name in os.listdir('.')) == 2
truth()
";
    // A child that shares all memory with its parent, and ends immediately, has no file.
    let (parent, fork) = counted(&["python3"], "fork", program);
    let [anonymous, ..] = parent.peak("step");
    check_near(anonymous, parent.truth.expect("it printed it"), NEAR);
    let [own, ..] = fork.expect("a fork").peak("step");
    check_near(own, 56 * MIB, 6 * MIB);
}

#[needs(python3)]
#[test]
fn our_hooks_memory_is_left_out() {
    let program = "
library = ctypes.PyDLL(None)
library.plimsoll_host_pause.restype = ctypes.c_uint64
before = library.plimsoll_host_pause()
ours = [b'x' * (MIB // 4) for _ in range(160)]
library.plimsoll_host_resume(ctypes.c_uint64(before))
theirs = b'x' * (48 * MIB)
print('truth', resident('RssAnon:') - 40 * MIB, flush=True)
del theirs
library.plimsoll_host_end()
late = b'x' * (96 * MIB)
";
    let (counted, _) = counted(&["python3"], "ours", program);
    let [anonymous, ..] = counted.peak("load");
    check_near(anonymous, counted.truth.expect("it printed it"), NEAR);
}

/// Ways to load, save and feed a model on the host. Each is a process whose peak is also measured by a separate thread.
const LOADS: [(&str, &str); 8] = [
    ("load", "m = model(); m.load_state_dict(torch.load(PT))"),
    ("cast", "m = model(); m.load_state_dict(torch.load(PT)); m = m.to(torch.bfloat16)"),
    ("mapped", "m = empty(); m.load_state_dict(torch.load(PT, mmap=True), assign=True); m[0](x)"),
    ("safetensors", "m = empty(); m.load_state_dict(load_file(ST), assign=True); m[0](x)"),
    ("safetensors-cast", "d = {k: v.to(torch.float16) for k, v in load_file(ST).items()}"),
    ("state-dict", "m = model(); s = {k: v.clone() for k, v in m.state_dict().items()}"),
    ("save", "m = model(); torch.save(m.state_dict(), 'again.pt')"),
    ("loader", "for batch in DataLoader(Rows(), batch_size=64, num_workers=2): batch.sum()"),
];

const MODEL: &str = "
import threading, time
import torch
from safetensors.torch import load_file, save_file
from torch.utils.data import DataLoader, Dataset
PT, ST, x = 'w.pt', 'w.safetensors', torch.ones(1, 3072)
def model(): return torch.nn.Sequential(*[torch.nn.Linear(3072, 3072) for _ in range(8)])
def empty():
    with torch.device('meta'): return model()
class Rows(Dataset):
    def __len__(self): return 512
    def __getitem__(self, at): return torch.ones(1 << 16)
torch.save(model().state_dict(), PT); save_file(torch.load(PT), ST)
import gc; gc.collect(); libc.malloc_trim(0)
most, ends = [0], []
def watch():
    while not ends:
        most[0] = max(most[0], resident('RssAnon:')); time.sleep(0.001)
libc.plimsoll_host_phase(1)
watcher = threading.Thread(target=watch); watcher.start()
";

#[needs(pytorch, nightly)]
#[test]
fn a_model_that_is_loaded_saved_or_fed_needs_what_the_process_has() {
    let python = std::env::var("PLIMSOLL_PYTORCH").expect("a test that needs PyTorch");
    let python: Vec<&str> = python.split_whitespace().collect();
    for (name, way) in LOADS {
        let end = "ends.append(1); watcher.join(); print('truth', most[0], flush=True)";
        let (counted, _) = counted(&python, name, &format!("{MODEL}{way}\n{end}\n"));
        let ([anonymous, ..], truth) = (counted.peak("step"), counted.truth.expect("it printed it"));
        let near = (truth / 20).max(8 * MIB);
        assert!(anonymous.abs_diff(truth) <= near, "{name}: {anonymous} is not {truth}");
    }
}

/// A program that loads weights, feeds them from a worker through pinned memory, and copies them to the host.
const FED: &str = "
import torch
from torch.utils.data import DataLoader, Dataset
class Rows(Dataset):
    def __len__(self): return 16
    def __getitem__(self, at): return torch.ones(1 << 19)
if __name__ == '__main__':
    torch.save({'w': torch.ones(48 << 18)}, 'w.pt')
    weights = torch.load('w.pt')
    pinned = torch.empty((33 << 20) + 1, dtype=torch.uint8, pin_memory=True)
    p = torch.nn.Parameter(torch.ones(1 << 19, device='cuda'))
    optimizer = torch.optim.SGD([p])
    for batch in DataLoader(Rows(), batch_size=4, num_workers=1):
        (p * batch.cuda()).sum().backward()
        optimizer.step()
    back = torch.ones(64 << 18, device='cuda').cpu()
";

#[needs(pytorch)]
#[test]
fn a_prediction_adds_up_the_machine_and_says_what_it_lacks() {
    let torch = Torch::new("host", FED);
    let options = ["--json", "--whole", "--host-memory", "200MiB", "--shm", "16MiB"];
    let report = answer(&torch.predict(&options, &[]), 4);
    let host = &report["host"];
    let bytes = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("{host:#}"));
    let owned = |name: &str| {
        let rows = host["owners"].as_array().expect("rows").iter();
        let row = rows.clone().find(|row| row["owner"].as_str().is_some_and(|it| it.starts_with(name)));
        bytes(&row.unwrap_or_else(|| panic!("{name}: {host:#}"))["bytes"])
    };
    assert_eq!(owned("torch.load at train.py:"), 48 * MIB);
    // PyTorch requests powers of two.
    assert_eq!(owned("pinned memory"), 64 * MIB);
    assert_eq!(owned("copies from the GPU"), 64 * MIB);
    // Batches of 8 MiB: two are waiting, and one is being read.
    check_near(bytes(&host["shm_bytes"]), 24 * MIB, 9 * MIB);
    assert_eq!(bytes(&host["groups"][0]["phases"][1]["workers"]), 1);
    let all: u64 = host["owners"].as_array().expect("rows").iter().map(|row| bytes(&row["bytes"])).sum();
    assert_eq!(all, bytes(&host["must_bytes"]));
    assert_eq!(bytes(&host["short_bytes"]), all - 200 * MIB);
    assert_eq!(bytes(&host["shm_short_bytes"]), bytes(&host["shm_bytes"]) - 16 * MIB);
    let said = report["summary"].as_str().expect("a verdict");
    for words in ["runs OUT of memory on the host: needs ", " more than --host-memory", " more than --shm"] {
        assert!(said.contains(words), "{said}");
    }
}

/// Training in which saved activations use most of the memory.
const DEEP: &str = "
import torch
from torch import nn
block = lambda: nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024))
model = nn.Sequential(*[block() for _ in range(6)]).cuda()
optimizer = torch.optim.SGD(model.parameters())
for _ in range(3):
    model(torch.randn(8192, 1024, device='cuda')).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
";

#[needs(pytorch, nightly)]
#[test]
fn a_plan_offloads_only_what_the_host_has_room_for() {
    let torch = Torch::new("host-plan", DEEP);
    let program = torch.folder.file("train.py");
    let plan = |host: &str| {
        let mut args = vec!["plan", "--gpu", "1792MiB", "--json", "--host-memory", host, "--"];
        args.extend(torch.python.iter().map(String::as_str).chain([program.as_str()]));
        answer(&plimsoll(&args), 0)
    };
    let offloaded = |plan: &Value| {
        let tried = plan["tried"].as_array().expect("rows").iter();
        let mut rows = tried.filter(|row| row["set"] == "offload");
        rows.next().expect("it was tried").clone()
    };
    let large = plan("64GiB");
    let row = offloaded(&large);
    assert!(row["objection"].is_null(), "{row:#}");
    let pinned = row["pinned_host_bytes"].as_u64().expect("bytes");
    assert!(pinned > 100 * MIB && pinned.is_multiple_of(MIB), "{pinned}");
    let small = plan("600MiB");
    let objection = offloaded(&small)["objection"].as_str().map(str::to_owned).unwrap_or_default();
    assert!(objection.contains("more than --host-memory"), "{objection}");
    let chosen = small["chosen"].as_str().expect("another set");
    assert!(!chosen.contains("offload"), "{chosen}");
}

/// A chain of products without modules that could be checkpointed: 16 saved tensors of 64 MiB.
const CHAIN: &str = "
import torch
class Chain(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = torch.nn.ParameterList([torch.randn(1024, 1024) for _ in range(16)])
    def forward(self, x):
        for weight in self.weights:
            x = torch.tanh(x @ weight)
        return x
model = Chain().cuda()
optimizer = torch.optim.SGD(model.parameters())
for _ in range(3):
    model(torch.randn(16384, 1024, device='cuda')).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
";

#[needs(pytorch, nightly)]
#[test]
fn a_plan_offloads_to_the_disk_if_nothing_fits_and_the_host_has_no_room() {
    let torch = Torch::new("host-disk", CHAIN);
    let program = torch.folder.file("train.py");
    let options = ["plan", "--gpu", "800MiB", "--context", "0", "--json", "--numbers", "identical"];
    let plan = |host: &str| {
        let mut args = [&options[..], &["--host-memory", host, "--"]].concat();
        args.extend(torch.python.iter().map(String::as_str).chain([program.as_str()]));
        answer(&plimsoll(&args), 0)
    };
    let chosen = |plan: &Value| plan["chosen"].as_str().expect("a set").to_owned();
    assert!(!chosen(&plan("64GiB")).contains("offload-disk"));
    let small = plan("800MiB");
    assert!(chosen(&small).contains("offload-disk"), "{small:#}");
}
