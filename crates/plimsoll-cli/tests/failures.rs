//! What cannot be read, for every verb that reads a snapshot: exit code 3, words, and JSON where it was asked for.

use std::fs;
use std::process::{Command, Stdio};

use crate::program::{Folder, json, kept, plimsoll, stderr};

#[test]
fn what_cannot_be_read_exits_with_3_and_says_what_it_is() {
    let folder = Folder::new("unreadable");
    let (empty, other) = (folder.file("empty"), folder.file("other"));
    fs::write(&empty, "").expect("a file");
    fs::write(&other, "a poem").expect("a file");
    let missing = folder.file("missing");
    for (file, part) in [
        (missing.as_str(), "No such file"),
        (folder.path(), "s a directory"),
        (&empty, "the file is empty"),
        (&other, "not a memory snapshot"),
    ] {
        for verb in [
            &["leaks"][..],
            &["doctor"],
            &["whatif"],
            &["check", "--no-oom"],
            &["export", "--to", "folded"],
            &["diff", &kept("tiny.pickle.gz")],
        ] {
            let output = plimsoll(&[verb, &[file]].concat());
            assert_eq!(output.status.code(), Some(3), "{verb:?} {file}");
            let error = stderr(&output);
            assert!(error.contains(&format!("error: {file}: ")) && error.contains(part), "{error}");
            assert!(output.stdout.is_empty(), "{verb:?} {file}");
        }
    }
}

#[test]
fn a_failure_is_json_where_json_was_asked_for() {
    for verb in [
        &["explain", "/no/such"][..],
        &["leaks", "/no/such"],
        &["diff", "/no/such", "/no/such"],
        &["doctor", "/no/such"],
        &["whatif", "/no/such"],
        &["check", "/no/such", "--no-oom"],
        &["conformance", "/no/such"],
        &["bench", "snapshot", "/no/such"],
    ] {
        let output = plimsoll(&[verb, &["--json"]].concat());
        assert_eq!(output.status.code(), Some(3), "{verb:?}");
        let answer = json(&output);
        assert_eq!((&answer["schema"], &answer["exit"]), (&"plimsoll.error/1".into(), &3.into()), "{verb:?}");
        assert_eq!(answer["verdict"], "failed");
        assert!(answer["summary"].as_str().is_some_and(|why| why.contains("/no/such")), "{answer}");
    }
    let usage = plimsoll(&["explain", &kept("little.json.gz"), "--device", "77", "--json"]);
    assert_eq!((usage.status.code(), &json(&usage)["exit"]), (Some(2), &2.into()));
}

#[test]
fn a_command_line_that_is_not_understood_is_json_where_json_was_asked_for() {
    for words in [
        &["plan", "--json", "--gpu"][..],
        &["predict", "--steps", "none", "--json", "--", "true"],
        &["explain", "--json", "--no-such-option", "file"],
        &["train", "--json"],
    ] {
        let output = plimsoll(words);
        let answer = json(&output);
        assert_eq!((output.status.code(), &answer["exit"]), (Some(2), &2.into()), "{words:?}");
        assert_eq!(answer["schema"], "plimsoll.error/1", "{words:?}");
        let why = answer["summary"].as_str().unwrap_or_default();
        assert!(!why.is_empty() && stderr(&output).contains(why) && !why.contains("error:"), "{answer}");
    }
    // The program's own --json is none of ours.
    let plain = plimsoll(&["predict", "--no-such-option", "--", "train", "--json"]);
    assert!(plain.status.code() == Some(2) && plain.stdout.is_empty());
}

#[test]
fn stdin_that_ends_at_once_is_unreadable() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    let output = child.args(["explain", "-"]).stdin(Stdio::null()).output().expect("the program starts");
    assert_eq!(output.status.code(), Some(3));
    assert!(stderr(&output).contains("error: stdin: the file is empty"), "{}", stderr(&output));
}
