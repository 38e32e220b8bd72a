//! `plimsoll train gpt --parallel ddp`: several processes, started by `--ranks`, by torchrun and by hand. Their
//! results are bit-identical, and their losses equal those of one process. Also checkpoints, signals, and an end
//! within two seconds when a rank is killed.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use plimsoll_needs::needs;
use serde_json::Value;

use crate::program::{Folder, json, plimsoll, signal, stderr, stdout};

/// A model small enough for a test.
const SMALL: [&str; 14] = [
    "train",
    "gpt",
    "--layers",
    "1",
    "--heads",
    "2",
    "--width",
    "16",
    "--context",
    "8",
    "--batch-size",
    "4",
    "--sample",
    "0",
];
const DDP: [&str; 2] = ["--parallel", "ddp"];
const TWO: [&str; 4] = ["--parallel", "ddp", "--ranks", "2"];

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    command.args(SMALL).args(args);
    command
}

fn gpt(args: &[&str]) -> Output {
    command(args).output().expect("the program starts")
}

fn result(args: &[&str]) -> Value {
    let output = gpt(&[args, &["--json"]].concat());
    assert_eq!(output.status.code(), Some(0), "{args:?}: {}", stderr(&output));
    json(&output)
}

fn weights(folder: &Folder, name: &str) -> Vec<u8> {
    fs::read(folder.0.join(name).join("model.safetensors")).expect("saved weights")
}

/// A free port.
fn port() -> String {
    let free = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port");
    free.port().to_string()
}

