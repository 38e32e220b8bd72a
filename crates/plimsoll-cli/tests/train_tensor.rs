//! `plimsoll train gpt --parallel tp=N` and `dp=D,tp=T`: ranks that share each layer have the losses of one rank, save
//! under the names of the whole model no matter what happens meanwhile, and a simulated rank reports the same memory as
//! a real one.

use std::fs;
use std::process::Output;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::program::{Folder, plimsoll, small_gpt, stderr, stdout};

const TWO: [&str; 4] = ["--parallel", "tp=2", "--ranks", "2"];
const FOUR: [&str; 4] = ["--parallel", "dp=2,tp=2", "--ranks", "4"];

fn gpt(args: &[&str]) -> Output {
    small_gpt::train("8", args)
}

fn result(args: &[&str]) -> Value {
    small_gpt::result("8", args)
}

/// Checks that numbers are equal except for a few rounding errors.
fn close(found: &Value, expected: &Value, what: &str) {
    let numbers = |value: &Value| -> Vec<f64> {
        let all = value.as_array().expect("numbers").iter();
        all.map(|number| number.as_f64().expect("a number")).collect()
    };
    let (found, expected) = (numbers(found), numbers(expected));
    assert_eq!(found.len(), expected.len(), "{what}");
    for (found, expected) in found.iter().zip(&expected) {
        assert!((found / expected - 1.0).abs() < 2e-5, "{what}: {found}, expected {expected}");
    }
}

#[test]
fn ranks_that_share_layers_have_the_losses_and_the_sample_of_one() {
    // Gradients are clipped in each step, so a wrong norm would show up.
    let steps = ["--steps", "20"];
    let one = result(&steps);
    for (how, size) in [(&TWO, 2), (&FOUR, 4)] {
        let found = result(&[&how[..], &steps].concat());
        for key in ["losses", "validation_losses"] {
            let count = |value: &Value| value.as_array().map_or(0, Vec::len);
            assert_eq!(count(&one[key]), 1, "{key}");
            close(&found[key], &one[key], &format!("{how:?}: {key}"));
        }
        for key in ["sample", "parameters", "steps"] {
            assert_eq!(found[key], one[key], "{how:?}: {key}");
        }
        assert!(found["sample"].as_str().is_some_and(|sample| sample.chars().count() == 4), "{found}");
        let ranks = &found["ranks"];
        assert_eq!(
            (&ranks["parallel"], &ranks["tensor"], &ranks["size"]),
            (&"tp".into(), &2.into(), &size.into())
        );
        // Matrices, which make up most of it, are divided.
        let bytes = |of: &Value| of["parameter_bytes"].as_u64().expect("bytes");
        assert!(bytes(&found) < bytes(&one) * 52 / 100, "{} of {}", bytes(&found), bytes(&one));
    }
    let output = gpt(&[&FOUR[..], &["--steps", "2"]].concat());
    let text = stdout(&output);
    assert!(
        text.contains("one rank's parameters") && text.contains("of 2 ranks that share each layer"),
        "{text}"
    );
    assert!(text.contains("buckets of gradients") && text.contains("reserved at the peak"), "{text}");
}

