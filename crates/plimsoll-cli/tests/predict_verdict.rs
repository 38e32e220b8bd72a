//! The first lines of `plimsoll predict`: how much memory a program needs that runs out, growth when a run is cut
//! short, the intended GPU, and an answer that fits on a screen.

use std::process::{Command, Output};

use serde_json::Value;

use plimsoll_needs::needs;

use crate::program::{stderr, stdout};
use crate::torch::{Torch, answer};

const NO_CONTEXT: [&str; 4] = ["--cc", "8.0", "--context", "0"];

fn predict(torch: &Torch, gpu: &str, options: &[&str], arguments: &[&str]) -> Output {
    torch.predict(&[&["--gpu", gpu], &NO_CONTEXT[..], options].concat(), arguments)
}

fn summary(report: &Value) -> &str {
    report["summary"].as_str().expect("a sentence")
}

#[needs(no_gpu)]
#[test]
fn without_a_gpu_that_is_named_or_there_the_error_says_how_to_name_one() {
    for verb in ["predict", "plan"] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
        let output = command.args([verb, "--", "true"]).env("PATH", "/nowhere").output().expect("it starts");
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        for said in ["--gpu RTX-4090", "--list", "--gpu 24GiB"] {
            assert!(stderr(&output).contains(said), "{}", stderr(&output));
        }
    }
}

/// Weights of 64 MiB, their gradients and two averages. Then an evaluation keeps 2 MiB per batch, for 200 or more
/// batches, and joins them in one tensor.
const EVALUATES: &str = "
import sys, time, torch
from torch.utils.data import DataLoader, Dataset
class Rows(Dataset):
    def __init__(self, size, seconds):
        self.size, self.seconds = size, seconds
    def __len__(self):
        return self.size
    def __getitem__(self, index):
        time.sleep(self.seconds)
        return torch.full((64,), float(index))
model = torch.nn.Linear(64, 8192).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
train, seconds = DataLoader(Rows(512, 0), 64), 0.005 if 'slow' in sys.argv else 0
for x in train:
    model(x.cuda()).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
kept, named = [], {}
with torch.no_grad():
    for x in DataLoader(Rows(200 * 64, seconds), 64):
        out = model(x.cuda())
        if 'keeps' in sys.argv:
            kept.append(out)
        if 'names' in sys.argv:
            named[int(x[0, 0])] = out
    if kept:
        print('rows', torch.cat(kept).shape)
";

#[needs(pytorch)]
#[test]
fn an_evaluation_that_grows_runs_to_its_end_or_its_need_is_computed() {
    let torch = Torch::new("evaluates", EVALUATES);
    // 400 MiB of results, and another 400 MiB for the tensor that joins them.
    let report = answer(&predict(&torch, "500MiB", &["--json"], &["keeps"]), 4);
    assert_eq!(report["verdict"]["is"], "runs out", "{report}");
    let need = report["need"]["bytes"].as_u64().expect("bytes");
    assert!((800 << 20..900 << 20).contains(&need), "{report}");
    assert!(summary(&report).contains("offers; first fails at train.py:"), "{report}");
    // Making the batches would take a minute, so copies of one batch replace most of them.
    let report = answer(&predict(&torch, "2GiB", &["--json"], &["keeps", "slow"]), 0);
    let peak = report["judged"]["peak_allocated_bytes"].as_u64().expect("bytes");
    assert!((800 << 20..900 << 20).contains(&peak), "{report}");
    assert!(report["not_counted"].to_string().contains("copies of one"), "{report}");
    assert_eq!(report["exact"], false);
}

#[needs(pytorch, nightly)]
#[test]
fn an_evaluation_whose_batches_are_copies_is_computed_or_ends_with_the_last_one() {
    let torch = Torch::new("evaluates-slowly", EVALUATES);
    // Copies have the same name, which hides the growth, so it is computed.
    let report = answer(&predict(&torch, "300MiB", &["--json"], &["names", "slow"]), 4);
    assert!(summary(&report).contains("of 200 batches"), "{report}");
    // Without growth, the last batch directly follows the first ones.
    let report = answer(&predict(&torch, "2GiB", &["--json"], &["slow"]), 0);
    assert!(summary(&report).starts_with("fits"), "{report}");
    assert!(report["not_counted"].to_string().contains("8 of 200 batches"), "{report}");
}

