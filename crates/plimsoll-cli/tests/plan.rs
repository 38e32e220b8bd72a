//! `plimsoll plan` on the stand-in: which techniques make a program fit.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use plimsoll_needs::needs;

use crate::program::{plimsoll, signal, stderr, stdout};
use crate::torch::{Torch, answer};

/// Six blocks whose memory is mostly activations: about 700 MiB.
const BLOCKS: &str = "
import sys, time, torch, torch.nn as nn
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down, self.calls = nn.Linear(512, 2048), nn.Linear(2048, 512), 0
    def forward(self, x):
        if 'hangs' in sys.argv and torch._C._current_graph_task_id() != -1:
            time.sleep(600)
        return self.down(nn.functional.gelu(self.up(x)))
rows = 4096
if 'asks' in sys.argv:
    import subprocess
    ask = ['nvidia-smi', '--query-gpu=memory.total', '--format=csv,noheader,nounits']
    rows = 4096 if int(subprocess.check_output(ask)) > 5000 else 1024
model = nn.Sequential(*[Block() for _ in range(6)]).cuda()
optimizer = torch.optim.AdamW(model.parameters())
if 'writes' in sys.argv:
    import socket
    open(__file__ + '.log', 'w').write('begun')
    try:
        socket.create_connection(('plimsoll.invalid', 80), timeout=1)
    except OSError:
        pass
for step in range(4):
    loss = model(torch.randn(rows, 512, device='cuda')).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep('slow' in sys.argv)
    if 'computes' in sys.argv:
        sum(range(20_000_000))
    if 'evaluates' in sys.argv and step % 2:
        model.eval()
        with torch.no_grad():
            model(torch.randn(rows, 512, device='cuda'))
        model.train()
";

/// The same model in a program that uses 400 MiB more from its sixth step on.
const GROWS: &str = "
MODEL
optimizer = torch.optim.AdamW(model.parameters())
for step in range(30):
    more = torch.empty((400 if step > 4 else 1) << 20, dtype=torch.uint8, device='cuda')
    loss = model(torch.randn(rows, 512, device='cuda')).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
";

/// The same model in a program that catches running out of memory: it halves its batch, searches for a batch that
/// fits, or skips the step.
const CATCHES: &str = "
MODEL
optimizer = torch.optim.AdamW(model.parameters())
def loss_of(batch):
    loss = model(torch.randn(batch, 512, device='cuda')).square().mean()
    optimizer.zero_grad()
    loss.backward()
batch, step = 4096, 0
while 'doubles' in sys.argv:
    try:
        loss_of(batch)
        batch *= 2
    except torch.cuda.OutOfMemoryError:
        sys.argv.remove('doubles')
        batch //= 4
while step < 4:
    try:
        loss_of(batch)
    except torch.cuda.OutOfMemoryError:
        if 'skips' not in sys.argv:
            batch //= 2
        else:
            step += 1
        continue
    optimizer.step()
    step += 1
";

/// The beginning of a program, up to and including its model.
fn model() -> &'static str {
    BLOCKS.split("optimizer").next().expect("a model")
}

fn arguments(torch: &Torch, options: &[&str], program: &[&str]) -> Vec<String> {
    let mut args = vec!["plan".to_owned(), "--cc=8.0".to_owned(), "--context=0".to_owned()];
    args.extend(options.iter().map(|&it| it.to_owned()));
    args.push("--".to_owned());
    args.extend(torch.python.iter().cloned());
    args.push(torch.folder.file("train.py"));
    args.extend(program.iter().map(|&it| it.to_owned()));
    args
}

fn planned(torch: &Torch, options: &[&str], program: &[&str], code: i32) -> Value {
    let options = [options, &["--json"]].concat();
    let args = arguments(torch, &options, program);
    answer(&plimsoll(&args.iter().map(String::as_str).collect::<Vec<_>>()), code)
}

