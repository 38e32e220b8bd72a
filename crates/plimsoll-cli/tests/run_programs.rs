//! `plimsoll run --with` on programs that need care: parameters made by the first call, a batch of one row, rows that
//! belong together, a compiled model. Also a memory limit.

use std::process::Output;

use plimsoll_needs::needs;

use crate::program::{plimsoll, stderr, stdout};
use crate::standin;
use crate::torch::{Torch, answer};

/// A model of three blocks. The argument selects what is unusual.
const ROWS: &str = "
import sys, torch, torch.nn as nn, torch.nn.functional as F
torch.set_num_threads(1)
torch.manual_seed(0)
kind = sys.argv[1]
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        first = (lambda: nn.LazyLinear(64)) if kind == 'lazy' else (lambda: nn.Linear(32, 64))
        self.blocks = nn.ModuleList(nn.Sequential(first(), nn.Tanh(), nn.Linear(64, 32)) for _ in range(3))
    def forward(self, x, links=None):
        if links is not None:
            x = x.index_add(0, links % len(x), x[links])
        for block in self.blocks:
            x = x + block(x)
        return F.cross_entropy(x @ x.T, torch.arange(len(x))) if kind == 'contrasts' else x
model, kept = Model(), []
if kind == 'lazy':
    model(torch.zeros(1, 32))
if kind == 'hooks':
    model.blocks[1].register_forward_hook(lambda module, args, result: kept.append(result))
optimizer = torch.optim.Adam(model.parameters())
for step in range(3):
    x = torch.randn(1 if kind == 'ends' and step == 2 else 8, 32)
    result = model(x, torch.randint(0, 8, (20,)) if kind == 'graph' else None)
    loss = result if result.dim() == 0 else result.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print('loss', loss.item().hex(), loss.item())
";

/// Runs the program on the CPU with a set.
fn run(torch: &Torch, set: &str, arguments: &[&str]) -> Output {
    let program = torch.folder.file("train.py");
    let mut args = vec!["run", "--no-watch"];
    if !set.is_empty() {
        args.extend(["--with", set]);
    }
    args.push("--");
    args.extend(torch.python.iter().map(String::as_str).chain([program.as_str()]));
    args.extend(arguments);
    plimsoll(&args)
}

fn losses(output: &Output) -> Vec<f64> {
    let text = stdout(output);
    let numbers = text.lines().filter_map(|line| line.strip_prefix("loss ")?.split(' ').nth(1)?.parse().ok());
    numbers.collect()
}

#[needs(pytorch)]
#[test]
fn parameters_that_a_first_call_makes_are_no_obstacle() {
    let torch = Torch::new("run-lazy", ROWS);
    let plain = run(&torch, "", &["lazy"]);
    assert_eq!(losses(&plain).len(), 3, "{}", stderr(&plain));
    let moved = run(&torch, "offload,checkpoint=2", &["lazy"]);
    assert_eq!(stdout(&moved), stdout(&plain), "{}", stderr(&moved));
}

#[needs(pytorch)]
#[test]
fn a_batch_of_one_row_is_not_divided_and_the_others_are() {
    let torch = Torch::new("run-one-row", ROWS);
    // Batches of one row: the last one of the program `ends`, and the call of `lazy` that creates its parameters.
    for kind in ["ends", "lazy"] {
        let (plain, split) = (run(&torch, "", &[kind]), run(&torch, "split=2", &[kind]));
        let expected = losses(&plain);
        assert_eq!((expected.len(), losses(&split).len()), (3, 3), "{kind}: {}", stderr(&split));
        for (loss, expected) in losses(&split).into_iter().zip(expected) {
            assert!((loss / expected - 1.0).abs() < 1e-5, "{kind}: {loss}, not {expected}");
        }
        assert!(!stderr(&split).contains("no effect"), "{}", stderr(&split));
    }
}

#[needs(pytorch)]
#[test]
fn a_batch_whose_rows_belong_together_is_not_divided() {
    let torch = Torch::new("run-together", ROWS);
    for (kind, set, said) in [
        ("graph", "split=2", "20 integers are passed with a batch of 8 rows"),
        ("contrasts", "accumulate=2", "cross_entropy compares the rows of the batch with each other"),
        ("hooks", "split=2", "the program's hook on blocks.1 would see parts of the batch"),
    ] {
        assert_eq!(losses(&run(&torch, "", &[kind])).len(), 3, "{kind}");
        let output = run(&torch, set, &[kind]);
        assert_eq!(output.status.code(), Some(2), "{kind}: {}", stdout(&output));
        assert!(losses(&output).is_empty() && stderr(&output).contains(said), "{kind}: {}", stderr(&output));
    }
}