/// Keeps 4 MiB from each step.
const KEEPS: &str = "
import sys, torch
steps = int(sys.argv[1])
model = torch.nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.AdamW(model.parameters())
kept = []
for epoch in range(2):
    for step in range(steps // 2):
        out = model(torch.ones(1024, 1024, device='cuda'))
        out.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        kept.append(out)
";

#[needs(pytorch)]
#[test]
fn growth_from_step_to_step_is_in_the_first_line() {
    let torch = Torch::new("keeps", KEEPS);
    let output = predict(&torch, "1GiB", &[], &["2000"]);
    assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
    let text = stdout(&output);
    let first = text.lines().next().expect("a line");
    assert!(first.starts_with("grows by 4.00 MiB a step: out of memory at about step 2"), "{text}");
    assert!(first.ends_with("of 2,000 (train.py:9)"), "{text}");
    // Where the sentence wraps depends on how many steps ran.
    let plain = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let line = "which is only added to and never read: `pass` in place of line 13 lowers the peak from ";
    assert!(plain.contains(line), "{text}");
    // Two commands, on two lines that a shell reads as one.
    let next = text.lines().skip_while(|line| !line.starts_with("Next: plimsoll predict ")).take(2);
    let next: Vec<&str> = next.collect();
    assert!(next[0].ends_with("; \\") && next[1].starts_with("  plimsoll leaks "), "{text}");
    let holder = text.lines().find(|line| line.starts_with("kept by ")).expect("a holder");
    assert!(
        holder.starts_with("kept by `kept` (list of ") && holder.contains("a global of train.py: "),
        "{text}"
    );
    let report = answer(&predict(&torch, "4GiB", &["--json"], &["400"]), 0);
    assert!(summary(&report).contains("at the end of its 400 steps"), "{report}");
    assert_eq!(report["growth"]["total"], 400);
    assert_eq!((&report["holders"][0]["kind"], &report["holders"][1]), (&"global".into(), &Value::Null));
}

/// Keeps 4 MiB from each step: in a list that is cleared, in a list of the last 30, or until the loop breaks. Or
/// trains until a value is small.
const BOUNDED: &str = "
import collections, sys, torch
how = sys.argv[1]
model = torch.nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
kept = collections.deque(maxlen=30) if how == 'last' else []
def train():
    out = model(torch.ones(1024, 1024, device='cuda'))
    loss = out.square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    kept.append(out.detach())
    return loss
if how == 'value':
    loss = torch.tensor(9.0)
    while loss > 1e-3:
        loss = train()
for step in range(0 if how == 'value' else 100000):
    if how == 'breaks' and step >= 50:
        break
    train()
    if how == 'cleared' and len(kept) == 20:
        kept.clear()
";

#[needs(pytorch)]
#[test]
fn growth_that_ends_is_not_taken_for_growth_without_end() {
    let torch = Torch::new("bounded", BOUNDED);
    let report = answer(&predict(&torch, "4GiB", &["--json"], &["cleared"]), 0);
    assert!(summary(&report).starts_with("fits"), "{report}");
    let report = answer(&predict(&torch, "4GiB", &["--json"], &["value"]), 0);
    let warning = report["warnings"][0].as_str().expect("a warning");
    assert!(warning.starts_with("train.py:17: a value read from the GPU ends the loop"), "{report}");
}

#[needs(pytorch, nightly)]
#[test]
fn growth_of_a_bounded_list_or_until_a_break_is_not_taken_for_growth_without_end() {
    let torch = Torch::new("bounded-more", BOUNDED);
    for how in ["last", "breaks"] {
        let report = answer(&predict(&torch, "4GiB", &["--json"], &[how]), 0);
        assert!(summary(&report).starts_with("fits"), "{how}: {report}");
    }
}

/// Trains in steps of 4 MiB. At a fixed interval it keeps 4 MiB, or evaluates with 64 MiB, or a batch of the loader is
/// larger.
const LATE: &str = "
import sys, torch
how, every = sys.argv[1], int(sys.argv[2])
model = torch.nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
def train(x):
    out = model(x.cuda())
    out.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    return out.detach()
def evaluate():
    with torch.no_grad():
        model(torch.ones(16384, 1024, device='cuda'))
kept, deep = [], False
if how == 'loader':
    rows = [torch.ones(1024, 1024)] * every + [torch.ones(8192, 1024)]
    for epoch in range(3):
        for x in torch.utils.data.DataLoader(rows, batch_size=None):
            train(x)
    sys.exit()
for step in range(100000):
    if how == 'begins' and step % every == 0:
        evaluate()
    out = train(torch.ones(1024, 1024))
    if deep or step < 0:
        evaluate()
    if step % 50 == 49:
        print(step)
    if how == 'keeps' and step % every == 0:
        kept.append(out)
    if how == 'evaluates' and step % every == every - 1:
        evaluate()
";

#[needs(pytorch)]
#[test]
fn code_of_the_loop_that_starts_later_runs_or_is_named() {
    let torch = Torch::new("late", LATE);
    let report = answer(&predict(&torch, "4GiB", &["--json"], &["keeps", "5"]), 4);
    let first = summary(&report);
    assert!(first.starts_with("grows by 4.00 MiB every 5 steps: out of memory at about step 5,"), "{first}");
    assert!(first.ends_with("of 100,000 (train.py:7)"), "{first}");
    // Code that is not reached is reported, except for conditions on the configuration, and code that only
    // prints.
    let report = answer(&predict(&torch, "4GiB", &["--json"], &["evaluates", "90000"]), 0);
    assert!(summary(&report).contains("in the first 3 steps (train.py:33 was not run: --whole)"), "{report}");
    let named = "not seen: train.py:33 (`if how == 'evaluates' and step % every == every - 1`) did not run in the \
                 first 3 steps; add --steps 90001 or --whole";
    assert_eq!(report["not_seen"], serde_json::json!([named]));
}

#[needs(pytorch, nightly)]
#[test]
fn code_of_the_first_step_or_of_a_later_batch_runs_or_is_named() {
    let torch = Torch::new("late-more", LATE);
    let peak = |report: &Value| report["judged"]["peak_allocated_bytes"].as_u64().expect("bytes");
    // Code that is reached in time is included in the figures.
    let report = answer(&predict(&torch, "4GiB", &["--json"], &["evaluates", "8"]), 0);
    assert!(
        peak(&report) > 128 << 20 && report["not_seen"].as_array().is_some_and(Vec::is_empty),
        "{report}"
    );
    let report = answer(&predict(&torch, "4GiB", &["--json"], &["begins", "90000"]), 0);
    let named = "not seen: train.py:24 (`if how == 'begins' and step % every == 0`) ran only in the first step, when \
                 the optimizer had no state; add --steps 90001 or --whole";
    assert_eq!(report["not_seen"], serde_json::json!([named]));
    // A step runs with the loader's largest batch, which is its last.
    let report = answer(&predict(&torch, "4GiB", &["--json"], &["loader", "20"]), 0);
    assert!(peak(&report) > 96 << 20, "{report}");
}

/// Four layers of 16 MiB, and activations of 16 MiB each for 4096 rows.
const NEEDS: &str = "
import sys, torch
print('memory', *torch.cuda.mem_get_info(), torch.cuda.get_device_properties(0).total_memory)
def train(rows):
    model = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(4)]).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(3):
        model(torch.ones(rows, 2048, device='cuda')).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        print('trained', rows)
