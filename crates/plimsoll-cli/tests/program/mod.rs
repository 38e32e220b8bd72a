//! The program as users run it (a process, its streams and its exit code), and folders to work in.

pub(crate) mod images;
pub(crate) mod small_gpt;
pub(crate) mod verbs;

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

use super::schema;

pub(crate) fn plimsoll<W: AsRef<OsStr>>(args: &[W]) -> Output {
    let mut program = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    // Results must not depend on who runs the test.
    program.args(args).env_remove("GITHUB_ACTIONS").output().expect("the program starts")
}

/// Sends a signal, such as `TERM`, to a process that runs.
#[track_caller]
pub(crate) fn signal(pid: u32, name: &str) {
    let sent = Command::new("kill").args([format!("-{name}"), pid.to_string()]).status();
    assert!(sent.expect("kill runs").success(), "{name}");
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("stdout is text")
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The stdout of a run that must succeed.
pub(crate) fn text(args: &[&str]) -> String {
    let output = plimsoll(args);
    assert_eq!(output.status.code(), Some(0), "{args:?}: {}", stderr(&output));
    stdout(&output)
}

/// The answer, checked against its schema.
#[track_caller]
pub(crate) fn json(output: &Output) -> Value {
    let answer = serde_json::from_slice(&output.stdout).expect("stdout is one JSON value");
    schema::check(&answer);
    answer
}

/// The path of a snapshot in the repository.
pub(crate) fn kept(file: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../plimsoll-trace/tests/snapshots");
    folder.join(file).display().to_string()
}

/// The explanation of a snapshot's first device.
pub(crate) fn explained(file: &str) -> Value {
    let output = plimsoll(&["explain", file, "--json"]);
    assert_eq!(output.status.code(), Some(0), "{file}: {}", stderr(&output));
    json(&output)["devices"][0].clone()
}

/// An empty folder that is removed when the test ends.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("plimsoll-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).expect("a folder");
        Folder(path)
    }

    pub(crate) fn path(&self) -> &str {
        self.0.to_str().expect("a path in UTF-8")
    }

    pub(crate) fn file(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    /// The names of its entries, sorted.
    pub(crate) fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).expect("a folder");
        let name = |entry: std::io::Result<fs::DirEntry>| entry.expect("an entry").file_name();
        let mut names: Vec<String> =
            entries.map(|entry| name(entry).to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
