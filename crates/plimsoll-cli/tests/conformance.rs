//! `plimsoll conformance` as users run it: a line per file, a summary, and the exit code.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn conformance(args: &[&Path]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_plimsoll"))
        .arg("conformance")
        .args(args)
        .output()
        .expect("the program starts")
}

fn corpus(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../plimsoll-trace/tests/corpus").join(file)
}

fn last_line(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).lines().last().unwrap_or_default().to_owned()
}

#[test]
fn recordings_that_agree_exit_with_0() {
    let output = conformance(&[&corpus("native-small-2.csv.gz"), &corpus("segsize-2.csv.gz")]);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(last_line(&output), "2 files, 2400 rows compared: no divergence");
}

#[test]
fn a_divergence_is_explained_and_exits_with_1() {
    let text = plimsoll_trace::conformance::read(&corpus("native-small-2.csv.gz")).expect("text");
    let row = text.lines().filter(|row| row.starts_with("alloc,")).nth(100).expect("a row");
    let mut fields: Vec<&str> = row.split(',').collect();
    fields[4] = "500000000200";
    let file = std::env::temp_dir().join(format!("plimsoll-diverged-{}.csv", std::process::id()));
    fs::write(&file, text.replacen(row, &fields.join(","), 1)).expect("a file");
    let output = conformance(&[&file]);
    fs::remove_file(&file).expect("the file");
    let stdout = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{stdout}");
    assert!(stdout.contains("address: PyTorch 0x500000000200, ours 0x"), "{stdout}");
    assert!(
        stdout.contains("free blocks that are large enough:") && stdout.contains("taken <- ours"),
        "{stdout}"
    );
    assert!(last_line(&output).ends_with("1 of them diverged"));
}

#[test]
fn what_cannot_be_read_exits_with_3() {
    let folder = std::env::temp_dir().join(format!("plimsoll-no-recordings-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder");
    for path in [&folder, Path::new("/no/such/file")] {
        let output = conformance(&[path]);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(3), 0), "{}", path.display());
    }
    fs::remove_dir_all(&folder).expect("the folder");
}
