//! `plimsoll train gpt --parallel shard`: the bits of `--parallel ddp`, a checkpoint that any number of ranks resumes, and an
//! account of one of many ranks.

use std::fs;
use std::process::Output;

use serde_json::Value;

use crate::program::{Folder, json, plimsoll, stderr, stdout};

/// A model whose matrices are large enough to be cut.
const SMALL: [&str; 14] = [
    "train",
    "gpt",
    "--layers",
    "2",
    "--heads",
    "2",
    "--width",
    "128",
    "--context",
    "8",
    "--batch-size",
    "4",
    "--sample",
    "3",
];
const DDP: [&str; 4] = ["--parallel", "ddp", "--ranks", "2"];
const SHARD: [&str; 4] = ["--parallel", "shard", "--ranks", "2"];

fn gpt(args: &[&str]) -> Output {
    plimsoll(&[&SMALL[..], args].concat())
}

fn result(args: &[&str]) -> Value {
    let output = gpt(&[args, &["--json"]].concat());
    assert_eq!(output.status.code(), Some(0), "{args:?}: {}", stderr(&output));
    json(&output)
}

#[test]
fn sharded_ranks_have_the_bits_of_data_parallel_ones_and_resume_each_others_runs() {
    let folder = Folder::new("sharded-bits");
    let weights =
        |name: &str| fs::read(folder.0.join(name).join("model.safetensors")).expect("saved weights");
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
    assert_eq!(resume("ddp", "10", &[])["steps"], 10);
    let four = ["--parallel", "shard=4", "--ranks", "4"];
    assert_eq!(resume("ddp", "11", &four)["ranks"]["size"], 4);
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
    let refused = |args: &[&str], expected: &str| {
        let output = gpt(&[&["--data", "/nowhere/text"], args].concat());
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(expected), "{args:?}: {}", stderr(&output));
    };
    refused(
        &["--parallel", "shard=4", "--ranks", "2"],
        "--parallel shard=4, but there are 2 ranks: all ranks form one group, so N must be the number of ranks",
    );
    refused(&["--parallel", "shard=3", "--device", "sim", "--sim-ranks", "4"], "there are 4 ranks");
    refused(&["--parallel", "shard", "--ranks", "3"], "must be a multiple of 3");
    refused(&["--parallel", "shard=0", "--ranks", "2"], "`0` is not a number of ranks: use shard=N");
    refused(&["--parallel", "tp=2", "--ranks", "2"], "use ddp, shard or shard=N");
    refused(
        &["--parallel", "ddp", "--shard", "gradients", "--ranks", "2"],
        "--shard is for --parallel shard",
    );
    refused(&["--shard", "gradients"], "--parallel <ddp|shard[=N]>");
    refused(&["--parallel", "shard", "--ranks", "2", "--capture"], "not with shard");
    refused(&["--parallel", "shard", "--ranks", "2", "--device", "cuda:1"], "each rank uses its own GPU");
}
