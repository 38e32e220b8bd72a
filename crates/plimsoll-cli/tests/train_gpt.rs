//! `plimsoll train gpt`, and the features that all training commands share: `--save`, `--resume`, signals,
//! `--dtype`, `--steps`.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use plimsoll_needs::needs;

use crate::program::{Folder, json, plimsoll, signal, stderr, stdout};

/// A model small enough for a test.
const SMALL: [&str; 12] = [
    "--layers",
    "1",
    "--heads",
    "2",
    "--width",
    "16",
    "--context",
    "8",
    "--batch-size",
    "2",
    "--sample",
    "20",
];

fn gpt(args: &[&str]) -> Output {
    plimsoll(&[&["train", "gpt"], &SMALL[..], args].concat())
}

fn result(args: &[&str]) -> Value {
    let output = gpt(&[args, &["--json"]].concat());
    assert_eq!(output.status.code(), Some(0), "{args:?}: {}", stderr(&output));
    json(&output)
}

fn weights(folder: &Folder, name: &str) -> Vec<u8> {
    fs::read(folder.0.join(name).join("model.safetensors")).expect("saved weights")
}

#[test]
fn a_gpt_learns_from_its_text_and_writes_a_sample() {
    let run = result(&["--steps", "300", "--lr", "0.01"]);
    assert_eq!(run["steps"], 300);
    assert_eq!(run["job"]["data"], "generated sentences");
    let losses: Vec<f64> = serde_json::from_value(run["validation_losses"].clone()).expect("losses");
    // With 37 characters the loss starts at 3.6; knowing only the characters' frequencies gives about 2.9.
    assert!(losses.len() == 2 && losses[1] < 2.85, "{losses:?}");
    assert_eq!(run["sample"].as_str().expect("a sample").chars().count(), 21, "the prompt and 20 characters");
    assert!(run["tokens_per_s"].as_f64() > Some(0.0));
    let text = stdout(&gpt(&["--steps", "2", "--prompt", "The "]));
    let mut lines = text.lines();
    let verdict = lines.next().expect("a line");
    assert!(verdict.starts_with("fits with ") && verdict.contains("; validation loss 3."), "{verdict}");
    assert!(lines.next().is_some_and(|line| line.starts_with("2 steps done in ")), "{text}");
    assert!(text.contains("Sample after \"The \"\nThe "), "{text}");
    assert!(text.contains("Largest owners at the peak"), "{text}");
}

#[test]
fn the_simulated_device_gives_a_gpts_account_to_the_byte() {
    for more in [&[][..], &["--dtype", "bfloat16"], &["--checkpoint"], &["--dropout", "0.1"]] {
        let run = |device: &str| {
            let mut run = result(&[&["--steps", "3", "--device", device], more].concat());
            let memory = run["memory"].as_object_mut().expect("an account");
            memory.remove("device");
            memory.remove("outside_allocator_bytes");
            run
        };
        let (cpu, sim) = (run("cpu"), run("sim"));
        assert_eq!(cpu["memory"], sim["memory"], "{more:?}");
        assert_eq!(sim["sample"], Value::Null);
        assert_eq!(sim["validation_losses"], Value::Array(vec![]));
    }
}

#[test]
fn ten_steps_and_ten_resumed_are_twenty_to_the_bit() {
    let folder = Folder::new("gpt-resume");
    for (name, more) in [("plain", &[][..]), ("dropout", &["--dropout", "0.2", "--dtype", "bfloat16"])] {
        let (whole, parts) = (folder.file(&format!("{name}-whole")), folder.file(&format!("{name}-parts")));
        let straight = result(&[&["--steps", "20", "--save", &whole], more].concat());
        result(&[&["--steps", "10", "--save", &parts], more].concat());
        let resumed = result(&[&["--steps", "20", "--resume", &parts, "--workers", "3"], more].concat());
        for field in ["losses", "validation_losses", "sample", "steps"] {
            assert_eq!(straight[field], resumed[field], "{field}");
        }
        for file in ["model.safetensors", "checkpoint.safetensors", "config.json", "vocabulary.json"] {
            let read = |folder: &str| fs::read(Path::new(folder).join(file)).expect("a saved file");
            assert!(read(&whole) == read(&parts), "{file} differs");
        }
    }
}