#[test]
fn any_number_of_ranks_resumes_what_ranks_that_share_layers_have_saved() {
    let folder = Folder::new("tensor-saves");
    let path = |name: &str| folder.file(name);
    let file = |run: &str, name: &str| fs::read(folder.0.join(run).join(name)).expect("a file");
    let (one, two) = (path("one"), path("two"));
    // What one rank has saved, as two and four save it without training: the same values.
    result(&["--steps", "4", "--save", &one]);
    for (how, name) in [(&TWO, "two"), (&FOUR, "four")] {
        let run = path(name);
        result(&[&how[..], &["--steps", "4", "--resume", &one, "--save", &run]].concat());
        assert!(small_gpt::consolidated(&run) == file("one", "model.safetensors"), "{name}");
        assert_eq!(fs::read_dir(format!("{run}/latest/model")).expect("files of ranks").count(), 2);
        // And as one rank saves it again, with the optimizer's state.
        let back = path(&format!("{name}-back"));
        result(&["--steps", "4", "--resume", &run, "--save", &back]);
        for saved in ["model.safetensors", "checkpoint.safetensors"] {
            assert!(file(&format!("{name}-back"), saved) == file("one", saved), "{name}: {saved}");
        }
    }
    // The losses are the same, however training continues.
    let more = ["--steps", "8"];
    let expected = result(&[&more[..], &["--resume", &one, "--save", &path("rest")]].concat());
    let shard = ["--parallel", "shard", "--ranks", "2"];
    for how in [&TWO[..], &FOUR, &shard, &[]] {
        let found = result(&[how, &more, &["--resume", &two, "--save", &path("other"), "--force"]].concat());
        close(&found["losses"], &expected["losses"], &format!("{how:?}"));
    }
    let sharded = path("sharded");
    result(&[&shard[..], &["--steps", "4", "--resume", &one, "--save", &sharded]].concat());
    let found = result(&[&TWO[..], &more, &["--resume", &sharded]].concat());
    close(&found["losses"], &expected["losses"], "sharded before");
    // A resumed run is bit-identical to an uninterrupted one.
    let (whole, halves) = (path("whole"), path("halves"));
    let dropout = |steps: &'static str| ["--dropout", "0.1", "--steps", steps];
    result(&[&TWO[..], &dropout("6"), &["--save", &whole]].concat());
    result(&[&TWO[..], &dropout("3"), &["--save", &halves]].concat());
    result(&[&TWO[..], &dropout("6"), &["--resume", &halves]].concat());
    assert!(small_gpt::consolidated(&whole) == small_gpt::consolidated(&halves));
}

#[test]
fn a_vocabulary_that_does_not_divide_is_saved_and_resumed() {
    let folder = Folder::new("tensor-odd");
    // 3 ranks: 37 characters are 13, 13 and 11.
    let job =
        ["train", "gpt", "--layers", "1", "--heads", "3", "--width", "24", "--context", "9", "--sample", "4"];
    let run = |args: &[&str]| {
        let output = plimsoll(&[&job[..], &["--batch-size", "2", "--json"], args].concat());
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        crate::program::json(&output)
    };
    let three = ["--parallel", "tp=3", "--ranks", "3"];
    let (one, many) = (folder.file("one"), folder.file("many"));
    let expected = run(&["--steps", "5", "--save", &one]);
    let found = run(&[&three[..], &["--steps", "5"]].concat());
    close(&found["losses"], &expected["losses"], "losses");
    assert_eq!(found["sample"], expected["sample"]);
    run(&[&three[..], &["--steps", "5", "--resume", &one, "--save", &many]].concat());
    assert!(small_gpt::consolidated(&many) == fs::read(format!("{one}/model.safetensors")).expect("weights"));
}

#[test]
fn a_rank_that_is_killed_while_saving_is_named_and_costs_no_checkpoint() {
    let folder = Folder::new("tensor-kill");
    let run = folder.file("run");
    result(&[&FOUR[..], &["--steps", "1", "--save", &run]].concat());
    let newest = || fs::read_link(format!("{run}/latest")).expect("a checkpoint");
    for round in 0..4 {
        let (start, before) = (Instant::now(), newest());
        let mut ranks = small_gpt::endless(4, "8", FOUR[1], &["--resume", &run]);
        while newest() == before {
            assert!(start.elapsed() < Duration::from_secs(60), "round {round}: nothing is saved");
            thread::sleep(Duration::from_millis(1));
        }
        thread::sleep(Duration::from_micros(round * 7919));
        let lost = round as usize;
        ranks[lost].kill().expect("it runs");
        for (rank, child) in ranks.into_iter().enumerate().filter(|(rank, _)| *rank != lost) {
            let output = child.wait_with_output().expect("an end");
            let said = stderr(&output);
            assert_eq!(output.status.code(), Some(6), "rank {rank}: {said}");
            assert!(said.contains(&format!("rank {lost} (host ")), "rank {rank}: {said}");
        }
        assert!(newest() > before, "round {round}");
    }
    let step: u64 = newest().to_string_lossy()["step-".len()..].parse().expect("a step");
    let resumed = result(&["--steps", &(step + 1).to_string(), "--resume", &run]);
    assert_eq!(resumed["steps"], step + 1);
}