/// The model in a program with the batch as an argument: about 170 MiB of parameters and optimizer state, and 10 MiB
/// of activations for each 64 rows.
const BATCHED: &str = "
MODEL
optimizer = torch.optim.AdamW(model.parameters())
for step in range(4):
    loss = model(torch.randn(64 * int(sys.argv[1]), 512, device='cuda')).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
";

fn row<'a>(plan: &'a Value, set: &str) -> Option<&'a Value> {
    plan["tried"].as_array()?.iter().find(|row| row["set"] == set)
}

fn peak(row: &Value) -> u64 {
    row["peak_allocated_bytes"].as_u64().expect("a peak")
}

#[needs(pytorch)]
#[test]
fn a_set_that_fits_is_found_where_the_program_alone_does_not_fit() {
    let torch = Torch::new("plan", BLOCKS);
    let plan = planned(&torch, &["--gpu=400MiB", "--numbers=identical"], &[], 0);
    assert_eq!(plan["schema"], "plimsoll.plan/1");
    assert_eq!(plan["tried"][0]["fits"], false, "{plan}");
    let chosen = plan["chosen"].as_str().expect("a set");
    assert!(
        (chosen.contains("checkpoint") || chosen.contains("offload")) && !chosen.contains("step-in-backward"),
        "{plan}"
    );
    // No set that fits is faster according to the estimate.
    let step_s = |row: &Value| row["estimated_step_seconds"].as_f64().expect("seconds");
    let rows = plan["tried"].as_array().expect("rows");
    let own = rows.iter().find(|row| row["set"] == chosen).map(step_s).expect("the chosen row");
    let has_room = |row: &&Value| row["fits"] == true && row["tight"] == false && row["effective"] == true;
    assert!(rows.iter().filter(has_room).all(|row| own <= step_s(row) * 1.01), "{plan}");
    assert!(plan["command"].as_str().is_some_and(|it| it.starts_with("plimsoll run --with ")), "{plan}");
    // Some rows fit only if cached memory is released; these ran under the GPU's limit, and finished.
    assert!(
        plan["tried"]
            .as_array()
            .is_some_and(|rows| rows.iter().all(|row| row["set"] != "offload" || row["fits"].is_boolean())),
        "{plan}"
    );
}

#[needs(pytorch, nightly)]
#[test]
fn no_more_tensors_are_moved_to_the_host_than_is_needed() {
    let torch = Torch::new("plan-part", BLOCKS);
    let plan = planned(&torch, &["--gpu=550MiB", "--numbers=identical"], &[], 0);
    let rows = plan["tried"].as_array().expect("rows");
    let bytes = |row: &Value| row["pcie_bytes"].as_u64().expect("bytes");
    let all = rows.iter().find(|row| row["set"] == "offload").map(bytes).expect("a row");
    let part = |row: &&Value| row["set"].as_str().is_some_and(|it| it.contains("offload="));
    let fewest = rows.iter().filter(part).filter(|row| row["fits"] == true).map(bytes).min();
    assert!(fewest.is_some_and(|it| it < all * 9 / 10), "{plan}");
}

#[needs(pytorch)]
#[test]
fn a_program_that_fits_as_it_is_keeps_its_command_and_what_it_would_write_is_listed() {
    let torch = Torch::new("plan-fits", BLOCKS);
    let plan = planned(&torch, &["--gpu=4GiB"], &["writes"], 0);
    assert!(plan["summary"].as_str().is_some_and(|it| it.contains("as it is")), "{plan}");
    assert_eq!(
        (&plan["chosen"], plan["tried"].as_array().map(Vec::len)),
        (&Value::from(""), Some(1)),
        "{plan}"
    );
    assert!(plan["command"].as_str().is_some_and(|it| it.ends_with("train.py writes")), "{plan}");
    let log = torch.folder.file("train.py.log");
    assert_eq!(plan["writes"], serde_json::json!([{ "path": log, "bytes": 5 }]), "{plan}");
    assert_eq!(plan["hosts"], serde_json::json!(["plimsoll.invalid"]), "{plan}");
    assert!(!std::path::Path::new(&log).exists());
}

