//! `plimsoll train` as users run it: a process, its streams and its exit code.

use std::fs;
use std::io::Read;
use std::process::{Command, Output, Stdio};

use plimsoll_trace::input;
use plimsoll_trace::snapshot::{Action, Setting};
use serde_json::Value;

use plimsoll_needs::needs;

use crate::program::{Folder, json, plimsoll, stderr, stdout};

fn train(args: &[&str]) -> Output {
    plimsoll(&[&["train", "mnist"], args].concat())
}

/// Runs a job that must succeed. Returns its JSON.
fn result(args: &[&str]) -> Value {
    let output = train(&[args, &["--json"]].concat());
    assert_eq!(output.status.code(), Some(0), "{args:?}: {}", stderr(&output));
    json(&output)
}

/// The memory report in a result, without the two values that always differ between devices.
fn account(result: &Value) -> Value {
    let mut memory = result["memory"].clone();
    let fields = memory.as_object_mut().expect("an account");
    fields.remove("device");
    fields.remove("outside_allocator_bytes");
    memory
}

#[test]
fn the_simulated_device_gives_the_same_account_as_the_cpu() {
    // Two with an incomplete last batch, one with a batch larger than the data.
    for more in [
        &["--images", "300", "--batch-size", "64"][..],
        &["--images", "100", "--batch-size", "1000"],
        &["--images", "300", "--optimizer", "adam", "--memory-limit", "40MiB"],
        &["--images", "10", "--batch-size", "1", "--epochs", "1"],
    ] {
        let job = [more, &["--epochs", "2", "--device"]].concat();
        let job: Vec<&str> = if more.contains(&"--epochs") { [more, &["--device"]].concat() } else { job };
        let run = |device| result(&[&job[..], &[device]].concat());
        let (cpu, sim) = (run("cpu"), run("sim"));
        assert_eq!(account(&cpu), account(&sim), "{more:?}");
        assert_eq!(cpu["steps"], sim["steps"]);
        assert_eq!(sim["accuracy"], Value::Null);
        assert_eq!(sim["losses"], Value::Array(vec![]));
    }
}

#[test]
fn the_account_sums_to_the_peak() {
    let run = result(&["--images", "200", "--epochs", "1"]);
    let memory = &run["memory"];
    let bytes = |value: &Value| value.as_u64().expect("bytes");
    let categories = memory["peak_by_category"].as_object().expect("categories").values().map(bytes);
    let owners =
        memory["owners_at_peak"].as_array().expect("owners").iter().map(|owner| bytes(&owner["bytes"]));
    let peak = bytes(&memory["peak_allocated_bytes"]);
    assert_eq!((categories.sum::<u64>(), owners.sum::<u64>()), (peak, peak));
    assert!(bytes(&memory["peak_reserved_bytes"]) >= peak);
    // Ten parameters with 255,230 elements in total, each rounded up to 512 bytes.
    assert_eq!(bytes(&run["parameter_bytes"]), 1_022_976);
}

#[test]
fn the_same_seed_gives_the_same_result_for_any_number_of_workers() {
    let run = |workers| {
        let run = result(&["--images", "500", "--epochs", "2", "--seed", "7", "--workers", workers]);
        (run["losses"].clone(), run["correct"].clone())
    };
    let alone = run("0");
    assert_eq!(alone, run("1"));
    assert_eq!(alone, run("3"));
    let other = result(&["--images", "500", "--epochs", "2", "--seed", "8"]);
    assert_ne!(alone.0, other["losses"]);
}

#[test]
fn the_smallest_limit_passes_and_two_mebibytes_less_fail() {
    for device in ["cpu", "sim"] {
        let job = ["--images", "200", "--epochs", "1", "--device", device, "--memory-limit"];
        let with = |limit: &str| train(&[&job[..], &[limit, "--json"]].concat());
        let refused = with("8MiB");
        assert_eq!(refused.status.code(), Some(4), "{}", stderr(&refused));
        let why = json(&refused);
        let smallest = why["smallest_limit_bytes"].as_u64().expect("a limit");
        assert_eq!((&why["verdict"], &why["limit_bytes"]), (&"out of memory".into(), &(8u64 << 20).into()));
        assert_eq!(with(&smallest.to_string()).status.code(), Some(0), "{smallest} on {device}");
        let less = smallest - (2 << 20);
        assert_eq!(with(&less.to_string()).status.code(), Some(4), "{less} on {device}");
    }
}

