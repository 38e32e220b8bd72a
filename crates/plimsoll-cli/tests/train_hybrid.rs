//! `plimsoll train gpt --parallel replicate=R,shard=S`: groups of ranks that share a model. Results are bit-identical
//! to data parallelism, only the first group saves, a killed rank is named, and a simulated rank reports the same
//! memory as a real one.

use std::time::{Duration, Instant};
use std::{fs, thread};

use serde_json::Value;

use crate::program::{Folder, json, plimsoll, small_gpt, stderr, stdout};

const HYBRID: [&str; 4] = ["--parallel", "replicate=2,shard=2", "--ranks", "4"];

fn result(args: &[&str]) -> Value {
    small_gpt::result("8", args)
}

#[test]
fn groups_that_share_a_model_have_the_bits_of_data_parallel_ranks_and_one_saves() {
    let folder = Folder::new("hybrid-bits");
    let (hybrid, ddp) = (folder.file("hybrid"), folder.file("ddp"));
    let steps = |steps: &'static str| ["--steps", steps, "--dropout", "0.1"];
    let four = ["--parallel", "ddp", "--ranks", "4"];
    let expected = result(&[&four[..], &steps("4"), &["--save", &ddp]].concat());
    let found = result(&[&HYBRID[..], &steps("4"), &["--save", &hybrid]].concat());
    for key in ["losses", "validation_losses", "sample", "parameters"] {
        assert_eq!(found[key], expected[key], "{key}");
    }
    assert_eq!((&found["ranks"]["replicate"], &found["ranks"]["size"]), (&2.into(), &4.into()));
    assert_eq!(found["ranks"]["parallel"], "shard");
    let weights = small_gpt::consolidated;
    assert!(weights(&hybrid) == fs::read(format!("{ddp}/model.safetensors")).expect("weights"));
    assert_eq!(fs::read_dir(format!("{hybrid}/latest/model")).expect("files of ranks").count(), 2);

    // Each resumes the other's run.
    result(&[&four[..], &steps("6"), &["--resume", &hybrid]].concat());
    result(&[&HYBRID[..], &steps("6"), &["--resume", &ddp]].concat());
    assert!(weights(&ddp) == fs::read(format!("{hybrid}/model.safetensors")).expect("weights"));
    let shard = ["--parallel", "shard=2", "--ranks", "2"];
    assert_eq!(result(&[&shard[..], &steps("7"), &["--resume", &ddp]].concat())["steps"], 7);
}

#[test]
fn a_killed_rank_of_a_group_is_named_by_the_ranks_of_all_groups() {
    let folder = Folder::new("hybrid-kill");
    let run = folder.file("run");
    let mut ranks = small_gpt::endless(4, "8", HYBRID[1], &["--save", &run]);
    let start = Instant::now();
    while fs::read_link(format!("{run}/latest")).is_err() {
        assert!(start.elapsed() < Duration::from_secs(60), "nothing is saved");
        thread::sleep(Duration::from_millis(10));
    }
    let killed = Instant::now();
    ranks[3].kill().expect("it runs");
    ranks.remove(3).wait().expect("an end");
    for (rank, child) in ranks.into_iter().enumerate() {
        let output = child.wait_with_output().expect("an end");
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(6), "rank {rank}: {said}");
        assert!(said.contains("rank 3 (host "), "rank {rank}: {said}");
    }
    assert!(killed.elapsed() < Duration::from_secs(3), "{:?}", killed.elapsed());
}

#[test]
fn a_simulated_rank_of_groups_has_the_account_of_a_real_one() {
    let real = result(&[&HYBRID[..], &["--steps", "3"]].concat());
    let way = ["--parallel", "replicate=2,shard=2"];
    let simulated = result(&[&way[..], &["--steps", "3", "--device", "sim", "--sim-ranks", "4"]].concat());
    for key in ["units", "slot_bytes", "sent_bytes_per_step", "peaks", "size", "replicate"] {
        assert_eq!(real["ranks"][key], simulated["ranks"][key], "{key}");
    }
    assert_eq!(real["memory"]["peak_by_category"], simulated["memory"]["peak_by_category"]);
    let wide = ["--layers", "4", "--width", "512", "--heads", "8", "--context", "64", "--batch-size", "1024"];
    let many = ["--parallel", "replicate=2,shard=512", "--sim-ranks", "1024", "--device", "sim:H200"];
    let output = plimsoll(&[&["train", "gpt", "--steps", "2"], &wide[..], &many].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = stdout(&output);
    assert!(text.contains("; 2 ranks have the same") && text.contains("on each of 1024 ranks"), "{text}");
}

#[test]
fn sizes_of_groups_that_do_not_fit_are_refused_before_any_file_is_read() {
    let refused = |args: &[&str], expected: &str| {
        small_gpt::refused("8", &[&["--parallel"], args].concat(), expected);
    };
    refused(
        &["replicate=2,shard=3", "--ranks", "4"],
        "--parallel replicate=2,shard=3, but there are 4 ranks: the product of R and S must be the number of ranks",
    );
    refused(&["replicate=2,shard=512", "--device", "sim", "--sim-ranks", "8"], "there are 8 ranks");
    refused(&["replicate=2,shard=4294967296", "--ranks", "2"], "there are 2 ranks");
    refused(&["replicate=0,shard=4", "--ranks", "4"], "`0` is not a number of ranks: use replicate=N");
    refused(
        &["replicate=2", "--ranks", "2"],
        "use ddp, shard, shard=N, replicate=R,shard=S, tp=N or dp=D,tp=T",
    );
    refused(&["shard=2,replicate=2", "--ranks", "4"], "use ddp, shard");
    refused(&["replicate=2,shard=2", "--ranks", "4", "--capture"], "not with shard");
}

#[test]
fn a_plan_for_several_hosts_tries_groups_of_a_host() {
    let job = ["train", "gpt", "--layers", "4", "--width", "512", "--heads", "8", "--context", "128"];
    let plan = |gpus: &str, more: &[&str]| {
        let args = ["--batch-size", "32", "--plan", gpus, "--json"];
        let output = plimsoll(&[&job[..], &args, more].concat());
        json(&output)
    };
    let ways = |answer: &Value| {
        let rows = answer["rows"].as_array().expect("rows").iter();
        let first = |row: &Value| row["options"][0].as_str().expect("options").to_owned();
        rows.map(first).collect::<Vec<String>>()
    };
    let two_hosts = plan("16xH100", &[]);
    let hybrid = "--parallel replicate=2,shard=8".to_owned();
    assert!(ways(&two_hosts).contains(&hybrid), "{two_hosts}");
    // Gathers within a host are faster than those across hosts.
    let ms = |way: &str| {
        let rows = two_hosts["rows"].as_array().expect("rows");
        let row = rows.iter().find(|row| row["options"] == serde_json::json!([way])).expect("the way");
        row["estimated_step_ms"].as_f64().expect("a time")
    };
    assert!(ms(&hybrid) < ms("--parallel shard"), "{two_hosts}");
    assert!(!ways(&plan("8xH100", &[])).iter().any(|way| way.contains("replicate")));
    // Groups grow until one fits.
    let small = ways(&plan("32xH100", &["--memory-limit", "64MiB"]));
    assert!(small.contains(&"--parallel replicate=2,shard=16".to_owned()), "{small:?}");
}
