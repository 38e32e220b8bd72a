//! Programs that `plan` and `run` cannot help, or can help only in an unusual way: each gets a correct
//! answer.

use serde_json::Value;

use plimsoll_needs::needs;

use crate::program::{plimsoll, stderr, stdout};
use crate::torch::{Torch, answer};

/// About 500 MiB of activations. The argument selects what is unusual.
const UNUSUAL: &str = "
import sys, torch, torch.nn as nn, torch.multiprocessing as mp
kind = sys.argv[1]
class Block(nn.Module):
    calls = 0
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(512, 2048), nn.Linear(2048, 512)
    def forward(self, x):
        Block.calls += 1
        if kind == 'unstable' and Block.calls > 4:
            x = x.sin()
        return self.down(nn.functional.gelu(self.up(x)))
class Flat(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two, self.three = nn.Linear(512, 8192), nn.Linear(8192, 8192), nn.Linear(8192, 512)
    def forward(self, x):
        return self.three(self.two(self.one(x).relu()).relu())
def train():
    if kind == 'asks':
        device, asked = torch.cuda.current_device(), torch.cuda.get_device_properties('cuda')
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        assert torch.cuda.is_bf16_supported()
        open(sys.argv[0] + '.made', 'a').write('x')
    if kind == 'groups':
        torch.distributed.init_process_group('nccl', rank=0, world_size=1, store=torch.distributed.HashStore())
    model = (Flat() if kind == 'flat' else nn.Sequential(*[Block() for _ in range(4)])).cuda()
    if kind == 'asks':
        now = torch.cuda.get_device_properties(device)
        for name in ('name', 'major', 'minor', 'multi_processor_count', 'warp_size', 'total_memory'):
            assert getattr(now, name) == getattr(asked, name), name
    if kind == 'compiles':
        model = torch.compile(model, backend='eager')
    if kind == 'groups':
        model = nn.parallel.DistributedDataParallel(model)
    if kind == 'infers':
        with torch.no_grad():
            for _ in range(4):
                model(torch.randn(4096, 512, device='cuda'))
        return
    optimizer = None if kind == 'manual' else torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        try:
            model(torch.randn(4096, 512, device='cuda')).square().mean().backward()
        except ValueError:
            continue
        if kind == 'manual':
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 0.1 * parameter.grad
                    parameter.grad = None
        else:
            optimizer.step()
            optimizer.zero_grad()
    if kind == 'groups':
        torch.distributed.destroy_process_group()
def answers(queue):
    train()
    queue.put('trained')
if __name__ == '__main__':
    if kind == 'spawns':
        child = mp.get_context('spawn').Process(target=train)
        child.start()
        child.join()
        sys.exit(child.exitcode)
    if kind == 'queues':
        queue = mp.get_context('spawn').Queue()
        child = mp.get_context('spawn').Process(target=answers, args=(queue,))
        child.start()
        queue.get()
        child.join()
        sys.exit(child.exitcode)
    train()
";

fn plan(torch: &Torch, gpu: &str, kind: &str, code: i32) -> Value {
    let train = torch.folder.file("train.py");
    let mut args = vec!["plan", "--cc=8.0", "--context=0", "--json", "--numbers=identical", gpu, "--"];
    // It counts in a file.
    if kind == "asks" {
        args.insert(1, "--allow-writes");
    }
    args.extend(torch.python.iter().map(String::as_str).chain([train.as_str(), kind]));
    answer(&plimsoll(&args), code)
}

/// The reason why a set is rejected.
fn objection<'a>(plan: &'a Value, set: &str) -> &'a str {
    let rows = plan["tried"].as_array().into_iter().flatten();
    rows.clone().find(|row| row["set"] == set).and_then(|row| row["objection"].as_str()).unwrap_or_default()
}

fn summary(plan: &Value) -> &str {
    plan["summary"].as_str().unwrap_or_default()
}

#[needs(pytorch, nightly)]
#[test]
fn a_program_that_never_calls_backward_is_judged_as_it_is() {
    let torch = Torch::new("plan-infers", UNUSUAL);
    assert!(summary(&plan(&torch, "--gpu=1GiB", "infers", 0)).contains("as it is"));
    let short = plan(&torch, "--gpu=60MiB", "infers", 4);
    assert!(summary(&short).contains("does NOT fit"), "{short}");
    assert!(objection(&short, "no-grad").contains("the program keeps no graph"), "{short}");
}

