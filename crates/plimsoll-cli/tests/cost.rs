//! The cost of reading files: malicious files end in an error quickly, and no file is replaced without permission.

use std::ffi::OsStr;
use std::fmt::Debug;
use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use flate2::Compression;
use flate2::write::GzEncoder;

use crate::program::{Folder, kept, plimsoll, stderr, text, verbs};

/// Runs with a wall-clock limit, which ends a program that hangs.
fn soon<W: AsRef<OsStr> + Debug>(args: &[W], stdin: Stdio) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    let mut child = command
        .args(args)
        .stdin(stdin)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let until = Instant::now() + Duration::from_secs(100);
    while child.try_wait().expect("a status").is_none() {
        assert!(Instant::now() < until, "{args:?} hangs");
        std::thread::sleep(Duration::from_millis(10));
    }
    child.wait_with_output().expect("its output")
}

fn packed(path: &str, chunk: &[u8], times: usize, head: &[u8]) {
    let mut out = GzEncoder::new(File::create(path).expect("a file"), Compression::fast());
    out.write_all(head).expect("written");
    (0..times).for_each(|_| out.write_all(chunk).expect("written"));
    out.finish().expect("finished");
}

#[test]
fn bombs_stop_early_with_words_and_an_option() {
    let folder = Folder::new("bombs");
    let bomb = folder.file("bomb.pickle.gz");
    // A pickle that opens empty lists without end, so that each byte is an object.
    packed(&bomb, &[b']'; 1 << 16], 2000, b"\x80\x04](");
    let json = folder.file("bomb.json.gz");
    packed(&json, "[],".repeat(20_000).as_bytes(), 1000, b"{\"segments\": [");
    for file in [&bomb, &json] {
        let output = soon(&["explain", file], Stdio::null());
        let error = stderr(&output);
        assert_eq!(output.status.code(), Some(3), "{error}");
        assert!(error.contains("error: "), "{error}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn a_limit_is_for_small_files_and_can_be_given() {
    let refused = plimsoll(&["explain", &kept("tiny.pickle.gz"), "--limit", "1MiB"]);
    assert!(
        refused.status.code() == Some(2) && stderr(&refused).contains("at least 64MiB"),
        "{}",
        stderr(&refused)
    );
    for limit in ["none", "1GiB"] {
        text(&["explain", &kept("tiny.pickle.gz"), "--limit", limit]);
    }
    let folder = Folder::new("limit");
    // Live blocks that need a few hundred bytes of memory each, more than 64 MiB in total.
    let big = folder.file("big.json");
    let mut events = String::from("{\"segments\": [], \"device_traces\": [[");
    for nth in 0..200_000_u64 {
        let comma = if nth == 0 { "" } else { "," };
        let addr = (1_u64 << 40) + nth * 512;
        events.push_str(&format!(
            "{comma}{{\"action\":\"alloc\",\"addr\":{addr},\"size\":512,\"stream\":0,\"frames\":[],\"time_us\":{nth}}}"
        ));
    }
    events.push_str("]]}");
    fs::write(&big, events).expect("a file");
    let output = soon(&["leaks", &big, "--limit", "64MiB", "--json"], Stdio::null());
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("would take more than 64.00 MiB of memory")
            && stderr(&output).contains("--limit none")
    );
    assert!(String::from_utf8_lossy(&output.stdout).contains("plimsoll.error/1"));
}

#[test]
fn pipes_and_devices_are_no_files_and_nothing_hangs() {
    let folder = Folder::new("pipes");
    let pipe = folder.file("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("mkfifo").success());
    for verb in verbs::reading_snapshots() {
        for file in [pipe.as_str(), "/dev/zero"] {
            let words = verb.words(file);
            let output = soon(&words, Stdio::null());
            assert_eq!(output.status.code(), Some(3), "{words:?}");
            assert!(stderr(&output).contains("not a file but a pipe or a device"), "{}", stderr(&output));
        }
    }
    let zero = soon(&["explain", "-"], File::open("/dev/zero").expect("a device").into());
    assert!(
        zero.status.code() == Some(3) && stderr(&zero).contains("not a memory snapshot"),
        "{}",
        stderr(&zero)
    );
}

#[test]
fn recordings_of_training_replace_no_file_unasked() {
    let folder = Folder::new("recordings");
    let file = folder.file("mine");
    let train = ["train", "mnist", "--images", "20", "--epochs", "1"];
    for option in ["--snapshot", "--log"] {
        fs::write(&file, "mine").expect("a file");
        let output = plimsoll(&[&train[..], &[option, &file]].concat());
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        assert!(stderr(&output).contains("already exists: add --force"), "{}", stderr(&output));
        assert_eq!(fs::read(&file).expect("a file"), b"mine");
    }
}

#[test]
fn the_verb_of_the_guard_removes_nobody_elses_folder() {
    let folder = Folder::new("guard");
    let own = folder.file("plimsoll-models");
    fs::create_dir(&own).expect("a folder");
    fs::write(Path::new(&own).join("weights"), "mine").expect("a file");
    let output = soon(&["end-a-run", &own], Stdio::null());
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(fs::read(Path::new(&own).join("weights")).expect("a file"), b"mine");
}
