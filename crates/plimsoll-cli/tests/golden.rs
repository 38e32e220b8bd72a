//! The exact output of every verb: the texts in `golden/`, the README and the guide.
//!
//! A console block contains a command and its output (stdout and stderr together), with `? CODE` if the command fails.
//! `...` matches any lines, and `[..]` any characters. Commands run in the folder of the kept snapshots. After a
//! change of wording, `TRYCMD=overwrite cargo test -p plimsoll-cli --test suite golden` writes the new texts; read the
//! diff.

use std::path::Path;
use std::process::Command;

/// The environment variable that is set in the test's own process; the test changes the current folder.
const ALONE: &str = "PLIMSOLL_TEST_ALONE";

#[test]
fn every_verb_prints_its_golden_text() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os(ALONE).is_none() {
        let mut command = Command::new(std::env::current_exe().expect("a path"));
        command.args(["--exact", "golden::every_verb_prints_its_golden_text", "--nocapture"]).env(ALONE, "1");
        let output = command.current_dir(here.join("../plimsoll-trace/tests/snapshots")).output();
        let output = output.expect("the test can be run");
        let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
        return;
    }
    trycmd::TestCases::new()
        .env("NO_COLOR", "1")
        .env("COLUMNS", "100")
        .case(here.join("tests/golden/*.trycmd"))
        .case(here.join("../../README.md"))
        .case(here.join("../../docs/guide/*.md"));
}