/// 48 MiB of weights, and a graph of 100 MiB. The argument decides whether the program uses it.
const GRAPH: &str = "
import sys, torch, torch.nn as nn
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(512, 2048), nn.Linear(2048, 512)
    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(x)))
model = nn.Sequential(*[Block() for _ in range(6)]).eval().cuda()
seen = []
if sys.argv[1] == 'inside':
    model[3].register_forward_hook(lambda module, args, result: seen.append(result))
for _ in range(3):
    x = torch.randn(512, 512, device='cuda', requires_grad=sys.argv[1] == 'saliency')
    y = model(x)
    if sys.argv[1] == 'saliency':
        y.sum().backward()
    if sys.argv[1] == 'keeps':
        seen.append(y.sum())
    if sys.argv[1] == 'inside':
        torch.autograd.grad(seen[-1].sum(), model[2].down.weight)
";

#[needs(pytorch, nightly)]
#[test]
fn a_graph_that_nobody_uses_is_named_with_its_line_and_is_not_kept() {
    let torch = Torch::new("plan-graph", GRAPH);
    let predicted = |how| answer(&torch.predict(&["--json", "--gpu=T4"], &[how]), 0);
    let plain = predicted("plain");
    let graph = &plain["unused_graphs"][0];
    assert!(graph["bytes"].as_u64().is_some_and(|bytes| bytes > 90 << 20), "{graph}");
    assert_eq!((&graph["line"], &graph["calls"]), (&15.into(), &3.into()));
    // A tensor that is computed from a result keeps the graph, although the result itself no longer exists.
    let keeps = &predicted("keeps")["unused_graphs"][0]["bytes"];
    assert!(keeps.as_u64() >= graph["bytes"].as_u64().map(|bytes| bytes * 5 / 4), "{keeps} {graph}");
    for how in ["saliency", "inside"] {
        assert_eq!(predicted(how)["unused_graphs"], serde_json::json!([]), "{how}");
    }
    let plan = plan(&torch, "--gpu=64MiB", "plain", 0);
    assert!(plan["chosen"].as_str().is_some_and(|set| set.contains("offload-weights")), "{plan}");
    assert!(plan["unused_graphs"][0].as_str().is_some_and(|it| it.contains("torch.no_grad()")), "{plan}");
}

/// Per-sample gradients without a backward pass, or a model that itself fails under autocast.
const FAILS: &str = "
import sys, torch, torch.nn as nn
from torch.func import functional_call, grad, vmap
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(512, 512)
    def forward(self, x):
        x = self.line(x)
        if sys.argv[1] == 'puts':
            x = x.clone()
            x[:, 0] = self.line.bias[0]
            x[torch.ones(len(x), dtype=torch.bool)] = self.line.bias
        return x.relu()
model = nn.Sequential(Block(), Block(), Block()).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    x = torch.randn(64, 512, device='cuda')
    if sys.argv[1] == 'puts':
        model(x).square().mean().backward()
    else:
        parameters = {name: it.detach() for name, it in model.named_parameters()}
        loss = lambda parameters, x: functional_call(model, parameters, (x[None],)).square().mean()
        gradients = vmap(grad(loss), in_dims=(None, 0))(parameters, x)
        for name, it in model.named_parameters():
            it.grad = gradients[name].mean(0)
        del gradients
    optimizer.step()
";

#[needs(pytorch, nightly)]
#[test]
fn parts_of_the_batch_are_tried_once_where_they_have_no_effect() {
    let torch = Torch::new("plan-functions", FAILS);
    let train = torch.folder.file("train.py");
    let mut args = vec!["plan", "--gpu=100MiB", "--cc=8.0", "--context=0", "--json", "--"];
    args.extend(torch.python.iter().map(String::as_str).chain([train.as_str(), "functions"]));
    let plan = answer(&plimsoll(&args), 4);
    let rows = plan["tried"].as_array().into_iter().flatten();
    let of_parts = rows.filter(|row| row["set"].as_str().is_some_and(|it| it.contains("split=")));
    assert_eq!(of_parts.count(), 1, "{plan}");
    let base = plan["tried"][0]["peak_reserved_bytes"].as_u64().unwrap_or(0);
    assert!(summary(&plan).contains("; the least is ") && base > 100 << 20, "{plan}");
}