#[test]
fn an_epoch_that_was_cut_short_is_resumed_in_its_middle() {
    let folder = Folder::new("mnist-resume");
    let job = ["train", "mnist", "--images", "100", "--batch-size", "16", "--epochs", "3"];
    let run = |more: &[&str]| {
        let output = plimsoll(&[&job[..], more, &["--json"]].concat());
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        json(&output)
    };
    let (whole, parts) = (folder.file("whole"), folder.file("parts"));
    // Epochs have six steps, so the run is interrupted in the second epoch.
    let straight = run(&["--save", &whole]);
    assert_eq!(
        (&straight["steps"], &run(&["--steps", "8", "--save", &parts])["steps"]),
        (&18.into(), &8.into())
    );
    let resumed = run(&["--save", &parts, "--resume"]);
    for field in ["losses", "correct", "accuracy", "steps"] {
        assert_eq!(straight[field], resumed[field], "{field}");
    }
    assert!(weights(&folder, "whole") == weights(&folder, "parts"));
}

#[test]
fn another_job_is_refused_and_its_checkpoint_stays() {
    let folder = Folder::new("gpt-other");
    let (saved, text) = (folder.file("saved"), folder.file("text.txt"));
    result(&["--steps", "2", "--save", &saved]);
    let before = weights(&folder, "saved");
    fs::write(&text, "another text ".repeat(100)).expect("a file");
    let check = |args: &[&str], code: i32, part: &str| {
        let output = gpt(args);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(part), "`{part}` is not in: {}", stderr(&output));
        assert!(weights(&folder, "saved") == before);
    };
    check(&["--resume", &saved, "--seed", "2"], 2, "--seed is 1 in the checkpoint and 2 here");
    check(&["--resume", &saved, "--data", &text], 2, "the training data differ");
    check(&["--resume", &saved, "--dropout", "0.5"], 2, "--dropout is 0.0 in the checkpoint and 0.5 here");
    check(&["--save", &saved], 2, "add --resume to continue from it, --force to replace it");
    check(&["--resume"], 2, "name its folder, or give --save DIR");
    check(&["--resume", &folder.file("none")], 3, "to resume from: leave --resume out");
    check(&["--save", &saved, "--device", "sim"], 2, "sim computes no values, so there is nothing to save");
    check(&["--save", &folder.file("text.txt/x")], 3, "cannot write there: Not a directory");
    let mnist = plimsoll(&["train", "mnist", "--images", "20", "--resume", &saved]);
    assert!(stderr(&mnist).contains("it belongs to `plimsoll train gpt`"), "{}", stderr(&mnist));
    // A truncated checkpoint, and a file of another kind.
    let checkpoint = folder.0.join("saved/checkpoint.safetensors");
    let whole = fs::read(&checkpoint).expect("a checkpoint");
    fs::write(&checkpoint, &whole[..whole.len() / 2]).expect("a file");
    check(&["--resume", &saved], 3, "checkpoint.safetensors");
    fs::copy(folder.0.join("saved/model.safetensors"), &checkpoint).expect("a file");
    check(&["--resume", &saved], 3, "not a checkpoint: it has tensors only");
    result(&["--steps", "2", "--save", &saved, "--force"]);
}

