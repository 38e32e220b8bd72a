//! `plimsoll train gpt --parallel shard`: results bit-identical to `--parallel ddp`, a checkpoint that any number of
//! ranks and PyTorch can load no matter what happens while it is saved, and the memory of one of many ranks.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use plimsoll_needs::needs;
use serde_json::Value;

use crate::program::{Folder, json, plimsoll, small_gpt, stderr, stdout};

const DDP: [&str; 4] = ["--parallel", "ddp", "--ranks", "2"];
const SHARD: [&str; 4] = ["--parallel", "shard", "--ranks", "2"];

fn gpt(args: &[&str]) -> Output {
    small_gpt::train("4", args)
}

fn result(args: &[&str]) -> Value {
    small_gpt::result("4", args)
}

#[test]
fn sharded_ranks_have_the_bits_of_data_parallel_ones_and_resume_each_others_runs() {
    let folder = Folder::new("sharded-bits");
    let weights = |name: &str| {
        let run = folder.0.join(name);
        if run.join("latest").exists() {
            consolidate(&run, &["--force"]);
        }
        fs::read(run.join("model.safetensors")).expect("saved weights")
    };
    let run = |name: &str, steps: &str, how: &[&str]| {
        result(&[how, &["--steps", steps, "--dropout", "0.1", "--save", &folder.file(name)]].concat())
    };
    let ddp = run("ddp", "6", &DDP);
    for what in ["parameters", "gradients", "optimizer-state", "nothing"] {
        let sharded = run(what, "6", &[&SHARD[..], &["--shard", what]].concat());
        for key in ["losses", "validation_losses", "sample", "parameters"] {
            assert_eq!(sharded[key], ddp[key], "{what}: {key}");
        }
        assert_eq!(sharded["ranks"]["shard"], what);
        assert!(weights(what) == weights("ddp"), "{what}: other weights");
    }
    let resume = |name: &str, steps: &str, how: &[&str]| {
        result(&[how, &["--steps", steps, "--dropout", "0.1", "--resume", &folder.file(name)]].concat())
    };
    run("whole", "9", &DDP);
    resume("parameters", "9", &DDP);
    resume("ddp", "9", &SHARD);
    assert!(weights("parameters") == weights("whole") && weights("ddp") == weights("whole"));
    let file = |name: &str| folder.0.join("ddp").join(name);
    assert!(file("step-00000009").exists() && !file("checkpoint.safetensors").exists());
    assert!(file("checkpoint-previous.safetensors").exists(), "the last one of data parallel ranks");
    // One process: the folders of ranks are old, and go with the second checkpoint.
    let one =
        result(&["--steps", "11", "--save-every", "1", "--dropout", "0.1", "--resume", &folder.file("ddp")]);
    assert_eq!(one["steps"], 11);
    assert!(file("checkpoint.safetensors").exists() && !file("step-00000009").exists());
    let four = ["--parallel", "shard=4", "--ranks", "4"];
    assert_eq!(resume("ddp", "12", &four)["ranks"]["size"], 4);
    assert_eq!(fs::read_dir(file("latest/model")).expect("the files of ranks").count(), 4);
    // The path of one checkpoint also works: the run is its parent folder.
    let latest = folder.file("ddp/latest");
    let six = result(&["--steps", "13", "--dropout", "0.1", "--resume", &latest]);
    assert_eq!((six["steps"].as_u64(), six["saved"].as_str()), (Some(13), Some(folder.file("ddp").as_str())));
}