#[needs(pytorch)]
#[test]
fn a_failure_of_the_programs_own_lines_is_not_blamed_on_a_technique() {
    let torch = Torch::new("plan-puts", FAILS);
    let options = ["--json", "--gpu=T4", "--with=checkpoint"];
    answer(&torch.predict(&options, &["puts"]), 0);
    let options = ["--json", "--gpu=L4", "--with=checkpoint,bf16"];
    let report = answer(&torch.predict(&options, &["puts"]), 5);
    let said = summary(&report);
    assert!(said.contains("FAILED") && said.contains("train.py:13") && !said.contains("technique"), "{said}");
}

#[needs(pytorch, nightly)]
#[test]
fn a_program_without_an_optimizer_with_its_model_in_a_subprocess_or_in_a_process_group_is_planned_for() {
    let torch = Torch::new("plan-manual", UNUSUAL);
    // The parent waits for the child's end, or for an answer. A process group's buckets need as much memory
    // as the parameters.
    for (kind, gpu) in
        [("manual", "250MiB"), ("spawns", "250MiB"), ("queues", "250MiB"), ("groups", "360MiB")]
    {
        let plan = plan(&torch, &format!("--gpu={gpu}"), kind, 0);
        let chosen = plan["chosen"].as_str().expect("a set");
        assert!(chosen.contains("checkpoint") || chosen.contains("offload"), "{kind}: {plan}");
        let rows = plan["tried"].as_array().into_iter().flatten();
        let mut why = rows.filter_map(|row| row["objection"].as_str());
        assert!(!why.any(|it| it.contains("stopped after")), "{kind}: {plan}");
    }
}

#[needs(pytorch)]
#[test]
fn a_program_that_asks_about_the_gpu_makes_its_model_once() {
    let torch = Torch::new("plan-asks", UNUSUAL);
    let plan = plan(&torch, "--gpu=250MiB", "asks", 0);
    assert!(plan["tried"].as_array().is_some_and(|rows| rows.len() > 4), "{plan}");
    let made = std::fs::read_to_string(torch.folder.file("train.py.made")).expect("made");
    assert_eq!(made, "x", "the model is made once, before the sets are tried");
}

#[needs(pytorch, nightly)]
#[test]
fn a_model_that_is_compiled_or_has_no_repeated_blocks_is_refused_with_that_reason() {
    let torch = Torch::new("plan-compiles", UNUSUAL);
    for (kind, said) in [("compiles", "torch.compile compiles the model"), ("flat", "no repeated blocks")] {
        let plan = plan(&torch, "--gpu=64MiB", kind, 4);
        assert!(objection(&plan, "checkpoint").contains(said), "{kind}: {plan}");
    }
}

#[needs(pytorch, nightly)]
#[test]
fn a_model_that_is_compiled_fits_with_techniques_where_it_is_not() {
    let torch = Torch::new("plan-eager", UNUSUAL);
    let train = torch.folder.file("train.py");
    let mut args = vec!["plan", "--gpu=250MiB", "--cc=8.0", "--context=0", "--json", "--"];
    args.extend(torch.python.iter().map(String::as_str).chain([train.as_str(), "compiles"]));
    let plan = answer(&plimsoll(&args), 0);
    let chosen = plan["chosen"].as_str().expect("a set");
    assert!(chosen.contains("no-compile") && chosen.contains("checkpoint"), "{plan}");
    let row =
        plan["tried"].as_array().into_iter().flatten().find(|row| row["set"] == chosen).expect("its row");
    let options = ["--json", "--gpu=250MiB", "--cc=8.0", "--context=0", "--with", chosen];
    let report = answer(&torch.predict(&options, &["compiles"]), 0);
    assert_eq!(report["processes"][0]["devices"][0]["peak_allocated_bytes"], row["peak_allocated_bytes"]);
    let report = answer(&torch.predict(&["--json", "--gpu=4GiB", "--with=no-compile"], &["manual"]), 0);
    assert!(report["techniques"][0].to_string().contains("compiles nothing"), "{report}");
}