#[test]
fn bad_texts_and_options_have_clear_errors() {
    let folder = Folder::new("gpt-bad");
    let file = |name: &str, bytes: &[u8]| {
        fs::write(folder.0.join(name), bytes).expect("a file");
        folder.file(name)
    };
    let (short, empty, latin) =
        (file("short", b"short"), file("empty", b""), file("latin", b"caf\xe9 au lait"));
    let check = |args: &[&str], code: i32, part: &str| {
        let output = plimsoll(&[&["train", "gpt"], args].concat());
        assert_eq!(output.status.code(), Some(code), "{args:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(part), "`{part}` is not in: {}", stderr(&output));
        assert_eq!(stdout(&output), "");
    };
    check(&["--data", &short], 3, "a text of 5 tokens is too short for a context of 64");
    check(&["--data", &empty], 3, "is empty; give a file with text in it");
    check(
        &["--data", &latin],
        3,
        "byte 0xe9 at offset 3; convert it to UTF-8, or read it byte by byte with `--tokens bytes`",
    );
    check(&["--data", folder.path()], 3, "Is a directory");
    check(&["--steps", "0"], 2, "--steps");
    check(&["--heads", "3"], 2, "--width 128 is not a multiple of --heads 3");
    let sharded = ["--optimizer", "adamw8bit", "--parallel", "shard", "--ranks", "2"];
    check(&sharded, 2, "--optimizer adamw8bit needs complete parameters on each rank");
    check(&["--prompt", "%"], 2, "--prompt: character 0 is '%'");
    check(&["--dtype", "int8"], 2, "[possible values: float32, bfloat16]");
    check(&["--temperature=-1"], 2, "a temperature must be from 0 to 100");
    check(
        &["--memory-limit", "4MiB"],
        4,
        "or a smaller --batch-size or --context, or --fit SIZE in place of a limit",
    );
}

#[test]
fn moments_in_8_bits_train_as_well_in_less_memory_and_resume() {
    // Matrices of 4,096 and more elements have moments in 8 bits.
    let wide = SMALL.map(|value| if value == "16" { "32" } else { value });
    let result = |args: &[&str]| {
        let output = plimsoll(&[&["train", "gpt", "--json"], &wide[..], args].concat());
        assert_eq!(output.status.code(), Some(0), "{args:?}: {}", stderr(&output));
        json(&output)
    };
    let rates = ["--steps", "200", "--lr", "0.01"];
    let peak = |run: &Value| run["memory"]["peak_allocated_bytes"].as_u64().expect("a peak");
    let loss = |run: &Value| {
        run["validation_losses"].as_array().and_then(|all| all.last()?.as_f64()).expect("a loss")
    };
    let (exact, in_8_bits) = (result(&rates), result(&[&rates[..], &["--optimizer", "adamw8bit"]].concat()));
    assert!((loss(&in_8_bits) / loss(&exact) - 1.0).abs() < 0.03, "{}, {}", loss(&in_8_bits), loss(&exact));
    assert!(peak(&in_8_bits) < peak(&exact), "{}, {}", peak(&in_8_bits), peak(&exact));
    let folder = Folder::new("gpt-8-bits");
    let run = |steps: &str, name: &str, how: &[&str]| {
        let path = folder.file(name);
        let args = [&["--optimizer", "adamw8bit", "--steps", steps], how, &[&path]].concat();
        result(&args);
    };
    run("8", "whole", &["--save"]);
    run("5", "parts", &["--save"]);
    run("8", "parts", &["--resume"]);
    assert_eq!(weights(&folder, "whole"), weights(&folder, "parts"));
}

#[test]
fn any_file_is_a_text_of_bytes() {
    let folder = Folder::new("gpt-bytes");
    let all: Vec<u8> = (0..=255).cycle().take(2000).collect();
    fs::write(folder.0.join("all"), all).expect("a file");
    let run = result(&["--steps", "2", "--tokens", "bytes", "--data", &folder.file("all")]);
    assert_eq!(run["job"]["vocabulary"], 256);
}

/// A run that saves after every step and never ends.
fn endless(folder: &str, more: &[&str]) -> Child {
    let args = [&["train", "gpt"], &SMALL[..], &["--steps", "100000000", "--save-every", "1"], more].concat();
    let mut program = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    let child = program.args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    let weights = Path::new(folder).join("model.safetensors");
    let begun = Instant::now();
    while !weights.exists() && begun.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(5));
    }
    child
}

