//! `plimsoll train … --save-async`: a thread saves copies while training goes on. Results, files and guarantees are those of saving
//! without it. `train_sharded.rs` kills ranks that save in both ways.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::program::{Folder, json, plimsoll, signal, small_gpt, stderr};

const SHARD: [&str; 4] = ["--parallel", "shard", "--ranks", "2"];
const DDP: [&str; 4] = ["--parallel", "ddp", "--ranks", "2"];

/// All files below a folder with their contents, except the lock's, which names its process.
fn contents(folder: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let (mut found, mut folders) = (Vec::new(), vec![folder.to_owned()]);
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(&next).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_symlink() || path.ends_with(".plimsoll.lock") {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(folder).expect("a file in it").to_owned();
                found.push((name, fs::read(&path).expect("a file")));
            }
        }
    }
    found.sort();
    found
}

#[test]
fn results_files_and_resumed_runs_are_the_same_bits_as_without_it() {
    let folder = Folder::new("async-bits");
    for (name, how) in [("one", &[][..]), ("ddp", &DDP[..]), ("shard", &SHARD[..])] {
        let run = |part: &str, steps: &str, more: &[&str]| {
            let saved = folder.file(&format!("{name}-{part}"));
            let args = ["--steps", steps, "--save-every", "2", "--dropout", "0.1", more[0], &saved];
            small_gpt::result("4", &[&args[..], how, &more[1..]].concat())
        };
        let now = run("now", "7", &["--save"]);
        let later = run("later", "7", &["--save", "--save-async"]);
        run("parts", "4", &["--save", "--save-async"]);
        let parts = run("parts", "7", &["--resume", "--save-async"]);
        for key in ["losses", "validation_losses", "sample", "parameters", "steps"] {
            assert_eq!(later[key], now[key], "{name}: {key}");
            assert_eq!(parts[key], now[key], "{name}, resumed: {key}");
        }
        assert_eq!(later["memory"]["peak_by_category"], now["memory"]["peak_by_category"], "{name}");
        let files = |part: &str| contents(&folder.0.join(format!("{name}-{part}")));
        assert!(files("later") == files("now"), "{name}: other files");
        assert!(files("parts") == files("now"), "{name}: other files of a resumed run");
    }
}

#[test]
fn the_other_jobs_have_it_too() {
    let folder = Folder::new("async-mnist");
    let run = |name: &str, more: &[&str]| {
        let job = [
            "train",
            "mnist",
            "--images",
            "60",
            "--batch-size",
            "16",
            "--epochs",
            "1",
            "--save-every",
            "1",
            "--json",
        ];
        let output = plimsoll(&[&job[..], &["--save", &folder.file(name)], more].concat());
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        json(&output)
    };
    let (now, later) = (run("now", &[]), run("later", &["--save-async"]));
    assert_eq!((&now["losses"], &now["correct"]), (&later["losses"], &later["correct"]));
    assert!(contents(&folder.0.join("now")) == contents(&folder.0.join("later")));
}

#[test]
fn it_is_refused_without_a_folder_and_on_a_simulated_device() {
    let folder = Folder::new("async-refused");
    let refused = |args: &[&str], expected: &str| small_gpt::refused("4", args, expected);
    refused(&["--plan", "8xH100", "--save-async"], "cannot be used with");
    let check = |args: &[&str], expected: &str| {
        let output = small_gpt::train("4", args);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(expected), "{args:?}: {}", stderr(&output));
    };
    check(&["--save-async"], "--save-async needs a folder to save into: add --save DIR");
    check(&["--save-async", "--device", "sim"], "add --save DIR");
    let saved = folder.file("saved");
    check(&["--save-async", "--save", &saved, "--device", "sim"], "there is nothing to save");
}

#[test]
fn a_signal_ends_the_run_after_the_save_in_progress_and_one_more() {
    let folder = Folder::new("async-signals");
    for (name, code) in [("INT", 130), ("TERM", 143)] {
        let saved = folder.file(name);
        let mut program = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
        program.args(small_gpt::SMALL).args(["--batch-size", "4", "--steps", "1000000", "--save-every", "1"]);
        program.args(["--save", &saved, "--save-async", "--json"]);
        let child = program.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
        let (weights, begun) = (Path::new(&saved).join("model.safetensors"), Instant::now());
        while !weights.exists() {
            assert!(begun.elapsed() < Duration::from_secs(60), "nothing is saved");
            std::thread::sleep(Duration::from_millis(5));
        }
        signal(child.id(), name);
        let output = child.wait_with_output().expect("an end");
        assert_eq!(output.status.code(), Some(code), "{}", stderr(&output));
        let steps = json(&output)["steps"].as_u64().expect("steps");
        assert!(stderr(&output).contains(&format!("saved step {steps} in ")), "{}", stderr(&output));
        // It resumes after this step, and not an earlier one.
        let resumed = small_gpt::train("4", &["--resume", &saved, "--steps", &(steps + 1).to_string()]);
        assert!(stderr(&resumed).contains(&format!("step {steps}")), "{}", stderr(&resumed));
    }
}

#[test]
fn a_full_disk_is_an_error_and_leaves_the_last_checkpoint() {
    let folder = Folder::new("async-full");
    for (name, how) in [("one", &[][..]), ("shard", &SHARD[..])] {
        let saved = folder.file(name);
        small_gpt::result("4", &[&["--steps", "2", "--save", &saved], how].concat());
        let before = contents(Path::new(&saved));
        let resume = ["--resume", &saved, "--steps", "4", "--save-every", "1", "--save-async"];
        // No file may grow beyond a few kilobytes, so each write fails as on a full disk.
        let limit = "trap '' XFSZ; ulimit -f 4; exec \"$@\"";
        let limited = Command::new("sh")
            .args(["-c", limit, "sh", env!("CARGO_BIN_EXE_plimsoll")])
            .args(small_gpt::SMALL)
            .args(["--batch-size", "4"])
            .args(resume)
            .args(how)
            .output()
            .expect("sh runs");
        let errors = stderr(&limited);
        assert_eq!(limited.status.code(), Some(3), "{errors}");
        for step in [3, 4] {
            assert!(errors.contains(&format!("step {step}: ")), "{errors}");
        }
        assert!(errors.contains("error: ") && errors.contains("was not saved: "), "{errors}");
        let after = contents(Path::new(&saved));
        assert!(before.iter().all(|file| after.contains(file)), "{name}: files have changed");
        assert_eq!(small_gpt::result("4", &[&resume[..], how].concat())["steps"], 4);
    }
}