#[test]
fn a_simulated_rank_of_a_group_has_the_account_of_a_real_one() {
    // 256 bytes divide among ranks; 37 characters would not, so the last rank's peak would be lower.
    let folder = Folder::new("tensor-account");
    let text = folder.file("text");
    fs::write(&text, "Ships carry a line on their hull. ".repeat(200)).expect("a text");
    let steps = ["--steps", "3", "--data", &text, "--tokens", "bytes"];
    for (how, size) in [(&TWO, "2"), (&FOUR, "4")] {
        let real = result(&[&how[..], &steps].concat());
        let simulated = result(&[&how[..2], &steps, &["--device", "sim", "--sim-ranks", size]].concat());
        for key in ["buckets", "sent_bytes_per_step", "peaks", "size", "tensor"] {
            assert_eq!(real["ranks"][key], simulated["ranks"][key], "{how:?}: {key}");
        }
        for key in ["peak_by_category", "owners_at_peak", "peak_allocated_bytes", "peak_reserved_bytes"] {
            assert_eq!(real["memory"][key], simulated["memory"][key], "{how:?}: {key}");
        }
    }
    let wide = ["--layers", "4", "--width", "512", "--heads", "8", "--context", "64", "--batch-size", "16"];
    let gpus = ["--parallel", "dp=4,tp=8", "--sim-ranks", "32", "--device", "sim:H200"];
    let output = plimsoll(&[&["train", "gpt", "--steps", "2"], &wide[..], &gpus].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = stdout(&output);
    assert!(
        text.contains("on each of 32 ranks") && text.contains("of 8 ranks that share each layer"),
        "{text}"
    );
}

#[test]
fn sizes_that_do_not_fit_are_refused_before_any_file_is_read() {
    let refused = |args: &[&str], expected: &str| {
        small_gpt::refused("8", &[&["--parallel"], args].concat(), expected);
    };
    refused(&["tp=2", "--ranks", "4"], "--parallel tp=2, but there are 4 ranks: use dp=D,tp=2");
    refused(
        &["dp=2,tp=2", "--ranks", "2"],
        "--parallel dp=2,tp=2, but there are 2 ranks: the product of D and T must be the number of ranks",
    );
    refused(&["dp=2,tp=2", "--device", "sim", "--sim-ranks", "8"], "there are 8 ranks");
    refused(&["dp=2,tp=9223372036854775808", "--ranks", "2"], "--heads 2 is not a multiple");
    refused(&["tp=0", "--ranks", "2"], "`0` is not a number of ranks: use tp=N");
    refused(&["tp", "--ranks", "2"], "use ddp, shard, shard=N, replicate=R,shard=S, tp=N or dp=D,tp=T");
    refused(&["dp=2", "--ranks", "2"], "tp=N or dp=D,tp=T");
    refused(&["tp=2,dp=2", "--ranks", "4"], "tp=N or dp=D,tp=T");
    refused(&["tp=4", "--ranks", "4"], "--heads 2 is not a multiple of the 4 ranks of --parallel tp=4");
    refused(
        &["dp=3,tp=2", "--ranks", "6"],
        "--batch-size 8 is the total of all ranks, and must be a multiple of 3",
    );
    refused(&["tp=2", "--ranks", "2", "--shard", "gradients"], "--parallel tp=N does not work with --shard");
    refused(&["tp=2", "--ranks", "2", "--reproducible"], "--parallel tp=N does not work with --reproducible");
    refused(&["tp=2", "--ranks", "2", "--capture"], "--parallel tp=N does not work with --capture");
    let odd = plimsoll(&["train", "gpt", "--context", "9", "--parallel", "tp=2", "--ranks", "2"]);
    assert_eq!(odd.status.code(), Some(2), "{}", stderr(&odd));
    let expected = "--context 9 is not a multiple of the 2 ranks of --parallel tp=2 that share each layer";
    assert!(stderr(&odd).contains(expected), "{}", stderr(&odd));
    let output = plimsoll(&["train", "mnist", "--parallel", "tp=2", "--ranks", "2"]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains("--parallel tp=N works with `train gpt`"), "{}", stderr(&output));

    let folder = Folder::new("tensor-small");
    fs::write(folder.file("text"), "ab".repeat(500)).expect("a text");
    let four = ["--parallel", "tp=4", "--device", "sim", "--sim-ranks", "4"];
    let output = plimsoll(&[&["train", "gpt", "--data", &folder.file("text")], &four[..]].concat());
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("a vocabulary of 2 is too small for the 4 ranks"),
        "{}",
        stderr(&output)
    );
}