/// Requests memory until none is left.
const FILLS: &str = "
import torch
kept = []
try:
    while len(kept) < 20:
        kept.append(torch.zeros(64 << 20, dtype=torch.uint8, device='cuda'))
except torch.cuda.OutOfMemoryError:
    pass
print('requests', len(kept))
";

#[needs(pytorch)]
#[test]
fn a_limit_of_memory_makes_a_smaller_gpu_of_a_larger_one() {
    let torch = Torch::new("run-limit", FILLS);
    for (options, requests) in [
        (&["--no-watch"][..], 20),
        (&["--no-watch", "--memory-limit", "320MiB"], 5),
        (&["--light", "--memory-limit", "319MiB"], 4),
    ] {
        let output = standin::run(&torch, options, &[]).output().expect("it starts");
        assert_eq!(stdout(&output), format!("requests {requests}\n"), "{options:?}: {}", stderr(&output));
    }
    let output =
        standin::run(&torch, &["--no-watch", "--memory-limit", "8TiB"], &[]).output().expect("it starts");
    assert!(
        stdout(&output).contains("requests 20") && stderr(&output).contains("no limit"),
        "{}",
        stderr(&output)
    );
    let output = plimsoll(&["run", "--memory-limit", "much", "--", "true"]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
}

/// Trains in a separate process.
const SPAWNS: &str = "
import torch, torch.nn as nn, torch.multiprocessing as mp
def train():
    model = nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(3)])
    model(torch.randn(4, 8)).sum().backward()
if __name__ == '__main__':
    child = mp.get_context('spawn').Process(target=train)
    child.start()
    child.join()
    print('loss', child.exitcode, child.exitcode)
";

#[needs(pytorch)]
#[test]
fn the_parent_of_a_training_process_says_nothing_of_techniques() {
    let torch = Torch::new("run-spawns", SPAWNS);
    let output = run(&torch, "checkpoint", &[]);
    assert_eq!((stdout(&output), stderr(&output)), ("loss 0 0\n".to_owned(), String::new()));
}

