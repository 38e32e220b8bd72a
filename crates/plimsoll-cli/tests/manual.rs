//! `plimsoll completions` and `plimsoll man`: every verb is in them.

use crate::program::{Folder, plimsoll, stderr, text};

const VERBS: [&str; 13] = [
    "train",
    "top",
    "explain",
    "leaks",
    "diff",
    "doctor",
    "whatif",
    "check",
    "export",
    "record",
    "conformance",
    "bench",
    "completions",
];

#[test]
fn every_shell_gets_every_verb() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = text(&["completions", shell]);
        for verb in VERBS {
            assert!(script.contains(verb), "{verb} is not in the completions for {shell}");
        }
    }
    assert_eq!(plimsoll(&["completions", "cmd.com"]).status.code(), Some(2));
}

#[test]
fn every_verb_gets_a_page_and_the_first_has_the_exit_codes() {
    let folder = Folder::new("man");
    text(&["man", folder.path()]);
    let names = folder.names();
    for verb in VERBS {
        assert!(names.contains(&format!("plimsoll-{verb}.1")), "{verb}: {names:?}");
    }
    assert!(names.contains(&"plimsoll-bench-step.1".to_owned()), "{names:?}");
    let page = text(&["man"]);
    assert!(page.contains(".TH plimsoll 1") && page.contains("Exit codes"), "{page}");
    let again = plimsoll(&["man", folder.path()]);
    assert_eq!(again.status.code(), Some(2), "{}", stderr(&again));
    text(&["man", folder.path(), "--force"]);
}
