//! `plimsoll explain --html` as users run it: the page contains what the terminal shows.

use std::path::Path;
use std::process::Command;

use crate::program::{Folder, kept, plimsoll, stderr};

#[test]
fn the_page_and_the_terminal_give_the_same_verdict() {
    let snapshot =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../plimsoll-trace/tests/snapshots/gpt2_oom.pickle.gz");
    let page = std::env::temp_dir().join(format!("plimsoll-page-{}.html", std::process::id()));
    let mut explain = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    let answer = explain.arg("explain").arg(snapshot).arg("--html").arg(&page).output().expect("it starts");
    let said = String::from_utf8(answer.stdout).expect("text");
    let written = std::fs::read_to_string(&page).expect("the page");
    std::fs::remove_file(&page).expect("it was there");
    let verdict = said.lines().next().expect("a verdict");
    assert!(answer.status.success() && verdict.contains("CAPACITY"), "{said}");
    assert!(written.contains(verdict), "{verdict}");
    assert!(
        written.contains(&format!(" --html {}</pre>", page.display())),
        "the command that makes it again"
    );
}

#[test]
fn a_page_that_cannot_be_written_is_a_failure_that_names_it() {
    let snapshot =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../plimsoll-trace/tests/snapshots/tiny.pickle.gz");
    let mut explain = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    let answer = explain.arg("explain").arg(snapshot).args(["--html", "no/such/folder/page.html"]).output();
    let answer = answer.expect("it starts");
    assert_eq!(answer.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&answer.stderr).contains("no/such/folder/page.html"));
}

#[test]
fn a_page_that_is_there_is_replaced_only_on_request() {
    let folder = Folder::new("page-there");
    let page = folder.file("page.html");
    std::fs::write(&page, "mine").expect("a file");
    let explain =
        |more: &[&str]| plimsoll(&[&["explain", &kept("tiny.pickle.gz"), "--html", &page], more].concat());
    let refused = explain(&[]);
    assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
    assert!(stderr(&refused).contains("--force") && refused.stdout.is_empty(), "{}", stderr(&refused));
    assert_eq!(std::fs::read_to_string(&page).expect("a file"), "mine");
    assert_eq!(explain(&["--force"]).status.code(), Some(0));
    assert!(std::fs::read_to_string(&page).expect("a page").contains("<html"));
}