rows = 16384
while True:
    try:
        train(rows)
        break
    except torch.cuda.OutOfMemoryError:
        if 'halves' not in sys.argv:
            raise
        rows //= 2
";

#[needs(pytorch)]
#[test]
fn an_out_of_memory_answer_says_the_need_and_the_next_command() {
    let torch = Torch::new("needs", NEEDS);
    let page = torch.folder.file("page.html");
    let output = predict(&torch, "400MiB", &["--html", &page], &[]);
    assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
    let (text, said) = (stdout(&output), stderr(&output));
    let first = text.lines().next().expect("a line");
    assert!(first.starts_with("runs OUT of memory: needs "), "{text}");
    let next = text.lines().find(|line| line.starts_with("Next: ")).expect("a command");
    assert!(next.starts_with("Next: plimsoll plan --gpu 400MiB --cc 8.0 -- "), "{text}");
    let page = std::fs::read_to_string(page).expect("a page");
    for said in ["runs OUT of memory: needs ", "plimsoll plan --gpu 400MiB --cc 8.0 -- ", "too little"] {
        assert!(text.contains(said) && page.contains(said), "{said}: {text}");
    }
    assert!(
        text.lines().count() <= 40
            && text.lines().all(|line| line.starts_with("Next") || line.chars().count() <= 100),
        "{text}"
    );
    // The GPU has more memory in the second run, but the program does not see that.
    let told: Vec<&str> = said.lines().filter(|line| line.starts_with("memory ")).collect();
    assert!(told.len() == 2 && told[0] == told[1] && told[0].ends_with(&(400 << 20).to_string()), "{said}");
    assert!(said.contains("trained 16384"), "{said}");
    // A failure that the program catches is not suppressed.
    let report = answer(&predict(&torch, "400MiB", &["--json"], &["halves"]), 0);
    let caught = report["verdict"]["caught_requests"].as_u64().expect("a number");
    assert!(
        caught > 0 && summary(&report).contains(&format!("the program caught {caught} out-of-memory error")),
        "{report}"
    );
    let quiet = predict(&torch, "4GiB", &["-q"], &[]);
    assert!(stdout(&quiet).lines().count() == 1 && stdout(&quiet).starts_with("fits"), "{}", stdout(&quiet));
}

