//! Unreadable input, for every verb that reads a snapshot: exit code 3, a message, and JSON if it was requested.

use std::fs;
use std::process::{Command, Stdio};

use crate::program::{Folder, json, kept, plimsoll, stderr, verbs};

#[test]
fn what_cannot_be_read_exits_with_3_and_says_what_it_is() {
    let folder = Folder::new("unreadable");
    let (empty, other) = (folder.file("empty"), folder.file("other"));
    fs::write(&empty, "").expect("a file");
    fs::write(&other, "a poem").expect("a file");
    let missing = folder.file("missing");
    let verbs = verbs::reading_snapshots();
    // `explain` also reads other input.
    let verbs: Vec<_> = verbs.iter().filter(|verb| verb.verb() != "explain").collect();
    for (file, part) in [
        (missing.as_str(), "No such file"),
        (folder.path(), "s a directory"),
        (&empty, "the file is empty"),
        (&other, "not a memory snapshot"),
    ] {
        for verb in &verbs {
            let words = verb.words(file);
            let output = plimsoll(&words);
            assert_eq!(output.status.code(), Some(3), "{words:?}");
            let error = stderr(&output);
            assert!(error.contains(&format!("error: {file}: ")) && error.contains(part), "{error}");
            assert!(output.stdout.is_empty(), "{words:?}");
        }
    }
}

#[test]
fn a_failure_is_json_where_json_was_asked_for() {
    let others = [&["conformance", "/no/such"][..], &["bench", "snapshot", "/no/such"]];
    let others = others.map(|words| words.iter().map(|&word| word.to_owned()).collect());
    let verbs = verbs::reading_snapshots();
    let reading = verbs.iter().filter(|verb| verb.has_json).map(|verb| verb.words("/no/such"));
    for mut words in reading.chain(others) {
        words.push("--json".to_owned());
        let output = plimsoll(&words);
        assert_eq!(output.status.code(), Some(3), "{words:?}");
        let answer = json(&output);
        assert_eq!(
            (&answer["schema"], &answer["exit"]),
            (&"plimsoll.error/1".into(), &3.into()),
            "{words:?}"
        );
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
    // The --json of the user's program is not ours.
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