#[needs(pytorch)]
#[test]
fn the_time_of_a_step_is_that_of_the_host_if_it_computes_for_longer() {
    let torch = Torch::new("plan-bound", BLOCKS);
    let row = |program: &[&str]| {
        planned(&torch, &["--gpu=80GiB", "--host-factor=1"], program, 0)["tried"][0].clone()
    };
    let seconds = |row: &Value, name: &str| row[name].as_f64().expect("seconds");
    let computes = row(&["computes"]);
    assert_eq!(computes["bound_by"], "the host", "{computes}");
    let host_s = seconds(&computes, "estimated_host_seconds");
    assert!(
        host_s > 0.0 && (seconds(&computes, "estimated_step_seconds") - host_s).abs() < 1e-9,
        "{computes}"
    );
    let own_s = seconds(&row(&[]), "estimated_host_seconds");
    assert!(host_s > 2.0 * own_s, "{host_s} s, without the sum {own_s} s");
}

#[needs(pytorch, nightly)]
#[test]
fn a_program_that_asks_for_the_gpus_memory_runs_on_one_of_that_size() {
    let torch = Torch::new("plan-asks", BLOCKS);
    let small = planned(&torch, &["--gpu=4GiB"], &["asks"], 0);
    let large = planned(&torch, &["--gpu=6GiB"], &["asks"], 0);
    // The trials have more memory than either GPU.
    assert!(peak(&small["planned"]) < peak(&large["planned"]) / 2, "{small} {large}");
    assert_eq!(peak(&small["planned"]), peak(&small["tried"][0]), "{small}");
}

#[needs(pytorch, nightly)]
#[test]
fn memory_that_grows_after_the_first_steps_counts() {
    let torch = Torch::new("plan-grows", &GROWS.replace("MODEL", model()));
    let plan = planned(&torch, &["--gpu=1GiB", "--numbers=identical"], &[], 0);
    let said = plan["checked"].as_str().expect("why it does not fit");
    assert!(
        said.contains("as it is fits in its trial, but not in a longer simulation")
            && said.contains("in step"),
        "{plan}"
    );
    // Trials then run just as long.
    assert_eq!(plan["tried"][0]["fits"], false, "{plan}");
    assert!(peak(&plan["tried"][0]) > 1 << 30, "{plan}");
    let chosen = row(&plan, plan["chosen"].as_str().expect("a set")).expect("a row");
    assert!(!chosen["set"].as_str().unwrap_or_default().is_empty(), "{plan}");
    // It ran six steps without growth, and the peak covers all steps.
    assert!(chosen["steps"].as_u64().is_some_and(|it| (12..30).contains(&it)), "{plan}");
    assert_eq!(peak(&plan["planned"]), peak(chosen), "{plan}");
}

