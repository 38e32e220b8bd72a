//! `plimsoll predict`: values that programs read from the device, what depends on them, and the code after the
//! steps.

use std::fs;

use serde_json::Value;

use plimsoll_needs::needs;

use crate::program::stderr;
use crate::torch::{Torch, answer};

const SELECTS: &str = "
import sys, torch
table = torch.nn.Embedding(50000, 64, device='cuda')
table(torch.randint(50000, (8000,), device='cuda')).square().mean().backward()
if sys.argv[1] == 'mask':
    x = torch.randn(512, 64, device='cuda')
    x[x > 0].sum()
";

#[needs(pytorch)]
#[test]
fn an_answer_is_not_exact_where_memory_is_asked_for_by_what_was_selected() {
    let torch = Torch::new("selects", SELECTS);
    for (how, exact) in [("dense", true), ("mask", false)] {
        let report = answer(&torch.predict(&["--whole", "--json"], &[how]), 0);
        let decides: Vec<&str> =
            deciding(&report).iter().filter_map(|read| read["operator"].as_str()).collect();
        let wanted: &[&str] = if exact { &[] } else { &["nonzero"] };
        assert_eq!((&report["exact"], decides), (&exact.into(), wanted.to_vec()), "{how}: {report}");
    }
}

/// The reads from the device that decide a size or a branch.
fn deciding(report: &Value) -> Vec<&Value> {
    report["reads"].as_array().expect("reads").iter().filter(|read| read["decides"] == true).collect()
}

const READS: &str = "
import json, pickle, sys, torch
x = torch.randn(64, 512, 256, device='cuda')
mask = torch.rand(64, 512, device='cuda') > 0.5
loss = x.mean()
def longest(mask):
    return int(mask.sum(1).max())
how = sys.argv[1]
if how == 'index':
    x[:, :mask.sum(1).max()] + 1
if how == 'item':
    n = mask.sum().item()
    torch.zeros(n, device='cuda')
if how == 'returned':
    x[:, :longest(mask)] + 1
if how == 'list':
    for at, n in enumerate(mask.sum(1).tolist()):
        x[at, :n]
if how == 'packed':
    lengths = mask.sum(1).cpu().clamp(min=1)
    torch.nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
if how == 'repeat':
    torch.repeat_interleave(x[0], mask[0].long(), dim=0)
if how == 'unique':
    torch.unique(torch.randint(10, (100,), device='cuda'))
if how == 'count':
    torch.bincount(torch.randint(10, (100,), device='cuda'))
if how == 'while':
    while loss > 0.1:
        loss = loss / 2
if how == 'branch':
    if loss > 0:
        x = x + 1
if how == 'kept':
    best = 1.0 if loss > 2 else x
if how == 'logged':
    total = 0.0
    history = []
    for step in range(3):
        value = loss.item()
        assert type(value) is float
        total += value
        history.append(value)
        print(f'{value:.3f} {loss:.3f}', loss, json.dumps({'loss': value}), pickle.dumps(value))
        assert loss.item() < 10, 'diverged'
        if torch.isnan(loss) or not torch.isfinite(loss):
            raise ValueError('not finite')
    print(total / 3, sum(history) / len(history), x[0, 0].cpu().numpy())
    for move in (lambda it: it.to('cpu'), lambda it: it.cpu(), lambda it: it.to('cpu', torch.float64)):
        move(torch.nn.Linear(256, 256, device='cuda')).to('cuda')
    scale = loss.item()
    def scaled(x, scale):
        return x[:scale]
    def other(x):
        scale = 3
        return x[:scale]
    scaled(x, 2), other(x)
";

#[track_caller]
fn decides(torch: &Torch, how: &str, line: u64, fate: &str) {
    let report = answer(&torch.predict(&["--whole", "--json"], &[how]), 0);
    let decides = deciding(&report);
    assert_eq!(report["exact"], false, "{how}: {report}");
    assert!(decides.iter().all(|it| it["line"] == line && it["fate"] == fate), "{how}: {decides:?}");
    assert!(!decides.is_empty(), "{how}: {report}");
}