#[test]
fn ctrl_c_and_sigterm_save_and_end_cleanly() {
    let folder = Folder::new("gpt-signals");
    for (name, code) in [("INT", 130), ("TERM", 143)] {
        let saved = folder.file(name);
        let child = endless(&saved, &["--save", &saved, "--json"]);
        signal(child.id(), name);
        let output = child.wait_with_output().expect("an end");
        assert_eq!(output.status.code(), Some(code), "{}", stderr(&output));
        let run = json(&output);
        assert_eq!((&run["verdict"], &run["signal"]), (&"stopped".into(), &format!("SIG{name}").into()));
        assert_eq!(run["saved"], saved);
        let summary = run["summary"].as_str().expect("a summary");
        assert!(summary.starts_with(&format!("stopped by SIG{name} after step ")), "{summary}");
        assert!(summary.contains(&format!(": continue with --resume {saved}; fits with ")), "{summary}");
        let steps = run["steps"].as_u64().expect("steps") + 1;
        let resumed = result(&["--resume", &saved, "--steps", &steps.to_string()]);
        assert_eq!(resumed["steps"], steps);
    }
}

#[test]
fn whenever_a_run_is_killed_it_can_be_resumed_to_the_bit() {
    let folder = Folder::new("gpt-kill");
    for (name, more) in [("now", &[][..]), ("async", &["--save-async"])] {
        let [saved, whole] = [name.to_owned(), format!("{name}-whole")].map(|name| folder.file(&name));
        let mut child = endless(&saved, &[&["--save", &saved], more].concat());
        for wait in [3, 40, 90] {
            std::thread::sleep(Duration::from_millis(wait));
            child.kill().expect("it runs");
            child.wait().expect("an end");
            child = endless(&saved, &[&["--resume", &saved], more].concat());
        }
        child.kill().expect("it runs");
        child.wait().expect("an end");
        let look = gpt(&["--resume", &saved, "--steps", "1", "--json"]);
        assert_eq!(look.status.code(), Some(0), "{}", stderr(&look));
        let steps = (json(&look)["steps"].as_u64().expect("steps") + 2).to_string();
        result(&["--resume", &saved, "--steps", &steps]);
        result(&["--save", &whole, "--steps", &steps]);
        let weights = |path: &str| fs::read(Path::new(path).join("model.safetensors")).expect("weights");
        assert!(weights(&saved) == weights(&whole), "{name}: after {steps} steps");
    }
}

#[test]
fn a_full_disk_ends_with_an_error_and_leaves_the_last_checkpoint() {
    let folder = Folder::new("gpt-full");
    let saved = folder.file("saved");
    result(&["--steps", "2", "--save", &saved]);
    let before = weights(&folder, "saved");
    let resume = ["--resume", &saved, "--steps", "4", "--save-every", "1"];
    // No file may grow beyond a few kilobytes, so each write fails as on a full disk.
    let limited = Command::new("sh")
        .args([
            "-c",
            "trap '' XFSZ; ulimit -f 4; exec \"$@\"",
            "sh",
            env!("CARGO_BIN_EXE_plimsoll"),
            "train",
            "gpt",
        ])
        .args(SMALL)
        .args(resume)
        .output()
        .expect("sh runs");
    assert_eq!(limited.status.code(), Some(3), "{}", stderr(&limited));
    let errors = stderr(&limited);
    assert!(errors.contains("step 3: ") && errors.contains("error: "), "{errors}");
    assert!(
        errors.contains("was not saved: ") && errors.contains("what was saved there before is unchanged"),
        "{errors}"
    );
    assert!(weights(&folder, "saved") == before);
    result(&resume);
}

#[needs(nightly)]
#[test]
fn a_long_run_on_the_simulated_device_ends_when_its_rounds_repeat() {
    let output = gpt(&["--steps", "1000000000", "--device", "sim"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert!(
        stderr(&output).contains(" to 1000000000 make the same requests as earlier ones: skipped"),
        "{}",
        stderr(&output)
    );
}

#[needs(shared_data)]
#[test]
fn tiny_shakespeare_is_learned_if_it_is_there() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/tinyshakespeare/input.txt");
    let run = result(&["--data", &file.display().to_string(), "--steps", "20"]);
    assert_eq!((&run["job"]["tokens"], &run["job"]["vocabulary"]), (&1_115_394.into(), &65.into()));
}