/// Two vectors of 4 MiB for each of up to 50 iterations, and a graph if requested.
const ASSUMES: &str = "
import torch
weights = torch.nn.Parameter(torch.randn(1 << 20, device='cuda'))
optimizer = torch.optim.LBFGS([weights], history_size=50)
def closure():
    optimizer.zero_grad()
    loss = (weights - 1).pow(4).mean()
    loss.backward()
    return loss
for step in range(3):
    optimizer.step(closure)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    weights.detach() * 2
";

#[needs(pytorch)]
#[test]
fn what_values_decide_is_a_warning_with_its_bytes_and_the_figures_are_not_exact() {
    let torch = Torch::new("assumes-values", ASSUMES);
    let report = answer(&predict(&torch, "8GiB", &["--json", "--whole"], &[]), 0);
    let warnings = report["warnings"].as_array().expect("warnings");
    let warning = warnings[0].as_str().expect("a warning");
    assert!(
        warnings.len() == 1
            && warning.starts_with("train.py:4: the history of L-BFGS")
            && warning.contains("of up to 50 pairs")
            && warning.contains("at stake: up to 40"),
        "{report}"
    );
    // The first line contains the range.
    let peak = |key: &str| report[key]["peak_reserved_bytes"].as_u64().expect("bytes") >> 20;
    let (least, most) = (peak("judged"), peak("with_largest_values"));
    assert!((400..420).contains(&(most - least)), "{report}");
    let range = format!("{least}.00 MiB to {most}.00 MiB reserved, depending on unknown values");
    assert!(summary(&report).contains(&range), "{range}: {report}");
    assert!(report["not_counted"].to_string().contains("CUDA graphs"), "{report}");
    assert_eq!(report["exact"], false);
}

/// A handwritten non-maximum suppression: 512 boxes, and 256 KiB for each box that is kept.
const SUPPRESSES: &str = "
import torch
boxes, scores = torch.rand(512, 4, device='cuda'), torch.rand(512, device='cuda')
good = scores > 0.5
boxes, order = boxes[good], scores[good].argsort()
kept = []
while order.numel() > 0:
    kept.append(torch.zeros(1 << 16, device='cuda'))
    distances = (boxes[order[1:]] - boxes[order[:1]]).abs().sum(1)
    order = order[1:][distances > 0.1]
";