#[needs(pytorch)]
#[test]
fn a_read_that_decides_a_size_or_a_branch_is_named_and_one_that_is_logged_is_not() {
    let torch = Torch::new("reads", READS);
    for (how, line, fate) in [
        ("index", 10, "size"),
        ("returned", 7, "size"),
        ("packed", 20, "size"),
        ("while", 29, "branch"),
        ("kept", 35, "branch"),
    ] {
        decides(&torch, how, line, fate);
    }
    let report = answer(&torch.predict(&["--whole", "--json"], &["logged"]), 0);
    assert_eq!((&report["exact"], deciding(&report).len()), (&true.into(), 0), "{report}");
    assert!(report["reads"].as_array().is_some_and(|reads| !reads.is_empty()), "{report}");
}

#[needs(pytorch, nightly)]
#[test]
fn other_reads_that_decide_a_size_or_a_branch_are_named_too() {
    let torch = Torch::new("reads-more", READS);
    for (how, line, fate) in [
        ("item", 12, "size"),
        ("list", 17, "size"),
        ("repeat", 23, "size"),
        ("unique", 25, "size"),
        ("count", 27, "size"),
        ("branch", 32, "branch"),
    ] {
        decides(&torch, how, line, fate);
    }
}

const SCALED: &str = "
import torch
model = torch.nn.Linear(64, 64, device='cuda')
optimizer = torch.optim.AdamW(model.parameters())
scaler = torch.amp.GradScaler('cuda')
for step in range(5):
    with torch.autocast('cuda', dtype=torch.float16):
        loss = model(torch.randn(8, 64, device='cuda')).square().mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
";

#[needs(pytorch)]
#[test]
fn that_a_gradient_scaler_looks_for_infinities_decides_nothing() {
    let torch = Torch::new("scaled", SCALED);
    let report = answer(&torch.predict(&["--whole", "--json"], &[]), 0);
    assert_eq!((&report["exact"], deciding(&report).len()), (&true.into(), 0), "{report}");
}

const KNOWN: &str = "
import torch
lengths = torch.randint(10, 300, (64,))
mask = (torch.arange(512)[None] < lengths[:, None]).long()
there = mask.cuda()
x = torch.randn(64, 512, 256, device='cuda')
assert x[:, :there.sum(1).max()].size(1) == lengths.max()
assert len(x[there.bool()]) == mask.sum() == len(there.nonzero())
assert (there.sum(1).cpu() == lengths).all()
assert len(torch.repeat_interleave(x[0], there[0], dim=0)) == lengths[0]
assert len(torch.unique(lengths.cuda())) == len(lengths.unique())
assert len(torch.bincount(lengths.cuda())) == lengths.max() + 1
packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
assert (torch.nn.utils.rnn.pad_packed_sequence(packed, batch_first=True)[1] == lengths).all()
there.mul_(2)
assert there.sum() == 2 * lengths.sum()
assert torch.equal(lengths.cuda(), lengths.cuda()) and not torch.equal(lengths.cuda(), lengths.cuda() + 1)
places, new = torch.tensor([1, 2]).cuda(), torch.tensor([900, 901]).cuda()
for write in ('index_copy_', 'scatter_'):
    assert getattr(torch.full((10,), 5, device='cuda'), write)(0, places, new).max() == 901, write
assert torch.full((10,), 5, device='cuda').put_(places, new)[2] == 901
if (there == 2).all():
    raise ValueError('not padded')
";

#[needs(pytorch)]
#[test]
fn what_the_host_sent_keeps_its_value_through_pytorchs_operators() {
    let torch = Torch::new("known", KNOWN);
    let report = answer(&torch.predict(&["--whole", "--json"], &[]), 0);
    assert_eq!((&report["exact"], deciding(&report).len()), (&true.into(), 0), "{report}");
}

const ASSUMED: &str = "
import torch
x = torch.randn(64, 512, 256, device='cuda')
mask = torch.rand(64, 512, device='cuda') > 0.5
y = x[:, :mask.sum(1).max()] * 2
z = x[mask]
n = mask.sum().item()
k = torch.zeros(n, 256, device='cuda')
print('sizes', y.size(1), z.size(0), k.size(0))
";