/// Two ranks that are started by hand, with the variables of PyTorch's `env://`: rank 0 hosts the store.
fn by_hand(args: &[&str], variables: &[(&str, &str)]) -> Vec<Child> {
    let port = port();
    let start = |rank: &str| {
        let mut command = command(&[&DDP[..], args].concat());
        command.envs([("RANK", rank), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1")]);
        command.env("MASTER_PORT", &port).envs(variables.iter().copied());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts")
    };
    ["0", "1"].map(start).into()
}

#[test]
fn two_ranks_train_as_one_and_have_the_same_bits_by_any_launcher() {
    let folder = Folder::new("ranks-bits");
    let steps = ["--steps", "30", "--save"];
    let save = |name: &str| folder.file(name);
    let one = result(&[&steps[..], &[&save("one")]].concat());
    let two = result(&[&steps[..], &[&save("two")], &TWO].concat());
    assert!(one["ranks"].is_null());
    assert_eq!((&two["ranks"]["size"], &two["ranks"]["parallel"]), (&2.into(), &"ddp".into()));
    assert_eq!(two["ranks"]["peaks"][0], two["ranks"]["peaks"][1]);
    for key in ["losses", "validation_losses"] {
        let [one, two] = [&one, &two].map(|run| run[key][0].as_f64().expect("a loss"));
        assert!((one - two).abs() < 1e-5, "{key}: {one} and {two}");
    }
    assert_eq!(one["steps"], two["steps"]);

    let mut hands = by_hand(&[&steps[..], &[&save("hands"), "--json"]].concat(), &[]);
    let second = hands.remove(1).wait_with_output().expect("an end");
    let first = hands.remove(0).wait_with_output().expect("an end");
    assert_eq!(
        (first.status.code(), second.status.code()),
        (Some(0), Some(0)),
        "{}{}",
        stderr(&first),
        stderr(&second)
    );
    assert_eq!(stdout(&second) + &stderr(&second), "", "only rank 0 speaks");
    assert_eq!(json(&first)["losses"], two["losses"]);
    assert!(weights(&folder, "hands") == weights(&folder, "two"), "other bits by hand");
    assert!(weights(&folder, "one") != weights(&folder, "two"), "one rank adds up in another order");

    // A text from the user, with four ranks.
    let four = ["--parallel", "ddp", "--ranks", "4"];
    let file = folder.file("text");
    fs::write(&file, "the quick brown fox jumps over the lazy dog. ".repeat(200)).expect("a text");
    let one = result(&["--steps", "10", "--data", &file]);
    let many = result(&[&["--steps", "10", "--data", &file], &four[..]].concat());
    let [one, many] = [&one, &many].map(|run| run["validation_losses"][0].as_f64().expect("a loss"));
    assert!((one - many).abs() < 1e-5, "{one} and {many}");
}

#[needs(pytorch)]
#[test]
fn torchrun_starts_the_same_training() {
    let folder = Folder::new("ranks-torchrun");
    let python = std::env::var("PLIMSOLL_PYTORCH").expect("needs pytorch");
    let steps = ["--steps", "20", "--save"];
    result(&[&steps[..], &[&folder.file("ranks")], &TWO].concat());
    let mut torchrun = Command::new(python);
    torchrun.args(["-m", "torch.distributed.run", "--no-python", "--nproc-per-node", "2", "--master-port"]);
    torchrun.arg(port()).arg(env!("CARGO_BIN_EXE_plimsoll")).args(SMALL).args(DDP).args(steps);
    let output = torchrun.arg(folder.file("torchrun")).output().expect("torchrun");
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stdout(&output).starts_with("fits with "), "{}", stdout(&output));
    assert!(weights(&folder, "torchrun") == weights(&folder, "ranks"));
}

/// Waits until a rank has saved a checkpoint.
fn has_saved(folder: &str) {
    let start = Instant::now();
    while !fs::exists(format!("{folder}/checkpoint.safetensors")).unwrap_or(false) {
        assert!(start.elapsed() < Duration::from_secs(60), "no checkpoint");
        std::thread::sleep(Duration::from_millis(10));
    }
}

const ENDLESS: [&str; 4] = ["--steps", "1000000", "--save-every", "1"];

#[test]
fn a_killed_rank_ends_the_others_within_two_seconds() {
    let folder = Folder::new("ranks-kill");
    for killed in [1, 0] {
        let saved = folder.file(&format!("saved{killed}"));
        let mut ranks = by_hand(&[&ENDLESS[..], &["--save", &saved]].concat(), &[]);
        has_saved(&saved);
        let pid = ranks[killed].id();
        let start = Instant::now();
        ranks[killed].kill().expect("it runs");
        let other = ranks.remove(1 - killed).wait_with_output().expect("an end");
        assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
        ranks.remove(0).wait().expect("an end");
        let said = stderr(&other);
        assert_eq!(other.status.code(), Some(6), "{said}");
        assert!(said.contains(&format!("error: rank {killed} (host ")), "{said}");
        assert!(said.contains(&format!("pid {pid}, cpu) is gone: ")), "{said}");
        assert!(said.contains("this rank was in all_"), "{said}");
        assert!(
            said.contains("the last checkpoint is of step ") || said.contains("there is no checkpoint yet"),
            "{said}"
        );
        // The saved checkpoint is complete.
        let resumed = result(&["--resume", &saved, "--steps", "1"]);
        assert!(resumed["steps"].as_u64() >= Some(1));
    }
}

#[test]
fn a_stopped_rank_is_named_after_the_deadline() {
    let folder = Folder::new("ranks-stop");
    // Rank 0 also hosts the store.
    for stopped in [1, 0] {
        let saved = folder.file(&format!("saved{stopped}"));
        let args = [&ENDLESS[..], &["--save", &saved]].concat();
        let mut ranks = by_hand(&args, &[("PLIMSOLL_COLLECTIVE_TIMEOUT_S", "1")]);
        has_saved(&saved);
        signal(ranks[stopped].id(), "STOP");
        let start = Instant::now();
        let output = ranks.remove(1 - stopped).wait_with_output().expect("an end");
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
        ranks[0].kill().expect("it is there");
        ranks[0].wait().expect("an end");
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(6), "{said}");
        assert!(
            said.contains(&format!("error: rank {stopped} (host ")) && said.contains("did not reach "),
            "{said}"
        );
        assert!(said.contains("within 1 s: it may be stopped"), "{said}");
    }
}

/// The process of a rank that `--ranks` started.
fn pid_of_rank(parent: u32, rank: usize) -> u32 {
    let is_rank = |pid: &u32| {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let wanted = format!("RANK={rank}");
        status.contains(&format!("PPid:\t{parent}\n"))
            && environment.split(|byte| *byte == 0).any(|word| word == wanted.as_bytes())
    };
    let processes = fs::read_dir("/proc").expect("/proc").flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_string_lossy().parse::<u32>().ok());
    pids.into_iter().find(is_rank).expect("the rank's process")
}