#[needs(pytorch, nightly)]
#[test]
fn a_value_that_decides_a_size_is_named_and_can_be_assumed() {
    let program = "
import torch
weight = torch.ones(1024, 1024, device='cuda', requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
for step in range(4):
    rows = int((torch.rand(4096, device='cuda') > 0.5).sum())
    (torch.randn(rows, 1024, device='cuda') @ weight).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
";
    let torch = Torch::new("plan-values", program);
    let zero = planned(&torch, &["--gpu=1GiB"], &[], 0);
    let decides = &zero["tried"][0]["depends_on_values"][0];
    assert!(decides["place"].as_str().is_some_and(|it| it.ends_with("train.py:6")), "{zero}");
    assert!(decides["decides"].as_str().is_some_and(|it| it.contains("decides a size")), "{zero}");
    let half = planned(&torch, &["--gpu=1GiB", "--assume=train.py:6=2048"], &[], 0);
    // Rows of 4 KiB: at least the input, the product and the gradient of its square.
    assert!(peak(&half["planned"]) > peak(&zero["planned"]) + 2 * (2048 << 12), "{zero} {half}");
    let text =
        plimsoll(&arguments(&torch, &["--gpu=1GiB"], &[]).iter().map(String::as_str).collect::<Vec<_>>());
    assert!(stdout(&text).contains("Depends on device values") && stdout(&text).contains("train.py:6"));
}

#[needs(pytorch, nightly)]
#[test]
fn a_program_that_catches_running_out_of_memory_and_goes_on_fits() {
    let torch = Torch::new("plan-catches", &CATCHES.replace("MODEL", model()));
    // 700 MiB unmodified; a quarter of the batch fits.
    let plan = planned(&torch, &["--gpu=400MiB"], &[], 0);
    let summary = plan["summary"].as_str().expect("a sentence");
    assert!(
        summary.contains("fits")
            && summary.contains("as it is, because the program catches the out-of-memory error"),
        "{plan}"
    );
    let caught = &plan["tried"][0]["caught"];
    assert!(caught["failures"].as_u64().is_some_and(|it| it > 0) && caught["steps"] == 4, "{plan}");
    assert!(caught["peak_reserved_bytes"].as_u64().is_some_and(|it| it <= 400 << 20), "{plan}");
    // Without a limit it doubles its batch until memory runs out, with any capacity.
    let plan = planned(&torch, &["--gpu=400MiB"], &["doubles"], 0);
    assert!(
        plan["summary"].as_str().is_some_and(|it| it.contains("catches the out-of-memory error")),
        "{plan}"
    );
    // A skipped step does not count as a step.
    let plan = planned(&torch, &["--gpu=400MiB", "--numbers=identical"], &["skips"], 0);
    assert_eq!(
        (&plan["tried"][0]["fits"], &plan["tried"][0]["caught"]),
        (&Value::Bool(false), &Value::Null),
        "{plan}"
    );
    let chosen = plan["chosen"].as_str().expect("a set");
    assert!(chosen.contains("checkpoint") || chosen.contains("offload"), "{plan}");
}

/// Whether the program fits with a set and a batch size, according to a separate prediction.
fn fits(torch: &Torch, set: &str, batch: u64) -> bool {
    let mut options = vec!["--cc=8.0", "--context=0", "--gpu=400MiB"];
    if !set.is_empty() {
        options.extend(["--with", set]);
    }
    torch.predict(&options, &[&batch.to_string()]).status.success()
}

#[needs(pytorch, nightly)]
#[test]
fn the_largest_batch_is_named_as_the_program_is_and_with_a_set() {
    let torch = Torch::new("plan-batch", &BATCHED.replace("MODEL", model()));
    let largest = |plan: &Value, nth: usize| {
        let row = &plan["largest_batch"][nth];
        (row["set"].as_str().expect("a set").to_owned(), row["batch"].as_u64().expect("a batch"))
    };
    // Without a goal, the batch is the goal.
    let options = ["--gpu=400MiB", "--numbers=identical", "--batch=8..64"];
    let plan = planned(&torch, &options, &["{BATCH}"], 0);
    let (as_it_is, with_set) = (largest(&plan, 0), largest(&plan, 1));
    assert_eq!((as_it_is.0.as_str(), plan["chosen"].as_str()), ("", Some(with_set.0.as_str())), "{plan}");
    assert!(as_it_is.1 < with_set.1 && plan["batch"].as_u64() == Some(with_set.1), "{plan}");
    assert!(fits(&torch, "", as_it_is.1) && !fits(&torch, "", as_it_is.1 + 1), "{plan}");
    assert!(fits(&torch, &with_set.0, with_set.1), "{plan}");
    // For one batch that fits, the largest one is also named.
    let plan = planned(&torch, &["--gpu=400MiB", "--batch=4"], &["{BATCH}"], 0);
    let said = format!("as it is, the largest batch is {}", as_it_is.1);
    assert!(plan["summary"].as_str().is_some_and(|it| it.contains("fits") && it.contains(&said)), "{plan}");
    assert!(plan["command"].as_str().is_some_and(|it| it.ends_with("train.py 4")), "{plan}");
}

#[needs(pytorch, nightly)]
#[test]
fn the_least_memory_and_the_fastest_step_are_those_of_all_rows() {
    let torch = Torch::new("plan-goals", BLOCKS);
    let chosen = |plan: &Value| row(plan, plan["chosen"].as_str().expect("a set")).expect("a row").clone();
    let memory = planned(&torch, &["--gpu=4GiB", "--goal=memory", "--numbers=identical"], &[], 0);
    let bytes = |row: &Value| row["peak_reserved_bytes"].as_u64();
    let least = memory["tried"].as_array().into_iter().flatten().filter_map(bytes).min();
    assert_eq!(bytes(&chosen(&memory)), least, "{memory}");
    let set = memory["chosen"].as_str().expect("a set").to_owned();
    assert!(set.contains("checkpoint") && set.contains("step-in-backward"), "{memory}");
    // If any of its techniques is removed, it needs at least as much memory.
    for name in set.split(',') {
        let fewer = set.split(',').filter(|it| *it != name).collect::<Vec<_>>().join(",");
        let fewer = row(&memory, &fewer).expect("a row");
        assert!(bytes(fewer) >= least || fewer["effective"] == false, "{memory}");
    }
    let speed = planned(&torch, &["--gpu=4GiB", "--goal=speed"], &[], 0);
    let seconds = |row: &Value| row["estimated_step_seconds"].as_f64().expect("seconds");
    let is_faster = |row: &Value| seconds(row) < 0.985 * seconds(&chosen(&speed));
    let tried = speed["tried"].as_array().expect("rows");
    assert!(
        !tried.iter().any(|row| row["fits"] == true && row["effective"] == true && is_faster(row)),
        "{speed}"
    );
    assert!(seconds(row(&speed, "fused").expect("a row")) < seconds(&tried[0]), "{speed}");
}

#[needs(pytorch, nightly)]
#[test]
fn a_trial_that_hangs_is_a_row_and_the_search_goes_on() {
    let torch = Torch::new("plan-hangs", BLOCKS);
    let plan = planned(&torch, &["--gpu=200MiB", "--numbers=identical", "--timeout=25s"], &["hangs"], 4);
    let hung = row(&plan, "checkpoint").expect("a row");
    assert!(hung["objection"].as_str().is_some_and(|it| it.contains("stopped after 25 s")), "{plan}");
    assert!(row(&plan, "offload").is_some_and(|it| it["peak_allocated_bytes"].is_u64()), "{plan}");
}

#[needs(pytorch, nightly)]
#[test]
fn a_trial_beyond_the_time_of_a_search_ends_it() {
    let torch = Torch::new("plan-late", BLOCKS);
    let begun = Instant::now();
    let options = ["--gpu=200MiB", "--numbers=identical", "--timeout=20m", "--within=10s"];
    let plan = planned(&torch, &options, &["hangs"], 4);
    assert!(begun.elapsed() < Duration::from_secs(300), "{:?}", begun.elapsed());
    assert!(row(&plan, "checkpoint").is_none(), "{plan}");
    assert!(plan["summary"].as_str().is_some_and(|it| it.contains("within --within")), "{plan}");
}

#[needs(pytorch, nightly)]
#[test]
fn an_evaluation_between_steps_is_no_part_of_a_step() {
    let torch = Torch::new("plan-evaluates", BLOCKS);
    let plan = planned(&torch, &["--gpu=400MiB", "--numbers=identical"], &["evaluates"], 0);
    // Two matrix products with 4096 rows in each of six blocks.
    let forward = 6 * 2 * (2 * 4096 * 512 * 2048_u64);
    let checkpointed = row(&plan, "checkpoint").expect("a row");
    assert_eq!(checkpointed["extra_flops"].as_u64(), Some(forward), "{plan}");
}

#[needs(pytorch, nightly)]
#[test]
fn expandable_segments_act_in_a_trial_as_from_the_beginning() {
    // PyTorch 2.8 reads its settings from another variable.
    let torch = Torch::new("plan-expandable", BLOCKS);
    let plan = planned(&torch, &["--gpu=400MiB", "--numbers=identical"], &[], 0);
    let trial = row(&plan, "expandable").expect("a row");
    let whole = answer(&torch.predict(&["--gpu=8GiB", "--with=expandable", "--json"], &[]), 0);
    assert_eq!(trial["peak_reserved_bytes"], whole["judged"]["peak_reserved_bytes"], "{plan}");
    assert_ne!(trial["peak_reserved_bytes"], plan["tried"][0]["peak_reserved_bytes"], "{plan}");
}

/// Two models without repeated blocks, each with an optimizer; almost all of the memory is activations.
const MODELS: &str = "
import torch, torch.nn as nn
class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        for nth in range(6):
            setattr(self, f'up{nth}', nn.Linear(512, 2048))
            setattr(self, f'down{nth}', nn.Linear(2048, 512))
    def forward(self, x):
        for nth in range(6):
            x = getattr(self, f'down{nth}')(nn.functional.gelu(getattr(self, f'up{nth}')(x)))
        return x.square()
class Critic(Actor):
    pass
models = [Actor().cuda(), Critic().cuda()]
optimizers = [torch.optim.SGD(model.parameters()) for model in models]
for step in range(4):
    x = torch.randn(4096, 512, device='cuda')
    loss = models[0](x).mean() + models[1](x).mean()
    for optimizer in optimizers:
        optimizer.zero_grad()
    loss.backward()
    for optimizer in optimizers:
        optimizer.step()
";

#[needs(pytorch, nightly)]
#[test]
fn the_lines_name_each_of_several_models() {
    let torch = Torch::new("plan-models", MODELS);
    let plan = planned(&torch, &["--gpu=700MiB", "--numbers=identical"], &[], 0);
    let lines: Vec<&str> =
        plan["lines"].as_array().expect("lines").iter().filter_map(Value::as_str).collect();
    let offloads: Vec<&&str> =
        lines.iter().filter(|line| line.starts_with("plimsoll.offload(model")).collect();
    assert_eq!(offloads.len(), 2, "{lines:?}");
    assert!(
        offloads[0].ends_with("  # model: Actor") && offloads[1].ends_with("  # model: Critic"),
        "{lines:?}"
    );
}

#[needs(pytorch, nightly)]
#[test]
fn an_interrupted_search_reports_what_it_knows() {
    let torch = Torch::new("plan-interrupt", BLOCKS);
    let mut program = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    program.args(arguments(&torch, &["--gpu=400MiB", "--json"], &["slow"]));
    let mut child = program.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut progress = BufReader::new(child.stderr.take().expect("stderr")).lines();
    let tried = progress.by_ref().map_while(Result::ok).find(|line| line.starts_with("tried expandable"));
    assert!(tried.is_some());
    signal(child.id(), "INT");
    // Keep reading, so that its stderr does not fill up.
    progress.for_each(drop);
    let mut text = String::new();
    child.stdout.take().expect("stdout").read_to_string(&mut text).expect("text");
    assert_eq!(child.wait().expect("it ends").code(), Some(4));
    let plan: Value = serde_json::from_str(&text).expect("one JSON value");
    assert_eq!(
        (&plan["complete"], &plan["tried"][0]["set"]),
        (&Value::Bool(false), &Value::from("")),
        "{plan}"
    );
    assert!(plan["summary"].as_str().is_some_and(|it| it.starts_with("interrupted; so far")), "{plan}");
}

#[test]
fn a_plan_for_a_program_that_fails_or_uses_no_gpu_says_so() {
    for (command, code, said) in [("exit 3", 5, "exit status 3"), ("echo hello", 4, "torch was not imported")]
    {
        let output = plimsoll(&["plan", "--gpu", "T4", "--json", "--", "sh", "-c", command]);
        let plan = answer(&output, code);
        assert!(plan["summary"].as_str().is_some_and(|it| it.contains(said)), "{plan}");
    }
    let output = plimsoll(&["plan", "--gpu", "T4", "--timeout=1s", "--", "sleep", "60"]);
    assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
    assert!(stdout(&output).contains("stopped after 1 s"), "{}", stdout(&output));
}