#[needs(pytorch)]
#[test]
fn a_read_returns_the_assumed_value_and_the_report_has_the_range() {
    let torch = Torch::new("assumed", ASSUMED);
    let assume = ["train.py:5=half", "train.py:6=max", "train.py:7=1234", "train.py:3=1"];
    let options: Vec<&str> = assume.iter().flat_map(|it| ["--assume", it]).chain(["--json"]).collect();
    let output = torch.predict(&options, &[]);
    let report = answer(&output, 0);
    assert!(stderr(&output).contains("sizes 256 32768 1234\n"), "{}", stderr(&output));
    assert!(stderr(&output).contains("sizes 0 0 0\n"), "{}", stderr(&output));
    let (with, zero) =
        (&report["judged"]["peak_reserved_bytes"], &report["with_zero_for_assumed"]["peak_reserved_bytes"]);
    assert!(with.as_u64() > zero.as_u64(), "{with} {zero}");
    assert_eq!(deciding(&report)[0]["assumed"], "half", "{report}");
    assert!(report["not_counted"].to_string().contains("--assume train.py:3: no unknown value"), "{report}");
}

const CRITIC: &str = "
import torch
generator, critic = torch.nn.Linear(1024, 16384).cuda(), torch.nn.Linear(16384, 1).cuda()
both = [torch.optim.Adam(it.parameters()) for it in (generator, critic)]
for step in range(50):
    fake = generator(torch.randn(64, 1024, device='cuda'))
    is_critics = step % 4 < 3
    critic(fake.detach() if is_critics else fake).mean().backward()
    both[is_critics].step()
    [it.zero_grad() for it in both]
    print('step', step)
";

const DIVIDES: &str = "
import math, torch
class Meter:
    def __init__(self):
        self.sum = self.count = 0
    def update(self, value, count):
        self.sum += value
        self.count += count
        self.mean = self.sum / self.count
mask = torch.rand(64, 512, device='cuda') > 0.5
x = torch.randn(64, 512, device='cuda')
print('right', (x > 0).sum().item() / mask.sum().item())
total = float(mask.sum())
x.mul_(1 / total)
psnr = -10 * math.log10(x.square().mean().item())
meter = Meter()
meter.update(x.mean().item(), int(mask.sum()))
print('%d of %d' % (mask.sum().item(), 7), 'loss %.3f' % x.mean().item(), round(psnr), meter.mean)
";

#[needs(pytorch)]
#[test]
fn a_value_that_divides_or_has_a_logarithm_is_one() {
    let torch = Torch::new("divides", DIVIDES);
    let output = torch.predict(&["--whole", "--json"], &[]);
    let report = answer(&output, 0);
    assert!(deciding(&report).is_empty(), "{report}");
    let said = stderr(&output);
    for line in ["right 0.0", "0 of 7 loss 0.000 0 0.0"] {
        assert!(said.contains(line), "{line}: {said}");
    }
}

#[needs(pytorch)]
#[test]
fn a_step_counts_once_every_optimizer_has_stepped() {
    let torch = Torch::new("critic", CRITIC);
    let output = torch.predict(&["--json"], &[]);
    let report = answer(&output, 0);
    assert!(report["summary"].as_str().is_some_and(|it| it.contains("in the first 3 steps")), "{report}");
    assert!(
        stderr(&output).contains("step 10") && !stderr(&output).contains("step 12"),
        "{}",
        stderr(&output)
    );
}

const BY_HAND: &str = "
import torch
weights = torch.randn(1024, 1024, device='cuda', requires_grad=True)
for step in range(50):
    (torch.randn(64, 1024, device='cuda') @ weights).square().mean().backward()
    with torch.no_grad():
        weights -= 0.1 * weights.grad
        weights.grad.zero_()
    print('step', step)
";

#[needs(pytorch)]
#[test]
fn a_program_without_an_optimizer_is_cut_by_its_backward_passes() {
    let torch = Torch::new("by-hand", BY_HAND);
    let output = torch.predict(&["--json"], &[]);
    assert_eq!(answer(&output, 0)["judged"]["process"]["steps"], 3);
    assert!(stderr(&output).contains("step 2") && !stderr(&output).contains("step 3"), "{}", stderr(&output));
}

const EPOCHS: &str = "
import os, sys, torch
from torch.utils.data import DataLoader, TensorDataset
os.chdir(sys.argv[1])
model = torch.nn.Sequential(torch.nn.Linear(256, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 10)).cuda()
optimizer = torch.optim.Adam(model.parameters())
data = TensorDataset(torch.randn(5000, 256), torch.randint(10, (5000,)))
train, test = DataLoader(data, batch_size=32), DataLoader(data, batch_size=1000)
best = 0
for epoch in range(2):
    model.train()
    for x, y in train:
        torch.nn.functional.cross_entropy(model(x.cuda()), y.cuda()).backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        right = sum((model(x.cuda()).argmax(1) == y.cuda()).sum().item() for x, y in test)
    print('right', right)
    torch.save(model.state_dict(), 'last.pt')
    with open('log.txt', 'w') as log:
        log.write('new')
    if right >= best:
        best = right
        torch.save(model.state_dict(), 'best.pt')