#[test]
fn the_launcher_ends_with_a_killed_rank_and_passes_signals_on() {
    let folder = Folder::new("ranks-launcher");
    let saved = folder.file("killed");
    let start = |saved: &str| {
        let mut command = command(&[&ENDLESS[..], &TWO, &["--save", saved]].concat());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts")
    };
    let launcher = start(&saved);
    has_saved(&saved);
    let killed = pid_of_rank(launcher.id(), 1);
    signal(killed, "KILL");
    let since = Instant::now();
    let output = launcher.wait_with_output().expect("an end");
    let said = stderr(&output);
    assert!(since.elapsed() < Duration::from_secs(2), "{:?}", since.elapsed());
    assert_eq!(output.status.code(), Some(6), "{said}");
    assert!(said.contains("[rank 0] error: rank 1 (host "), "{said}");
    assert!(said.contains("rank 1 was ended by signal 9"), "{said}");

    let saved = folder.file("signal");
    let launcher = start(&saved);
    has_saved(&saved);
    signal(launcher.id(), "TERM");
    let output = launcher.wait_with_output().expect("an end");
    assert_eq!(output.status.code(), Some(143), "{}", stderr(&output));
    let text = stdout(&output);
    assert!(text.starts_with("stopped by SIGTERM after step "), "{text}");
    assert!(text.contains(&format!("continue with --resume {saved}")), "{text}");
}

#[test]
fn reproducible_training_has_the_same_bits_on_any_number_of_ranks() {
    let folder = Folder::new("ranks-lanes");
    let run = |name: &str, args: &[&str]| {
        let steps = ["--reproducible=4", "--steps", "6", "--dropout", "0.1", "--save"];
        result(&[&steps[..], &[&folder.file(name)], args].concat())
    };
    let one = run("one", &[]);
    assert!(one["ranks"].is_null());
    for (name, args) in [
        ("ddp", &["--parallel", "ddp", "--ranks", "4"][..]),
        ("sharded", &["--parallel", "shard", "--ranks", "2"]),
    ] {
        let many = run(name, args);
        for key in ["losses", "validation_losses"] {
            assert_eq!(many[key], one[key], "{name}: {key}");
        }
    }
    assert!(weights(&folder, "ddp") == weights(&folder, "one"), "other weights");
    // Saved by two ranks and resumed by one; a run that divides its batches differently cannot resume.
    let longer = ["--steps", "9", "--dropout", "0.1"];
    let whole = result(&[&["--reproducible=4"], &longer[..]].concat());
    let resume =
        |args: &[&str]| gpt(&[&longer[..], &["--resume", &folder.file("sharded"), "--json"], args].concat());
    let resumed = resume(&["--reproducible=4"]);
    assert_eq!(json(&resumed)["validation_losses"], whole["validation_losses"], "{}", stderr(&resumed));
    let other = resume(&[]);
    assert_ne!(other.status.code(), Some(0));
    assert!(
        stderr(&other).contains("--reproducible is 4 in the checkpoint and absent here"),
        "{}",
        stderr(&other)
    );
}

#[test]
fn a_resumed_training_has_the_bits_of_one_that_was_not_stopped() {
    let folder = Folder::new("ranks-resume");
    let (saved, whole) = (folder.file("saved"), folder.file("whole"));
    let run = |args: &[&str]| result(&[&["--dropout", "0.2"], &TWO[..], args].concat());
    run(&["--steps", "4", "--save", &saved]);
    run(&["--steps", "9", "--resume", &saved]);
    run(&["--steps", "9", "--save", &whole]);
    assert!(weights(&folder, "saved") == weights(&folder, "whole"));
    // A batch is divided among all ranks, so a run can be resumed with another number of ranks.
    let one = result(&["--dropout", "0.2", "--steps", "10", "--resume", &saved]);
    assert_eq!(one["steps"], 10);
}

#[test]
fn a_simulated_rank_has_the_account_of_a_real_one() {
    let real = result(&[&TWO[..], &["--steps", "3"]].concat());
    let simulated = result(&["--parallel", "ddp", "--device", "sim", "--sim-ranks", "2", "--steps", "3"]);
    for key in ["buckets", "sent_bytes_per_step", "peaks", "size"] {
        assert_eq!(real["ranks"][key], simulated["ranks"][key], "{key}");
    }
    assert_eq!(real["memory"]["peak_by_category"], simulated["memory"]["peak_by_category"]);
    let wide = |batch_size: &str, args: &[&str]| {
        let small = &SMALL[..SMALL.iter().position(|word| *word == "--batch-size").expect("an option")];
        plimsoll(&[small, &["--batch-size", batch_size, "--steps", "3", "--sample", "0"], args].concat())
    };
    let output = wide("16", &["--parallel", "ddp", "--device", "sim:H200", "--sim-ranks", "8"]);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(text.contains("bucket 0") && text.contains("buckets of gradients"), "{text}");
    assert!(text.contains("on each of 8 ranks") && text.contains("to 7 others"), "{text}");
    // A batch of 16 on 8 ranks has the same activations as a batch of 2 on one.
    let of = |batch_size: &str, args: &[&str]| {
        json(&wide(batch_size, &[args, &["--device", "sim", "--json"]].concat()))["memory"]["peak_by_category"]["activation"].clone()
    };
    assert_eq!(of("16", &["--parallel", "ddp", "--sim-ranks", "8"]), of("2", &[]));
}