#[needs(pytorch)]
#[test]
fn lines_that_share_the_bytes_at_stake_are_named_together_and_the_range_has_room_for_all() {
    let torch = Torch::new("suppresses", SUPPRESSES);
    let report = answer(&predict(&torch, "8GiB", &["--json", "--whole"], &[]), 0);
    let most = report["with_largest_values"]["peak_allocated_bytes"].as_u64().expect("bytes");
    assert!(most >= 512 << 18, "{report}");
    let warning = report["warnings"][0].as_str().expect("a warning");
    assert!(warning.starts_with("train.py:5") && warning.contains("at stake, all "), "{report}");
    // This line is reached only with larger values at the other line.
    assert!(report["warnings"].to_string().contains("train.py:10: a value"), "{report}");
    // The memory for half of the boxes is between the two extremes.
    let half = predict(&torch, "8GiB", &["--json", "--whole", "--assume", "train.py:5=half"], &[]);
    let half = answer(&half, 0)["judged"]["peak_allocated_bytes"].as_u64().expect("bytes");
    assert!(half <= most && half >= report["judged"]["peak_allocated_bytes"].as_u64().expect("bytes"));
}

/// Selects boxes with a good score. Their number is unknown: up to 64 MiB. With `index`, their number is also used as
/// an index.
const SELECTS: &str = "
import sys, torch
boxes = torch.randn(16384, 1024, device='cuda')
scores = torch.rand(16384, device='cuda')
good = boxes[scores > 0.5]
count = good.size(0)
if 'index' in sys.argv:
    last = int((scores > 0.5).sum())
    print([1, 2, 3][last - 1], list(range(last))[0])
torch.relu(good)
";

#[needs(pytorch)]
#[test]
fn the_bytes_at_stake_are_known_where_a_value_decides_a_size() {
    let torch = Torch::new("selects", SELECTS);
    let report = answer(&predict(&torch, "8GiB", &["--json", "--whole"], &[]), 0);
    let warning = report["warnings"][0].as_str().expect("a warning");
    assert!(
        warning.starts_with("train.py:5: a value read from the GPU decides a size, assumed 0"),
        "{report}"
    );
    let largest = report["with_largest_values"]["peak_allocated_bytes"].as_u64().expect("bytes");
    let zero = report["judged"]["peak_allocated_bytes"].as_u64().expect("bytes");
    assert!(largest >= zero + (120 << 20), "{report}");
    assert!(warning.contains("at stake: up to 1"), "{report}");
    // A GPU too small for the maximum.
    let report = answer(&predict(&torch, "100MiB", &["--json", "--whole"], &[]), 4);
    assert!(summary(&report).starts_with("may NOT fit"), "{report}");
    let warning = report["warnings"][0].as_str().expect("a warning");
    assert!(warning.ends_with("more, which does not fit"), "{report}");
}

#[needs(pytorch)]
#[test]
fn a_failure_after_a_read_names_the_line_that_read() {
    let torch = Torch::new("selects-index", SELECTS);
    let report = answer(&predict(&torch, "8GiB", &["--json", "--whole"], &["index"]), 5);
    assert!(report["summary"].as_str().expect("a sentence").contains("IndexError"), "{report}");
    assert!(report.to_string().contains("--assume train.py:"), "{report}");
}

/// A matrix product and its cross-entropy without a module: 128 MiB of logits.
const FUNCTIONAL: &str = "
import torch, torch.nn.functional as F
h = torch.randn(2048, 64, device='cuda', requires_grad=True)
w = torch.randn(16384, 64, device='cuda', requires_grad=True)
t = torch.zeros(2048, dtype=torch.long, device='cuda')
F.cross_entropy((h @ w.t()).float(), t).backward()
assert w.grad.shape == w.shape and h.grad.shape == h.shape
";

#[needs(pytorch)]
#[test]
fn chunked_loss_takes_a_product_that_is_no_layer() {
    let torch = Torch::new("functional", FUNCTIONAL);
    let options = ["--json", "--whole", "--with", "chunked-loss=128"];
    let report = answer(&predict(&torch, "2GiB", &options, &[]), 0);
    assert_eq!(report["techniques"][0]["applied"], true, "{report}");
    let peak = report["judged"]["peak_allocated_bytes"].as_u64().expect("bytes");
    assert!(peak < 64 << 20, "{report}");
}