model.load_state_dict(torch.load('last.pt'))
os.remove('log.txt')
print('end')
";

#[needs(pytorch)]
#[test]
fn what_comes_after_the_training_is_run_and_the_users_files_stay_as_they_were() {
    let torch = Torch::new("epochs", EPOCHS);
    let mine = tempfile::tempdir().expect("a folder");
    for name in ["last.pt", "log.txt"] {
        fs::write(mine.path().join(name), "mine").expect("a file");
    }
    let output = torch.predict(&["--json"], &[mine.path().to_str().expect("a path")]);
    let report = answer(&output, 0);
    assert!(stderr(&output).contains("\nend\n"), "{}", stderr(&output));
    // The evaluation, with its larger batch, is the peak.
    assert!(report["summary"].as_str().is_some_and(|it| it.contains("after the training")), "{report}");
    assert!(report["not_run"].to_string().contains("the rest of the training"), "{report}");
    for name in ["last.pt", "log.txt"] {
        assert_eq!(fs::read_to_string(mine.path().join(name)).expect("a file"), "mine", "{name}");
    }
    assert!(!mine.path().join("best.pt").exists());
    let files = report["writes"]["files"].as_array().expect("files");
    let names: Vec<_> = files.iter().filter_map(|it| it["path"].as_str()?.rsplit('/').next()).collect();
    assert!(
        names.contains(&"best.pt") && names.contains(&"last.pt") && names.contains(&"log.txt"),
        "{report}"
    );
}

const BRANCHES: &str = "
import torch
x = torch.zeros(3, 1 << 20, device='cuda', requires_grad=True)
h = x * 2.0
(h[0].sin().sum() + h[1].sin().sum() + h[2].sin().sum()).backward()
";

/// Autograd does not add to a gradient in place while its storage has a Python object. So `predict` must not give
/// gradients one.
#[needs(pytorch)]
#[test]
fn gradients_are_added_in_place_as_without_predict() {
    let torch = Torch::new("branches", BRANCHES);
    let answer = answer(&torch.predict(&["--whole", "--json"], &[]), 0);
    let mib = answer["judged"]["peak_allocated_bytes"].as_f64().expect("a peak") / f64::from(1 << 20);
    // x and h; the gradients of h from both branches, which are added; their row.
    assert_eq!(mib.floor(), 52.0, "{answer}");
}

const ROUTES: &str = "
import torch
N, E, K = 4096, 8, 2
x, scores = torch.randn(N, 16, device='cuda'), torch.randn(N, E, device='cuda', requires_grad=True).softmax(-1)
def sizes(index):
    return [len(x[torch.where(index == it)[0]]) for it in range(E)]