#[test]
fn what_cannot_be_is_refused_before_any_file_is_read() {
    let refused = |args: &[&str], environment: &[(&str, &str)], expected: &str| {
        let output = command(args).envs(environment.iter().copied()).output().expect("the program starts");
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(expected), "{args:?}: {}", stderr(&output));
    };
    let nowhere = "/nowhere/text";
    refused(&["--data", nowhere, "--parallel", "ddp", "--ranks", "3"], &[], "must be a multiple of 3");
    refused(
        &["--data", nowhere, "--parallel", "ddp", "--device", "sim", "--sim-ranks", "8"],
        &[],
        "must be a multiple of 8",
    );
    refused(
        &["--data", nowhere, "--parallel", "ddp"],
        &[],
        "add --ranks N, or start the program with torchrun",
    );
    refused(
        &["--data", nowhere, "--parallel", "ddp", "--ranks", "2", "--device", "cuda:1"],
        &[],
        "each rank uses its own GPU: add --device cuda",
    );
    refused(&["--data", nowhere, "--parallel", "ddp", "--device", "sim"], &[], "add --sim-ranks N");
    refused(
        &["--data", nowhere, "--parallel", "ddp", "--sim-ranks", "2"],
        &[],
        "--sim-ranks is for `--device sim`",
    );
    refused(&["--ranks", "2"], &[], "--parallel <ddp|shard[=N]|replicate=R,shard=S|tp=N|dp=D,tp=T>");
    refused(&["--parallel", "shard", "--ranks", "2", "--capture"], &[], "not with shard");
    refused(
        &["--reproducible=3"],
        &[],
        "--reproducible=3 with 1 rank: the number of lanes must be a power of two",
    );
    refused(&["--reproducible"], &[], "--batch-size 4 must be a multiple of the 8 lanes");
    refused(
        &["--reproducible=2", "--parallel", "ddp", "--ranks", "4"],
        &[],
        "a multiple of the number of ranks",
    );
    refused(&["--reproducible=4", "--capture"], &[], "--capture does not work with --reproducible");
    let two = [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "1")];
    refused(
        &["--data", nowhere],
        &two,
        "this is rank 0 of 2 according to RANK and WORLD_SIZE: add --parallel ddp",
    );
    refused(&["--parallel", "ddp", "--ranks", "4"], &two, "--ranks 4, but RANK and WORLD_SIZE started 2");
    refused(&DDP, &[("RANK", "0"), ("WORLD_SIZE", "2")], "set MASTER_PORT");
    let three = [("RANK", "0"), ("WORLD_SIZE", "3"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "1")];
    refused(&["--data", nowhere, "--parallel", "ddp"], &three, "must be a multiple of 3");
}

#[test]
fn a_rank_that_fails_tells_the_others_why() {
    let output = gpt(&[&TWO[..], &["--data", "/nowhere/text"]].concat());
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("[rank 0] error: ") && stderr(&output).contains("/nowhere/text"),
        "{}",
        stderr(&output)
    );
    // If memory runs out, it does so on all ranks, and the exit code is the first rank's.
    let output = gpt(&[&TWO[..], &["--memory-limit", "1MiB"]].concat());
    assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
}

#[test]
fn stderr_has_the_rank_in_front_and_stdout_is_rank_0s() {
    let mut child = command(&[&TWO[..], &["--steps", "2"]].concat())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let lines: Vec<String> = BufReader::new(child.stderr.take().expect("a pipe"))
        .lines()
        .map(|line| line.expect("a line"))
        .collect();
    assert!(!lines.is_empty() && lines.iter().all(|line| line.starts_with("[rank 0] ")), "{lines:?}");
    assert!(lines[0].contains("batch 4, on 2 ranks of cpu"), "{lines:?}");
    let mut text = String::new();
    child.stdout.take().expect("a pipe").read_to_string(&mut text).expect("text");
    assert_eq!(text.matches("fits with ").count(), 1, "{text}");
    assert!(text.contains("\nRanks (the figures above are rank 0's)\n"), "{text}");
    assert!(child.wait().expect("an end").success());
    assert!(
        plimsoll(&[
            "train",
            "mnist",
            "--images",
            "128",
            "--epochs",
            "1",
            "--batch-size",
            "32",
            "--parallel",
            "ddp",
            "--ranks",
            "2"
        ])
        .status
        .success()
    );
}