#[test]
fn an_out_of_memory_error_says_who_asked_and_what_holds_the_rest() {
    let refused = train(&["--images", "200", "--epochs", "1", "--memory-limit", "8MiB"]);
    assert_eq!(refused.status.code(), Some(4));
    assert_eq!(stdout(&refused), "");
    let error = stderr(&refused);
    for part in [
        "error: out of memory on cpu: conv1 asked for 6.12 MiB (temporary, by conv2d)",
        "the limit is 8.00 MiB",
        "held by parameters (999.00 KiB)",
        "the smallest limit that works for this job is ",
        "try: --memory-limit ",
    ] {
        assert!(error.contains(part), "`{part}` is not in: {error}");
    }
}

#[test]
fn the_first_line_is_the_verdict() {
    let run = train(&["--images", "200", "--epochs", "1", "--memory-limit", "64MiB"]);
    let text = stdout(&run);
    let verdict = text.lines().next().expect("a line");
    assert!(verdict.starts_with("fits with ") && verdict.contains("of the limit of 64.00 MiB"), "{verdict}");
    assert!(verdict.ends_with(" of 20 test images)"), "{verdict}");
    assert!(text.contains("outside the allocator"), "{text}");
    assert!(!text.contains('\x1b') && !stderr(&run).contains('\x1b'), "colour off a terminal");
    let sim = stdout(&train(&["--images", "200", "--epochs", "1", "--device", "sim", "--capacity", "80GiB"]));
    let verdict = sim.lines().next().expect("a line");
    assert!(
        verdict.ends_with("of this device's 80.00 GiB (memory only: sim computes no values)"),
        "{verdict}"
    );
}

#[test]
fn a_job_runs_on_a_simulated_gpu_with_its_memory() {
    let sim = stdout(&train(&["--images", "200", "--epochs", "1", "--device", "sim:H200"]));
    let verdict = sim.lines().find(|line| line.starts_with("fits with")).unwrap();
    assert!(
        verdict.ends_with("of this device's 139.80 GiB (memory only: sim:H200 computes no values)"),
        "{verdict}"
    );
}

#[test]
fn jobs_larger_than_this_machine_run_on_the_simulated_device() {
    let run = result(&[
        "--device",
        "sim",
        "--images",
        "4000000000",
        "--batch-size",
        "1000000",
        "--epochs",
        "1",
        "--capacity",
        "1TiB",
    ]);
    assert_eq!(run["steps"], 3600);
    assert!(run["memory"]["peak_allocated_bytes"].as_u64() > Some(280 << 30), "{}", run["memory"]);
}

#[test]
fn usage_errors_exit_with_2_and_unreadable_data_with_3() {
    let check = |args: &[&str], code: i32, part: &str| {
        let output = train(args);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(part), "`{part}` is not in: {}", stderr(&output));
        assert_eq!(stdout(&output), "");
    };
    check(&["--memory-limit", "12 parsecs"], 2, "`parsecs` is not a unit");
    check(&["--batch-size", "0"], 2, "--batch-size");
    check(&["--lr", "fast"], 2, "learning rate");
    check(&["--capacity", "1GiB"], 2, "--device sim");
    check(&["--device", "sim:H9000"], 2, "`H9000` is not a known GPU; known are H200, ");
    check(
        &["--device", "gpu"],
        2,
        "a device is `cpu`, `cuda`, `cuda:N`, `sim` or a simulated GPU such as `sim:H200`",
    );
    check(&["--device", "sim:T4", "--capacity", "1GiB"], 2, "sim:T4 already has 14.75 GiB");
    check(&["--data", "x", "--images", "100"], 2, "cannot be used with");
    let folder = Folder::new("no-data");
    check(&["--data", folder.path()], 3, folder.path());
    fs::write(folder.0.join("t10k-images-idx3-ubyte"), [0, 0, 8, 3, 0, 0]).expect("a file");
    fs::write(folder.0.join("t10k-labels-idx1-ubyte"), [0, 0, 8, 1, 0, 0, 0, 1, 5]).expect("a file");
    check(&["--data", folder.path()], 3, "t10k-images-idx3-ubyte");
    check(&["--data", "/no/such/folder"], 3, "/no/such/folder");
    // JSON also contains the reason.
    let failed = train(&["--data", "/no/such/folder", "--json"]);
    let why = json(&failed);
    assert_eq!((&why["verdict"], &why["exit"]), (&"failed".into(), &3.into()));
}