#[needs(pytorch)]
#[test]
fn a_technique_that_raises_is_a_failed_row_and_ends_a_run_with_its_name() {
    let torch = Torch::new("plan-raises", UNUSUAL);
    // Offloading makes it fit.
    let plan = plan(&torch, "--gpu=400MiB", "unstable", 0);
    let why = objection(&plan, "checkpoint");
    assert!(why.starts_with("failed: the technique checkpoint: CheckpointError"), "{plan}");
    // On the CPU, without `cuda()`.
    let text = UNUSUAL.replace(".cuda()", "").replace(", device='cuda'", "");
    std::fs::write(torch.folder.file("train.py"), text).expect("written");
    let train = torch.folder.file("train.py");
    let mut args = vec!["run", "--no-watch", "--with", "checkpoint,free-grads", "--"];
    args.extend(torch.python.iter().map(String::as_str).chain([train.as_str(), "unstable"]));
    let output = plimsoll(&args);
    assert_eq!(output.status.code(), Some(1), "{}", stdout(&output));
    for said in
        ["comes from the technique checkpoint", "leave it out: plimsoll run --with free-grads -- COMMAND"]
    {
        assert!(stderr(&output).contains(said), "{}", stderr(&output));
    }
}

/// 64 MiB of weights. The argument is the batch size; the command has no placeholder for it.
const BATCH: &str = "
import sys, torch, torch.nn as nn
rows = int(sys.argv[1])
model = nn.Sequential(nn.Linear(1024, 8192), nn.ReLU(), nn.Linear(8192, 1024)).cuda().eval()
with torch.no_grad():
    for _ in range(3):
        x = torch.randn(rows, 1024, device='cuda')
        model(x * 2)
";

#[needs(pytorch, nightly)]
#[test]
fn the_largest_batch_is_found_without_a_mark_in_the_command() {
    let torch = Torch::new("plan-unmarked", BATCH);
    let train = torch.folder.file("train.py");
    let mut args = vec!["plan", "--gpu=1GiB", "--cc=8.0", "--context=0", "--goal=batch", "--json", "--"];
    args.extend(torch.python.iter().map(String::as_str).chain([train.as_str(), "64"]));
    let plan = answer(&plimsoll(&args), 0);
    let row = &plan["largest_batch"][0];
    assert_eq!((&row["set"], &row["from"]), (&"".into(), &64.into()), "{plan:#}");
    let found = row["batch"].as_u64().expect("a batch");
    assert!(plan["batch_found_by"].as_str().is_some_and(|it| it.contains("train.py:7")), "{plan:#}");
    // It is exact to one part in 256.
    for (rows, code) in [(found, 0), (found + found / 100, 4)] {
        let options = ["--json", "--gpu=1GiB", "--cc=8.0", "--context=0"];
        answer(&torch.predict(&options, &[&rows.to_string()]), code);
    }
}

/// Batches of 8 MiB that the loop makes itself; half of the activations fit. The argument decides where the size comes from.
const INLINE: &str = "
import sys, torch, torch.nn as nn
BATCH = 2048
sizes = {'rows': 2048}
class Batches:
    def get(self, rows=BATCH):
        return torch.randn(rows, 1024, device='cuda')
model = nn.Sequential(*[it for _ in range(8) for it in (nn.Linear(1024, 1024), nn.ReLU())])
if sys.argv[1] == 'norm':
    model.append(nn.BatchNorm1d(1024))
model.cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3 if sys.argv[1] == 'short' else 400):
    optimizer.zero_grad()
    x = torch.randn((sizes['rows'], 1024), device='cuda') if sys.argv[1] == 'unknown' else Batches().get()
    model(x).square().mean().backward()
    optimizer.step()
";

