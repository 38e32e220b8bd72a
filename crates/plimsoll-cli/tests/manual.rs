//! `plimsoll completions`, `plimsoll man` and the guide: they contain every verb.

use std::path::Path;

use crate::program::{Folder, plimsoll, stderr, text, verbs};

#[test]
fn every_shell_gets_every_verb() {
    let verbs = verbs::all();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = text(&["completions", shell]);
        for verb in &verbs {
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
    for verb in verbs::all() {
        assert!(names.contains(&format!("plimsoll-{verb}.1")), "{verb}: {names:?}");
    }
    assert!(names.contains(&"plimsoll-bench-step.1".to_owned()), "{names:?}");
    let page = text(&["man"]);
    assert!(page.contains(".TH plimsoll 1") && page.contains("Exit codes"), "{page}");
    let again = plimsoll(&["man", folder.path()]);
    assert_eq!(again.status.code(), Some(2), "{}", stderr(&again));
    text(&["man", folder.path(), "--force"]);
}

#[test]
fn every_verb_is_in_the_guide() {
    let guide = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/README.md");
    let guide = std::fs::read_to_string(guide).expect("the guide");
    let table: Vec<&str> = guide.lines().skip_while(|line| *line != "## All commands").collect();
    for verb in verbs::all() {
        let is_row =
            |line: &&&str| line.split('|').nth(1).is_some_and(|cell| cell.contains(&format!("`{verb}`")));
        assert!(table.iter().find(is_row).is_some(), "{verb} is not in the table of commands");
    }
}