#[test]
fn a_run_saves_a_snapshot_that_agrees_with_its_account() {
    let folder = Folder::new("snapshot");
    for device in ["cpu", "sim"] {
        let path = folder.0.join(device);
        let file = path.to_str().expect("a path in UTF-8");
        let job = ["--images", "200", "--epochs", "1", "--device", device, "--snapshot", file];
        let run = result(&job);
        assert_eq!(run["snapshot"], file);
        let snapshot = input::open(&path).expect("a snapshot");
        let segments = || snapshot.segments.iter();
        let allocated: u64 = segments().filter_map(|segment| segment.allocated_size.get()).sum();
        // The model, its gradients and the optimizer's buffers are still there.
        assert_eq!(allocated, run["memory"]["allocated_bytes"].as_u64().expect("bytes"));
        assert!(allocated > 3_000_000, "{allocated}");
        let reserved: u64 = segments().map(|segment| segment.total_size).sum();
        assert_eq!(reserved, run["memory"]["reserved_bytes"].as_u64().expect("bytes"));
        assert_eq!(snapshot.annotations.len(), 6, "three steps");
        let short = train(&[&job[..], &["--snapshot-entries", "10", "--force"]].concat());
        assert!(stderr(&short).contains(&format!("snapshot: 11 events in {file} (")), "{}", stderr(&short));
        assert_eq!(input::open(&path).expect("a snapshot").traces[0].len(), 11, "and the snapshot itself");
    }
}

#[test]
fn a_run_that_runs_out_saves_what_it_held() {
    let folder = Folder::new("snapshot-oom");
    let path = folder.0.join("oom.pickle");
    let file = path.to_str().expect("a path in UTF-8");
    let job = ["--images", "200", "--epochs", "1", "--memory-limit", "8MiB", "--json", "--snapshot", file];
    let refused = train(&job);
    assert_eq!(refused.status.code(), Some(4), "{}", stderr(&refused));
    let why = json(&refused);
    assert_eq!(why["snapshot"], file);
    assert!(stderr(&refused).contains("_memory_viz trace_plot"), "{}", stderr(&refused));
    let snapshot = input::open(&path).expect("a snapshot");
    let [.., last, _] = &snapshot.traces[0][..] else { panic!("{:?}", snapshot.traces) };
    assert_eq!((last.action, Some(last.size)), (Action::Oom, why["asked"]["block_bytes"].as_u64()));
    let allocated: u64 = snapshot.segments.iter().filter_map(|segment| segment.allocated_size.get()).sum();
    assert_eq!(Some(allocated), why["allocated_bytes"].as_u64());
}

#[test]
fn a_snapshot_that_cannot_be_saved_is_refused_before_the_run() {
    let folder = Folder::new("snapshot-refused");
    for (path, more) in [("no/such/folder.pickle", &[][..]), ("", &[]), ("x", &["--snapshot-entries", "0"])] {
        let path = folder.0.join(path);
        let output = train(&[&["--snapshot", path.to_str().expect("UTF-8")], more].concat());
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        assert!(!stderr(&output).contains("epoch"), "{}", stderr(&output));
    }
}