/// Makes one file of the newest checkpoint.
fn consolidate(run: &Path, more: &[&str]) -> Value {
    let run = run.to_string_lossy();
    let output = plimsoll(&[&["checkpoint", "consolidate", &run, "--json"], more].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    json(&output)
}

/// The rows of rank 1 of 3, which holds only these: what two ranks have saved.
const READ: &str = r#"
import sys, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import GPT2Config, GPT2LMHeadModel
run, rank, ranks = sys.argv[1], 1, 3
whole = GPT2LMHeadModel.from_pretrained(run).state_dict()
dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
model = GPT2LMHeadModel(GPT2Config.from_pretrained(run))
for block in model.transformer.h:
    fully_shard(block)
fully_shard(model)
state = model.state_dict()
del state["lm_head.weight"], whole["lm_head.weight"]  # tied
dcp.load(state, storage_reader=dcp.HuggingFaceStorageReader(run + "/latest/model"), no_dist=True)
assert sorted(state) == sorted(whole), set(state) ^ set(whole)
for name, value in state.items():
    assert torch.equal(value.to_local(), whole[name].chunk(ranks)[rank]), name
adam = dcp.HuggingFaceStorageReader(run + "/latest/optimizer").read_metadata().state_dict_metadata
name = "transformer.wte.weight"
assert adam[f"state.{name}.exp_avg"].size == whole[name].shape, adam
print("ok", len(whole))
"#;

#[needs(pytorch)]
#[test]
fn fsdp_loads_the_checkpoint_and_transformers_the_consolidated_one() {
    let folder = Folder::new("sharded-pytorch");
    let run = folder.file("run");
    result(&[&SHARD[..], &["--steps", "2", "--save", &run]].concat());
    let answer = consolidate(Path::new(&run), &[]);
    assert_eq!(answer["file"], format!("{run}/model.safetensors"));
    let python = std::env::var("PLIMSOLL_PYTORCH").expect("needs pytorch");
    let output = Command::new(python).args(["-c", READ, &run]).output().expect("python");
    assert!(output.status.success(), "{}", stderr(&output));
    let names = answer["tensors"].as_u64().expect("tensors");
    assert_eq!(stdout(&output).trim(), format!("ok {names}"));
}

#[test]
fn a_checkpoint_is_consolidated_into_a_file_that_is_not_there() {
    let folder = Folder::new("sharded-consolidate");
    let run = folder.file("run");
    result(&[&SHARD[..], &["--steps", "1", "--save", &run]].concat());
    let refused = |args: &[&str], code: i32, expected: &str| {
        let output = plimsoll(&[&["checkpoint", "consolidate"], args].concat());
        assert_eq!(output.status.code(), Some(code), "{args:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(expected), "{args:?}: {}", stderr(&output));
    };
    refused(&[&format!("{run}/latest/model")], 2, "as the file of one more rank");
    let output = plimsoll(&["checkpoint", "consolidate", &run]);
    let expected = format!("{run}/model.safetensors has the weights of {run}/step-00000001/model: ");
    assert!(stdout(&output).starts_with(&expected), "{}{}", stdout(&output), stderr(&output));
    refused(&[&run], 2, "already exists: add --force to replace it");
    refused(&[&folder.file("nothing")], 3, "nothing");
    let other = folder.file("empty");
    fs::create_dir(&other).expect("a folder");
    refused(&[&other], 3, "no checkpoint of several ranks");
    // A run does not replace the checkpoint of another one.
    let output = gpt(&[&SHARD[..], &["--steps", "1", "--save", &run]].concat());
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains("step-00000001 already exists: add --resume"), "{}", stderr(&output));
    // A file of a rank is damaged: the older checkpoint is named, and loads.
    result(&[&SHARD[..], &["--steps", "2", "--resume", &run]].concat());
    let file = format!("{run}/latest/model/shard-00002-model-00001-of-00001.safetensors");
    let mut bytes = fs::read(&file).expect("a file");
    let last = bytes.len() - 1;
    bytes[last] ^= 4;
    fs::write(&file, bytes).expect("a file");
    refused(&[&run, "--force"], 3, "is damaged, its checksum differs; the last good checkpoint is");
    for how in [&SHARD[..], &[]] {
        let output = gpt(&[how, &["--steps", "3", "--resume", &run]].concat());
        let said = stderr(&output);
        assert!(matches!(output.status.code(), Some(3 | 6)), "{said}");
        assert!(said.contains("shard-00002-") && said.contains("` is damaged"), "{said}");
        assert!(said.contains("the last good checkpoint is") && said.contains("step-00000001"), "{said}");
    }
    let resumed =
        result(&[&SHARD[..], &["--steps", "2", "--resume", &format!("{run}/step-00000001")]].concat());
    assert_eq!(resumed["steps"], 2);
}

/// Kills one of two constantly saving ranks `times` times, and resumes each time.
fn kill_and_resume(times: u64, name: &str, more: &[&str]) {
    let folder = Folder::new(name);
    let run = folder.file("run");
    result(&[&SHARD[..], &["--steps", "1", "--save", &run]].concat());
    let newest = || fs::read_link(format!("{run}/latest")).expect("a checkpoint");
    for round in 0..times {
        let (start, before) = (Instant::now(), newest());
        let mut ranks = small_gpt::endless(2, "4", SHARD[1], &[&["--resume", &run], more].concat());
        while newest() == before {
            assert!(start.elapsed() < Duration::from_secs(60), "round {round}: nothing is saved");
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_micros(round * 7919 % 40_000));
        ranks[(round % 2) as usize].kill().expect("it runs");
        for mut rank in ranks {
            rank.wait().expect("an end");
        }
        assert!(newest() > before, "round {round}");
    }
    // One process reads all of it.
    let step: u64 = newest().to_string_lossy()["step-".len()..].parse().expect("a step");
    let resumed = result(&["--steps", &(step + 1).to_string(), "--resume", &run]);
    assert_eq!(resumed["steps"], step + 1);
}

#[test]
fn a_rank_that_is_killed_while_saving_costs_no_checkpoint() {
    kill_and_resume(4, "sharded-kill", &[]);
    kill_and_resume(4, "sharded-kill-async", &["--save-async"]);
}

#[test]
#[ignore = "takes half an hour"]
fn a_thousand_killed_ranks_cost_no_checkpoint() {
    kill_and_resume(1000, "sharded-kills", &[]);
}

#[test]
#[ignore = "takes half an hour"]
fn a_thousand_killed_ranks_cost_no_checkpoint_of_a_thread() {
    kill_and_resume(1000, "sharded-kills-async", &["--save-async"]);
}

#[test]
fn a_simulated_rank_has_the_account_of_a_real_one() {
    let real = result(&[&SHARD[..], &["--steps", "3"]].concat());
    let sim = ["--parallel", "shard=2", "--device", "sim", "--sim-ranks", "2", "--steps", "3"];
    let simulated = result(&sim);
    for key in ["units", "slot_bytes", "sent_bytes_per_step", "peaks", "size"] {
        assert_eq!(real["ranks"][key], simulated["ranks"][key], "{key}");
    }
    assert_eq!(real["ranks"]["peaks"][0], real["ranks"]["peaks"][1]);
    assert_eq!(real["memory"]["peak_by_category"], simulated["memory"]["peak_by_category"]);
    let text = |how: &[&str]| {
        let args = [
            "train", "gpt", "--steps", "2", "--device", "sim:H200", "--layers", "12", "--heads", "12",
            "--width", "768",
        ];
        let rest = ["--context", "256", "--batch-size", "1024"];
        let output = plimsoll(&[&args[..], &rest, how].concat());
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        stdout(&output)
    };
    for ranks in ["64", "1024"] {
        let text = text(&["--parallel", &format!("shard={ranks}"), "--sim-ranks", ranks]);
        assert!(text.contains("whole parameters") && text.contains(" units, padded"), "{text}");
        assert!(
            text.contains("buffers to gather them") && text.contains(&format!("on each of {ranks} ranks")),
            "{text}"
        );
    }
}

#[test]
fn sizes_that_do_not_fit_are_refused_before_any_file_is_read() {
    let refused = |args: &[&str], expected: &str| small_gpt::refused("4", args, expected);
    refused(
        &["--parallel", "shard=4", "--ranks", "2"],
        "--parallel shard=4, but there are 2 ranks: all ranks form one group, so N must be the number of ranks",
    );
    refused(&["--parallel", "shard=3", "--device", "sim", "--sim-ranks", "4"], "there are 4 ranks");
    refused(&["--parallel", "shard", "--ranks", "3"], "must be a multiple of 3");
    refused(&["--parallel", "shard=0", "--ranks", "2"], "`0` is not a number of ranks: use shard=N");
    refused(
        &["--parallel", "pp=2", "--ranks", "2"],
        "use ddp, shard, shard=N, replicate=R,shard=S, tp=N or dp=D,tp=T",
    );
    refused(
        &["--parallel", "ddp", "--shard", "gradients", "--ranks", "2"],
        "--shard is for --parallel shard",
    );
    refused(&["--shard", "gradients"], "--parallel <ddp|shard[=N]|replicate=R,shard=S|tp=N|dp=D,tp=T>");
    refused(&["--parallel", "shard", "--ranks", "2", "--capture"], "not with shard");
    refused(&["--parallel", "shard", "--ranks", "2", "--device", "cuda:1"], "each rank uses its own GPU");
}

#[test]
fn the_timeline_of_a_simulated_step_shows_gathers_beside_kernels() {
    let folder = Folder::new("sharded-timeline");
    let file = folder.file("step.json");
    let wide =
        ["--layers", "8", "--width", "1024", "--heads", "16", "--context", "512", "--batch-size", "16"];
    let simulated = ["--parallel", "shard", "--sim-ranks", "2", "--device", "sim:H100", "--steps", "4"];
    let run = |args: &[&str]| plimsoll(&[&["train", "gpt"], &wide[..], &simulated, args].concat());
    let output = run(&["--timeline", &file, "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let ms = json(&output)["estimated_step_ms"].as_f64().expect("an estimate");
    let trace: Value = serde_json::from_slice(&fs::read(&file).expect("a timeline")).expect("JSON");
    let spans: Vec<(&str, u64, f64, f64)> = trace["traceEvents"]
        .as_array()
        .expect("events")
        .iter()
        .filter(|event| event["ph"] == "X")
        .map(|event| {
            let number = |key: &str| event[key].as_f64().expect("a number");
            (
                event["name"].as_str().expect("a name"),
                event["tid"].as_u64().expect("a stream"),
                number("ts"),
                number("dur"),
            )
        })
        .collect();
    let last = spans.iter().map(|(.., start, long)| start + long).fold(0.0, f64::max);
    assert!((last / 1e3 - ms).abs() < 0.05 * ms, "{last} µs and {ms} ms");
    let gathers: Vec<_> = spans.iter().filter(|(name, ..)| *name == "all_gather").collect();
    assert!(gathers.len() >= 15, "{} gathers", gathers.len());
    let hidden = gathers.iter().filter(|(_, stream, start, long)| {
        let beside = |&&(name, other, at, time): &&(&str, u64, f64, f64)| {
            !name.starts_with("all_") && other != *stream && at < start + long && at + time > *start
        };
        spans.iter().filter(beside).count() > 0
    });
    let hidden = hidden.count();
    assert!(hidden * 2 > gathers.len(), "{hidden} of {} gathers are beside kernels", gathers.len());

    let again = run(&["--timeline", &file]);
    assert_eq!(again.status.code(), Some(2));
    assert!(stderr(&again).contains("already exists: add --force"), "{}", stderr(&again));
    let on_cpu = gpt(&["--steps", "1", "--timeline", &folder.file("other.json")]);
    assert_eq!(on_cpu.status.code(), Some(2));
    assert!(stderr(&on_cpu).contains("--timeline is for a simulated GPU"), "{}", stderr(&on_cpu));
}

#[test]
fn a_plan_simulates_each_way_and_prints_the_fastest_that_fits() {
    let job = [
        "train",
        "gpt",
        "--layers",
        "4",
        "--width",
        "512",
        "--heads",
        "8",
        "--context",
        "128",
        "--batch-size",
        "16",
    ];
    let plan = |args: &[&str]| plimsoll(&[&job[..], args].concat());
    let output = plan(&["--plan", "8xH100", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let answer = json(&output);
    crate::schema::check(&answer);
    let rows = answer["rows"].as_array().expect("rows");
    assert_eq!(
        rows.len(),
        2 * (4 + 3),
        "four ways to shard, and 2, 4 and 8 ranks that share layers, each with --checkpoint too"
    );
    let ms = |row: &Value| row["estimated_step_ms"].as_f64().expect("a time");
    assert!(rows.iter().all(|row| row["fits"] == true && ms(row) > 0.0));
    assert!(rows.windows(2).all(|pair| ms(&pair[0]) < ms(&pair[1]) + 0.1), "{rows:?}");
    let command = rows[0]["command"].as_str().expect("a command");
    assert!(
        command.contains("train gpt") && command.contains("--ranks 8") && !command.contains("--plan"),
        "{command}"
    );

    // A row equals what a run in that way reports.
    for way in ["shard", "dp=2,tp=4"] {
        let named = |row: &&Value| row["options"] == serde_json::json!([format!("--parallel {way}")]);
        let row = rows.iter().find(named).expect("this way");
        let run =
            plan(&["--parallel", way, "--sim-ranks", "8", "--device", "sim:H100", "--steps", "4", "--json"]);
        let memory = &json(&run)["memory"];
        for (ours, theirs) in
            [("allocated_bytes", "peak_allocated_bytes"), ("reserved_bytes", "peak_reserved_bytes")]
        {
            assert_eq!(row[ours], memory[theirs], "{way} {ours}");
        }
        assert_eq!(row["outside_bytes"], memory["outside_allocator_bytes"]);
    }

    let small = plan(&["--plan", "8xH100", "--memory-limit", "64MiB"]);
    assert_eq!(small.status.code(), Some(4));
    assert!(stdout(&small).starts_with("does not fit: at least "), "{}", stdout(&small));
    let one = plan(&["--plan", "1xT4"]);
    assert!(stdout(&one).starts_with("one GPU: about "), "{}", stdout(&one));
    for (args, expected) in [
        (&["--plan", "3xH100"][..], "must be a multiple of 3"),
        (&["--plan", "8xH9000"], "`H9000` is not a known GPU"),
        (&["--plan", "H100"], "such as 16xH200"),
        (&["--plan", "8xH100", "--device", "cpu"], "cannot be used with"),
    ] {
        let output = plan(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(stderr(&output).contains(expected), "{args:?}: {}", stderr(&output));
    }
}