#[needs(pytorch)]
#[test]
fn a_smaller_micro_batch_is_measured_for_a_program_that_makes_its_batches_or_it_says_why_not() {
    let torch = Torch::new("plan-inline", INLINE);
    let train = torch.folder.file("train.py");
    let plan = |kind| {
        let mut args = vec!["plan", "--gpu=150MiB", "--cc=8.0", "--context=0", "--json", "--"];
        args.extend(torch.python.iter().map(String::as_str).chain([train.as_str(), kind]));
        let report: Value = serde_json::from_str(&stdout(&plimsoll(&args))).expect("a plan");
        report["micro_batch"].clone()
    };
    let found = plan("default");
    let half = &found["tried"][0];
    assert_eq!((&half["parts"], &half["batch"]), (&2.into(), &1024.into()), "{found}");
    assert_eq!(half["lines"][0]["text"], "BATCH = 1024", "{found}");
    assert_eq!((&half["lines"][0]["line"], &half["run"]["fits"]), (&3.into(), &true.into()), "{found}");
    // Gradients of 32 MiB add up while the activations of the next part exist.
    let peak = half["run"]["peak_allocated_bytes"].as_u64().unwrap_or(0);
    assert!((105 << 20..140 << 20).contains(&peak), "{found}");
    for (kind, why) in [
        ("norm", "batch normalization"),
        ("short", "ends before the optimizer's second step"),
        ("unknown", "its size is `sizes['rows']`"),
    ] {
        let found = plan(kind);
        assert!(found["why"].as_str().is_some_and(|it| it.contains(why)), "{kind}: {found}");
    }
}

/// Batches of 8 MiB that are twice as large from a step on.
const RAMP: &str = "
import torch, torch.nn as nn
model = nn.Sequential(*[it for _ in range(4) for it in (nn.Linear(512, 512), nn.ReLU())]).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(10000000):
    x = torch.randn(4096 if step < CHANGE else 8192, 512, device='cuda')
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
";

#[needs(pytorch)]
#[test]
fn a_size_that_changes_late_is_reached_or_its_line_is_in_the_verdict() {
    let torch = Torch::new("plan-ramp", &RAMP.replace("CHANGE", "100"));
    let run = |torch: &Torch| {
        let train = torch.folder.file("train.py");
        let mut args = vec!["plan", "--gpu=1GiB", "--cc=8.0", "--context=0", "--json", "--"];
        args.extend(torch.python.iter().map(String::as_str).chain([train.as_str()]));
        answer(&plimsoll(&args), 0)
    };
    let reached = run(&torch);
    let peak = |plan: &Value| plan["planned"]["peak_allocated_bytes"].as_u64().unwrap_or(0) >> 20;
    assert!(!summary(&reached).contains("changes"), "{reached}");
    let torch = Torch::new("plan-late-ramp", &RAMP.replace("CHANGE", "1000000"));
    let named = run(&torch);
    assert!(summary(&named).ends_with(" (train.py:6 changes in step 1,000,001: --steps 1000001)"), "{named}");
    assert!(10 * peak(&reached) > 16 * peak(&named), "{reached} {named}");
}

/// With expandable segments, 902 MiB are mapped.
const ALMOST: &str = "
import torch, torch.nn as nn
model = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(8)]).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(50):
    x, y = torch.randn(4096, 2048, device='cuda'), torch.randn(4096, 2048, device='cuda')
    optimizer.zero_grad()
    ((model(x) - y) ** 2).mean().backward()
    optimizer.step()
";

#[needs(pytorch)]
#[test]
fn a_set_that_maps_a_page_too_much_does_not_fit() {
    let torch = Torch::new("plan-almost", ALMOST);
    let train = torch.folder.file("train.py");
    let mut args = vec!["plan", "--gpu=900MiB", "--cc=8.6", "--context=0", "--json", "--"];
    args.extend(torch.python.iter().map(String::as_str).chain([train.as_str()]));
    let plan = answer(&plimsoll(&args), 0);
    let rows = plan["tried"].as_array().expect("rows");
    let over = rows.iter().filter(|row| row["peak_reserved_bytes"].as_u64() > Some(900 << 20));
    let names: Vec<&Value> = over
        .map(|row| {
            assert_eq!(row["fits"], false, "{row}");
            &row["set"]
        })
        .collect();
    assert!(names.iter().any(|name| **name == "expandable"), "{names:?}");
    assert!(
        !plan["alternative"].as_str().unwrap_or("").contains("fits: expandable,"),
        "{}",
        plan["alternative"]
    );
}