assert sizes(scores.topk(K).indices) == [N * K // E] * E
assert sizes(scores.argmax(-1)) == sizes(scores.max(-1)[1]) == [N // E] * E
assert sizes(scores.argsort(-1, descending=True)[:, :K]) == [N * K // E] * E
assert sizes(torch.multinomial(scores, K)) == [N * K // E] * E
weights, chosen = scores.topk(K + 1)
for gates in (
    torch.zeros_like(scores).scatter(1, chosen[:, :K], weights[:, :K].softmax(1)),
    torch.full_like(scores, 0.0).scatter_(1, chosen[:, :K], weights[:, :K].detach()),
    torch.zeros_like(scores).scatter_(1, chosen[:, :K], 1.0),
):
    assert (gates > 0).sum(0).tolist() == [N * K // E] * E
    assert len(gates.nonzero()) == N * K
order = chosen[:, :K].reshape(-1).argsort()
parts = x[order // K].split(chosen[:, :K].reshape(-1).bincount(minlength=E).tolist())
assert [len(it) for it in parts] == [N * K // E] * E
words = torch.randn(4, 50000, device='cuda').topk(3).indices
assert (words == 0).sum().item() == 0
";

#[needs(pytorch)]
#[test]
fn experts_get_equal_shares_from_routers_of_every_kind() {
    let torch = Torch::new("routes", ROUTES);
    let report = answer(&torch.predict(&["--whole", "--json"], &[]), 0);
    let decides = deciding(&report);
    assert!(decides.iter().all(|read| read["even_share"] == true || read["source"] == ""), "{decides:?}");
    assert_eq!(report["exact"], false, "{report}");
}

/// Known values next to unknown ones. A classifier without experts chooses by `argmax`.
const BOUNDED: &str = "
import torch
x = torch.randn(8, 16, device='cuda')
end = torch.full((8,), 8, device='cuda')
end[(x > 2).any(1)] = 3
assert set(end.tolist()) <= {3, 8}, end.tolist()
ids = list(range(int(end.max())))
print(ids[-1])
k = torch.ones(8, dtype=torch.long, device='cuda')
k[x.argmax(1) > 3] += 2
10 // int(k.min())
lens = (x > 9).sum(1).clamp(min=1)
[torch.zeros(int(n))[-1] for n in lens]
padded = torch.zeros(4, 8, dtype=torch.long, device='cuda') + 5
padded[:, 2] = x[:4].argmax(1)
assert padded[:, 3:].tolist() == [[5] * 5] * 4 and padded[:, :2].tolist() == [[5] * 2] * 4
scores = [3, 1, 2]
assert scores[int(torch.randperm(3, device='cuda')[-1])] == 2
assert 4 <= int(torch.randint(4, 9, (1,), device='cuda')) < 9
";

#[needs(pytorch)]
#[test]
fn a_value_changed_through_an_unknown_mask_keeps_its_bounds() {
    let torch = Torch::new("bounded", BOUNDED);
    let report = answer(&torch.predict(&["--whole", "--json"], &[]), 0);
    let reads = deciding(&report);
    assert!(!reads.is_empty() && reads.iter().all(|read| read["even_share"] != true), "{report}");
    // Values that cannot have changed are known; values that may have changed are read as unknown.
    assert!(reads.iter().any(|read| read["line"] == 7), "{reads:?}");
    // The warning names the bound as the assumed value.
    let warned = report["warnings"].to_string();
    assert!(warned.contains("train.py:7: a value read from the GPU decides a size, assumed 8"), "{warned}");
    let all = report["reads"].as_array().expect("reads");
    assert!(all.iter().all(|read| read["line"] != 16), "{all:?}");
    // A given value takes precedence over a bound.
    let assumed = torch.predict(&["--whole", "--json", "--assume", "train.py:7=3"], &[]);
    assert!(stderr(&assumed).lines().any(|line| line.trim() == "2"), "{}", stderr(&assumed));
}

/// Appends to a log, both directly and through `logging`, reads it, replaces a file, and looks up a host.
const APPENDS: &str = "
import logging, os, socket, sys, torch
x = torch.ones(3, device='cuda')
try:
    socket.create_connection(('plimsoll.invalid', 80), timeout=1)
except OSError:
    pass
with open('log.txt', 'a') as file:
    file.write('two\\n')
logging.FileHandler('log.txt').emit(logging.makeLogRecord(dict(msg='three')))
with open('new.txt', 'w') as file:
    file.write('new\\n')
os.replace('new.txt', 'results.txt')
assert open('log.txt').read().split() == ['one', 'two', 'three'], open('log.txt').read()
assert open('results.txt').read() == 'new\\n'
";

#[needs(pytorch)]
#[test]
fn a_program_that_appends_to_a_file_finds_what_was_in_it_and_the_file_stays_as_it_was() {
    let torch = Torch::new("appends", APPENDS);
    for (name, text) in [("log.txt", "one\n"), ("results.txt", "old\n")] {
        fs::write(torch.folder.file(name), text).expect("written");
    }
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    command.args(["predict", "--json", "--gpu=T4", "--"]).args(&torch.python).arg("train.py");
    let output = command.current_dir(torch.folder.path()).output().expect("plimsoll runs");
    let report = answer(&output, 0);
    assert!(report["summary"].as_str().is_some_and(|it| it.starts_with("fits")), "{report}");
    assert_eq!(report["hosts"], serde_json::json!(["plimsoll.invalid"]));
    for (name, text) in [("log.txt", "one\n"), ("results.txt", "old\n")] {
        assert_eq!(fs::read_to_string(torch.folder.file(name)).expect("there"), text, "{name}");
    }
}
