//! Functions for files find what a program has just written, removed and renamed, as on the disk; and files of other
//! groups can be changed.

use std::fs;
use std::os::unix::fs::chown;
use std::process::{Command, Output};

use plimsoll_needs::needs;

use crate::isolation::{ISOLATIONS, answer, predict};
use crate::program::{Folder, json, stderr};

const WALK: &str = include_str!("isolation_walk.py");

fn laid_out(name: &str) -> Folder {
    let folder = Folder::new(name);
    for name in ["home", "work/folder", "work/tree"] {
        fs::create_dir_all(folder.file(name)).expect("made");
    }
    for name in ["old", "changed", "removed", "folder/in", "tree/in"] {
        fs::write(folder.file(&format!("work/{name}")), "old").expect("written");
    }
    folder
}

/// What the program prints about each call.
fn results(text: &str) -> Vec<&str> {
    text.lines().filter(|line| line.starts_with("RESULT ")).collect()
}

#[needs(python3)]
#[test]
fn functions_for_files_answer_as_on_the_disk() {
    let disk = laid_out("walk-disk");
    let output = Command::new("python3")
        .args(["-c", WALK])
        .current_dir(disk.file("work"))
        .output()
        .expect("it starts");
    let text = String::from_utf8(output.stdout).expect("text");
    let wanted = results(&text);
    assert!(wanted.len() > 900, "{text}");
    for isolation in ISOLATIONS {
        let folder = laid_out(&format!("walk-{isolation}"));
        let mut command = predict(isolation, &[], &folder, &["python3", "-c", WALK]);
        let output = command.current_dir(folder.file("work")).output().expect("it starts");
        answer(&output);
        let said = stderr(&output);
        let found = results(&said);
        let differing: Vec<_> = wanted.iter().zip(&found).filter(|(wanted, found)| wanted != found).collect();
        assert!(differing.is_empty() && found.len() == wanted.len(), "{isolation}: {differing:#?}");
        assert_eq!(fs::read_to_string(folder.file("work/changed")).expect("there"), "old", "{isolation}");
        assert!(fs::exists(folder.file("work/removed")).expect("readable"), "{isolation}");
    }
}

/// A program that changes files of a group that is not the user's primary group.
const OF_A_GROUP: &str = "
import os, sqlite3
open('log', 'a').write('x')
os.rename('old', 'older')
open('runs/new', 'w').write('x')
os.mkdir('runs/deep')
os.remove('runs/last')
sqlite3.connect('data.db').executescript('create table a (b)')
print('ALL DONE')
";

/// A program whose shell changes a file in the folder of its argument.
const OF_A_SHELL: &str = "
import os, subprocess, sys
os.system(f'cd {sys.argv[1]} && echo x >> log')
subprocess.run(f'test -s {sys.argv[1]}/log', shell=True, check=True)
print('ALL DONE')
";

/// The output of id(1).
fn own(id: &str) -> String {
    let output = Command::new("id").arg(id).output().expect("it starts");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// A group of this user other than the primary one, for tests with `#[needs(other_group)]`.
fn another_group() -> u32 {
    let all = own("-G");
    let mut others = all.split(' ').filter(|it| *it != own("-g")).filter_map(|it| it.parse().ok());
    if own("-u") == "0" { 5000 } else { others.next().expect("a group") }
}

/// Runs `predict` with these options, as a user without rights, on a program with these arguments.
fn without_rights(folder: &Folder, options: &[&str], program: &[&str]) -> Output {
    fs::create_dir_all(folder.file("home")).expect("made");
    let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    if own("-u") == "0" {
        command = Command::new("setpriv");
        command.args(["--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]);
        command.arg(env!("CARGO_BIN_EXE_plimsoll"));
    }
    command
        .args(["predict", "--json", "--gpu", "T4"])
        .args(options)
        .args(["--", "python3", "-c"])
        .args(program);
    command.current_dir(&folder.0).env("HOME", folder.file("home")).env_remove("XDG_CACHE_HOME");
    command.output().expect("it starts")
}

/// Runs `predict` with these options as a user without rights, in a folder in which these files
/// belong to another group.
fn of_a_group(name: &str, options: &[&str], files: &[&str]) -> Output {
    let folder = Folder::new(name);
    fs::create_dir(folder.file("runs")).expect("made");
    for name in ["log", "old", "runs/last", "data.db"] {
        fs::write(folder.file(name), "").expect("written");
    }
    for name in files {
        chown(folder.file(name), None, Some(another_group())).expect("the user's group");
    }
    let output = without_rights(&folder, options, &[OF_A_GROUP]);
    assert_eq!(fs::read_to_string(folder.file("log")).expect("there"), "");
    assert!(fs::exists(folder.file("runs/last")).expect("readable"));
    output
}

#[needs(python3, other_group)]
#[test]
fn files_of_another_group_are_redirected() {
    for files in [&["log"][..], &["runs"], &["runs/last", "data.db"]] {
        let output = of_a_group("walk-group", &[], files);
        let report = json(&output);
        assert!(stderr(&output).contains("\nALL DONE\n"), "{files:?}: {}", stderr(&output));
        assert_eq!(report["writes"]["isolation"], "redirect", "{files:?}: {report:#}");
        let why = report["writes"]["instead_of"].as_str().expect("a reason");
        assert!(why.contains("belongs to group"), "{why}");
    }
}

#[needs(python3, other_group)]
#[test]
fn an_overlay_that_cannot_copy_a_file_is_named() {
    let output = of_a_group("walk-forced", &["--isolation", "overlay"], &["log"]);
    let report = json(&output);
    let summary = report["summary"].as_str().expect("a summary");
    assert!(
        summary.contains("walk-forced") && summary.contains("log belongs to another user or group"),
        "{summary}"
    );
    assert!(summary.ends_with("--isolation redirect can"), "{summary}");
}

/// A folder outside the program's own, which belongs to another group, and which only the program's shell names.
#[needs(python3, other_group)]
#[test]
fn a_shell_that_fails_in_a_folder_of_another_group_is_redirected() {
    let group = another_group();
    let (folder, other) = (Folder::new("walk-shell"), Folder::new("walk-shell-other"));
    fs::write(other.file("log"), "").expect("written");
    for path in [other.0.clone(), other.file("log").into()] {
        chown(path, None, Some(group)).expect("the user's group");
    }
    let output = without_rights(&folder, &[], &[OF_A_SHELL, &other.file("")]);
    let report = json(&output);
    assert!(stderr(&output).contains("\nALL DONE\n"), "{}", stderr(&output));
    assert_eq!(report["writes"]["isolation"], "redirect", "{report:#}");
    assert!(report["writes"]["instead_of"].to_string().contains("walk-shell-other"), "{report:#}");
    assert_eq!(fs::read_to_string(other.file("log")).expect("there"), "");
}