/// Blocks that remove their inputs from a list, like the second half of a U-Net.
const TAKES: &str = "
import torch, torch.nn as nn
torch.manual_seed(0)
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)
    def forward(self, x, factors):
        return torch.tanh(self.inner(x) * factors.pop())
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
    def forward(self, x):
        factors = [x, 2 * x, 3 * x]
        for block in self.blocks:
            x = block(x, factors)
        return x
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    loss = model(torch.randn(4, 8)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print('loss', loss.item().hex())
";

#[needs(pytorch)]
#[test]
fn checkpointed_blocks_take_out_of_a_list_once() {
    let torch = Torch::new("run-takes", TAKES);
    let [alone, checkpointed] = ["", "checkpoint"].map(|set| stdout(&run(&torch, set, &[])));
    assert_eq!((checkpointed.lines().count(), &checkpointed), (3, &alone));
}

/// Blocks that the program itself checkpoints. The result of a wide layer is used after another layer, as with LoRA.
const ADAPTED: &str = "
import torch, torch.nn as nn, torch.nn.functional as F
from torch.utils.checkpoint import checkpoint
torch.set_num_threads(1)
torch.manual_seed(0)
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide, self.low, self.high, self.down = nn.Linear(16, 2048), nn.Linear(16, 4), nn.Linear(4, 2048), nn.Linear(2048, 16)
    def forward(self, x):
        wide = self.wide(x)
        return x + self.down(torch.tanh(wide + self.high(self.low(x).sin())))
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.blocks, self.head = nn.Embedding(2048, 16), nn.ModuleList(Block() for _ in range(2)), nn.Linear(16, 2048)
    def forward(self, x):
        x = self.embedding(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.head(x)
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    x = torch.randint(0, 2048, (4, 16))
    loss = F.cross_entropy(model(x).flatten(0, 1), x.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print('loss', loss.item().hex(), loss.item())
";

#[needs(pytorch)]
#[test]
fn the_loss_of_a_program_that_checkpoints_its_blocks_itself_is_computed_in_chunks() {
    let torch = Torch::new("run-adapted", ADAPTED);
    let [plain, chunked] = ["", "chunked-loss=24"].map(|set| run(&torch, set, &[]));
    assert!(chunked.status.success(), "{}", stderr(&chunked));
    let (plain, chunked) = (losses(&plain), losses(&chunked));
    assert_eq!((plain.len(), chunked.len()), (3, 3));
    for (loss, expected) in chunked.iter().zip(&plain) {
        assert!((loss / expected - 1.0).abs() < 1e-5, "{loss}, not {expected}");
    }
}

/// Steps of 1.2 s with stacks and 1 s without; or of 1 s; or of times that vary so much that stacks may cost
/// something. Prints how many of the last 40 steps have stacks, and whether an evaluation has them.
const SAMPLED: &str = "
import sys, types
source = open(sys.argv[1]).read()
def sampled(with_stacks, noise=0):
    clock, own = [0.0], types.ModuleType('stacks')
    exec(source, own.__dict__)
    own.time = types.SimpleNamespace(perf_counter=lambda: clock[0])
    Module = type('Module', (), {'eval': lambda self: self})
    stacks = own.Stacks(types.SimpleNamespace(nn=types.SimpleNamespace(Module=Module)), lambda on: None)
    on = []
    for step in range(120):
        on.append(stacks.are_on)
        clock[0] += (with_stacks if stacks.are_on else 1.0) + noise * (step * step * 7 % 13 - 6)
        stacks.stepped()
    Module().eval()
    return sum(on[80:]), stacks.are_on
print(sampled(1.2), sampled(1.0), sampled(1.0, 0.001), sampled(1.0, 0.05))
";

#[needs(pytorch)]
#[test]
fn one_step_in_sixteen_has_stacks_where_they_make_steps_longer() {
    let torch = Torch::new("run-stacks", SAMPLED);
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/python/plimsoll/_run/stacks.py");
    let output = run(&torch, "", &[source]);
    assert_eq!(stdout(&output), "(3, True) (40, True) (40, True) (3, True)\n", "{}", stderr(&output));
}

/// Six blocks of elementwise operations whose memory is mostly activations, compiled by AOTAutograd, which needs no
/// C++ compiler.
const COMPILED: &str = "
import sys, torch, torch.nn as nn
torch.manual_seed(0)
device = sys.argv[1]
rows = 4096 if device == 'cuda' else 16
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(256, 1024), nn.Linear(1024, 256)
    def forward(self, x):
        return x + self.down(torch.tanh(torch.sin(self.up(x))))
model = nn.Sequential(*[Block() for _ in range(6)]).to(device)
called = model if 'plain' in sys.argv else torch.compile(model, backend='aot_eager_decomp_partition')
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    loss = called(torch.randn(rows, 256, device=device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if device == 'cpu':
        print('loss', loss.item().hex(), loss.item())
";

#[needs(pytorch, nightly)]
#[test]
fn a_memory_budget_lowers_the_peak_of_a_compiled_model_and_keeps_its_losses() {
    let torch = Torch::new("run-budget", COMPILED);
    let peak = |set: &[&str], kind: &[&str]| {
        let report = answer(&torch.predict(&[&["--json", "--gpu=8GiB", "--cc=8.0"], set].concat(), kind), 0);
        report["judged"]["peak_allocated_bytes"].as_u64().expect("a peak")
    };
    let (all, few) = (peak(&[], &["cuda"]), peak(&["--with", "memory-budget=10"], &["cuda"]));
    assert!(few < all * 3 / 4, "{few} of {all}");
    let (plain, budget) =
        (losses(&run(&torch, "", &["cpu"])), losses(&run(&torch, "memory-budget=10", &["cpu"])));
    assert_eq!((plain.len(), budget.len()), (3, 3));
    for (loss, expected) in budget.iter().zip(&plain) {
        assert!((loss / expected - 1.0).abs() < 1e-5, "{loss}, not {expected}");
    }
    // Without a compiled step it has no effect, which is reported.
    let output = run(&torch, "memory-budget=10", &["cpu", "plain"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(stderr(&output).contains("memory-budget had no effect"), "{}", stderr(&output));
}