#[test]
fn a_log_is_read_as_a_snapshot_and_survives_the_kill_of_its_run() {
    let folder = Folder::new("log");
    let path = folder.0.join("run.log");
    let file = path.to_str().expect("a path in UTF-8");
    let run = result(&["--images", "200", "--epochs", "1", "--log", file]);
    let snapshot = input::open(&path).expect("a log");
    let reserved: u64 = snapshot.segments.iter().map(|segment| segment.total_size).sum();
    assert_eq!(Some(reserved), run["memory"]["reserved_bytes"].as_u64());
    assert_eq!(snapshot.setting("plimsoll_log"), Some(&Setting::Text("whole".to_owned())));
    // If it is killed, the log contains everything written so far.
    let mut child = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
        .args(["train", "mnist", "--images", "1000", "--epochs", "1000", "--force", "--log", file])
        .stderr(Stdio::null())
        .spawn()
        .expect("the program starts");
    let written = || fs::metadata(&path).map_or(0, |file| file.len());
    let begun = std::time::Instant::now();
    while written() < 10_000 && begun.elapsed().as_secs() < 60 {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    child.kill().expect("it runs");
    child.wait().expect("an end");
    let snapshot = input::open(&path).expect("a log");
    assert!(snapshot.traces[0].len() > 1000, "{} events", snapshot.traces[0].len());
    assert_ne!(snapshot.setting("plimsoll_log"), Some(&Setting::Text("whole".to_owned())));
}

#[test]
fn images_too_small_for_the_network_are_unreadable_data() {
    let folder = Folder::new("small-images");
    let images = [&[0u8, 0, 8, 3, 0, 0, 0, 10, 0, 0, 0, 3, 0, 0, 0, 3][..], &[7; 90]].concat();
    let labels = [&[0u8, 0, 8, 1, 0, 0, 0, 10][..], &[1; 10]].concat();
    fs::write(folder.0.join("t10k-images-idx3-ubyte"), images).expect("a file");
    fs::write(folder.0.join("t10k-labels-idx1-ubyte"), labels).expect("a file");
    let output = train(&["--data", folder.path()]);
    assert_eq!(output.status.code(), Some(3));
    assert!(
        stderr(&output).contains("images of 3 × 3; this network needs at least 12 × 12"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_simulated_job_ends_when_its_epochs_repeat() {
    let job = ["--device", "sim", "--images", "300", "--epochs"];
    let run = |epochs: &'static str| result(&[&job[..], &[epochs]].concat());
    let (few, many) = (run("40"), run("18446744073709551615"));
    assert_eq!(account(&few), account(&many));
    assert_eq!((&few["steps"], &many["steps"]), (&200.into(), &u64::MAX.into()));
}

#[test]
fn a_batch_that_the_host_cannot_hold_is_out_of_memory() {
    let huge =
        ["--images", "4000000000", "--batch-size", "4000000000", "--epochs", "1", "--memory-limit", "64MiB"];
    let output = train(&huge);
    assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
        .args(["train", "mnist", "--device", "sim", "--images", "200"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    drop(child.stdout.take());
    let mut errors = String::new();
    child.stderr.take().expect("stderr").read_to_string(&mut errors).expect("text");
    assert_eq!(child.wait().expect("an end").code(), Some(0), "{errors}");
    assert!(!errors.contains("panicked") && !errors.contains("error"), "{errors}");
}

#[needs(shared_data, nightly)]
#[test]
fn five_epochs_on_the_real_images_reach_97_percent_within_a_limit() {
    let data = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared/data/mnist");
    let run = result(&["--data", data, "--memory-limit", "64MiB"]);
    assert_eq!((&run["job"]["train_images"], &run["job"]["test_images"]), (&9000.into(), &1000.into()));
    assert!(run["accuracy"].as_f64() >= Some(0.97), "{}", run["summary"]);
    let sim = result(&["--data", data, "--memory-limit", "64MiB", "--device", "sim"]);
    assert_eq!(account(&run), account(&sim));
}
