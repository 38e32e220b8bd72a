//! `plimsoll top` next to a running `plimsoll train`: two processes, as users run them.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::program::{Folder, json, stderr, stdout};

/// A program that sees only the sockets of this folder.
fn program(folder: &Folder) -> Command {
    let mut program = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    program.env("XDG_RUNTIME_DIR", folder.path()).env("TMPDIR", folder.path());
    program
}

fn top(folder: &Folder, args: &[&str]) -> Output {
    program(folder).arg("top").args(args).output().expect("the program starts")
}

/// A training run that would take hours. It is killed when the test ends.
struct Training(Child);

impl Training {
    fn start(folder: &Folder, more: &[&str]) -> Training {
        let mut command = program(folder);
        command.args(["train", "mnist", "--images", "500", "--epochs", "1000000", "--memory-limit", "64MiB"]);
        let child = command.args(more).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        Training(child.expect("the program starts"))
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }

    /// Waits until the program has taken some steps. Returns the sample.
    fn stepping(&self, folder: &Folder) -> Value {
        for _ in 0..600 {
            let output = top(folder, &[&self.pid(), "--json"]);
            if output.status.success() && json(&output)["steps"].as_u64() > Some(12) {
                return json(&output);
            }
            thread::sleep(Duration::from_millis(50));
        }
        panic!("the run makes no steps: {}", stderr(&top(folder, &[&self.pid(), "--json"])));
    }
}

impl Drop for Training {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_run_that_nobody_planned_to_watch_can_be_watched() {
    let folder = Folder::new("top");
    let training = Training::start(&folder, &[]);
    let sample = training.stepping(&folder);
    let bytes = |field: &str| sample[field].as_u64().unwrap_or_else(|| panic!("{field} in {sample}"));
    assert_eq!(
        (sample["schema"].as_str(), sample["device"].as_str()),
        (Some("plimsoll.live/1"), Some("cpu"))
    );
    assert_eq!((sample["pid"].to_string(), bytes("limit_bytes")), (training.pid(), 64 << 20));
    assert!(sample["command"].as_str().is_some_and(|it| it.starts_with("plimsoll train mnist --images 500")));
    assert!(bytes("reserved_bytes") >= bytes("allocated_bytes") && bytes("reserved_bytes") <= 64 << 20);
    let by_category = sample["by_category"].as_object().expect("categories").values();
    assert_eq!(
        by_category.map(|bytes| bytes.as_u64().expect("bytes")).sum::<u64>(),
        bytes("allocated_bytes")
    );
    assert_eq!(sample["by_category"]["parameter"], 1_022_976);
    assert_eq!(sample["growth_bytes_per_step"], 0.0, "{sample}");

    // The only process is found. Without a terminal, the output is plain text.
    let plain = top(&folder, &[]);
    assert_eq!(plain.status.code(), Some(0), "{}", stderr(&plain));
    let plain = stdout(&plain);
    for piece in [" on cpu: plimsoll train mnist", "The limit of 64.00 MiB", "999.00 KiB", "no growth"] {
        assert!(plain.contains(piece) && !plain.contains('\x1b'), "{piece} in {plain}");
    }
    assert!(stdout(&top(&folder, &["--bytes"])).contains("1022976 B"));

    // Samples arrive one by one and differ.
    let lines = top(&folder, &["--json", "--samples", "3", "--interval", "0.3"]);
    let read = |line: &str| serde_json::from_str::<Value>(line).expect("a line is JSON")["steps"].as_u64();
    let steps: Vec<_> = stdout(&lines).lines().map(read).collect();
    assert!(steps.len() == 3 && steps.is_sorted() && steps[0] < steps[2], "{steps:?}");

    // With two processes, the user must choose one.
    let second = Training::start(&folder, &["--seed", "7"]);
    second.stepping(&folder);
    let which = top(&folder, &[]);
    assert_eq!(which.status.code(), Some(2));
    for piece in ["2 processes", &training.pid(), &second.pid(), "--seed 7"] {
        assert!(stderr(&which).contains(piece), "{piece} in {}", stderr(&which));
    }
}

#[test]
fn the_end_of_the_process_is_reported_and_is_no_failure() {
    let folder = Folder::new("top-end");
    let training = Training::start(&folder, &[]);
    training.stepping(&folder);
    let mut watching = program(&folder);
    watching.args(["top", "--json", "--samples", "100000", "--interval", "0.05"]);
    let mut watching =
        watching.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
    let mut lines = BufReader::new(watching.stdout.take().expect("a pipe")).lines();
    assert!(lines.next().is_some_and(|line| line.is_ok()));
    let pid = training.pid();
    drop(training);
    // The remaining output.
    assert!(lines.all(|line| line.is_ok()));
    let output = watching.wait_with_output().expect("the program ends");
    assert_eq!((output.status.code(), stderr(&output)), (Some(0), format!("process {pid} has ended\n")));

    // It was killed, and left its socket behind, which is ignored and removed.
    let none = top(&folder, &[]);
    assert_eq!(none.status.code(), Some(3));
    assert!(
        stderr(&none).contains("no running process can be watched")
            && stderr(&none).contains("plimsoll train mnist")
    );
    assert_eq!(Folder(folder.0.join("plimsoll")).names(), Vec::<String>::new());
}

#[test]
fn a_process_that_is_not_there_or_does_not_want_it_is_not_watched() {
    let folder = Folder::new("top-none");
    let none = top(&folder, &["4000000", "--json"]);
    assert_eq!((none.status.code(), json(&none)["schema"].as_str()), (Some(3), Some("plimsoll.error/1")));
    assert!(stderr(&none).contains("there is no such process, or it cannot be watched"), "{}", stderr(&none));

    let train = |more: &[&str]| {
        let mut command = program(&folder);
        command.args(["train", "mnist", "--images", "100", "--device", "sim"]).args(more);
        command.output().expect("the program starts")
    };
    assert_eq!(train(&["--no-live"]).status.code(), Some(0));
    assert_eq!(folder.names(), Vec::<String>::new());
    let watched = train(&[]);
    assert_eq!((watched.status.code(), folder.names()), (Some(0), vec!["plimsoll".to_owned()]));
    assert!(!stderr(&watched).contains("cannot watch"), "{}", stderr(&watched));
    assert_eq!(Folder(folder.0.join("plimsoll")).names(), Vec::<String>::new());
}

#[test]
fn a_run_that_cannot_be_watched_says_so_and_trains() {
    let folder = Folder::new("top-refused");
    let nowhere = folder.file("missing");
    let mut command = program(&folder);
    command.args(["train", "mnist", "--images", "100", "--device", "sim"]);
    let output = command.env("XDG_RUNTIME_DIR", &nowhere).env("TMPDIR", &nowhere).output();
    let output = output.expect("the program starts");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = stderr(&output);
    let lines: Vec<&str> = text.lines().filter(|line| line.contains("cannot watch")).collect();
    assert!(matches!(lines[..], [line] if line.contains("missing")), "{lines:?}");
}
