//! `plimsoll record` as users run it: its Python code runs and records, here on the stand-in.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use plimsoll_needs::needs;
use plimsoll_standin::place;

use crate::program::{Folder, explained, plimsoll, stderr, text};

#[test]
fn options_stand_in_the_lines() {
    let lines = text(&["record"]);
    assert!(lines.contains("\nENTRIES = 1_000_000 ") && lines.contains("\nSTACKS = \"python\" "), "{lines}");
    let lines = text(&["record", "--entries", "25000000", "--stacks", "all"]);
    assert!(lines.contains("\nENTRIES = 25_000_000 ") && lines.contains("\nSTACKS = \"all\" "), "{lines}");
    assert_eq!(plimsoll(&["record", "--entries", "0"]).status.code(), Some(2));
}

/// A program that trains for a few steps, and then, if requested, allocates more memory than the device has.
const PROGRAM: &str = "
import sys
import memory_record
memory_record.start()
import torch
model = torch.nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.Adam(model.parameters())
for n in range(3):
    with memory_record.step(n):
        model(torch.ones(64, 1024, device='cuda')).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
if sys.argv[1:] == ['oom']:
    kept = [torch.empty(1 << 30, device='cuda') for _ in range(10_000)]
";

#[needs(pytorch)]
#[test]
fn a_run_that_ends_and_one_that_runs_out_both_leave_a_recording() {
    let python = std::env::var("PLIMSOLL_PYTORCH").expect("a test that needs PyTorch");
    let folder = Folder::new("record");
    let program = folder.file("program.py");
    text(&["record", "--stacks", "all", "-o", &folder.file("memory_record.py")]);
    fs::write(&program, PROGRAM).expect("a program");
    let standin = PathBuf::from(folder.file("standin"));
    let tests = std::env::current_exe().expect("a path");
    place::lay_out(&standin, &tests.with_file_name(place::LIBRARY))
        .expect("the library, which Cargo puts beside the tests");
    let run = |args: &[&str]| {
        let mut words = python.split_whitespace();
        let mut python = Command::new(words.next().expect("a command"));
        python.args(words).arg(&program).args(args).env("RANK", "3").current_dir(folder.path());
        python.envs(place::environment(&standin, |name| std::env::var_os(name)));
        python.output().expect("Python starts")
    };
    let fine = run(&[]);
    assert!(fine.status.success(), "{}", stderr(&fine));
    assert!(stderr(&fine).contains("plimsoll explain memory-rank3.pickle"), "{}", stderr(&fine));
    let answer = explained(&folder.file("memory-rank3.pickle"));
    assert!(answer["failure"].is_null() && answer["events"].as_u64() > Some(0), "{answer}");
    let lines = answer["held"]["by_line"].as_array().expect("lines").iter();
    let mut files = lines.filter_map(|row| row["line"]["file"].as_str());
    assert!(files.any(|file| file.ends_with("program.py")), "{}", answer["held"]);
    let trace = text(&["export", &folder.file("memory-rank3.pickle"), "--to", "perfetto"]);
    assert!(trace.contains("ProfilerStep#2"), "the steps are not marked");

    let total = answer["ledger"].as_array().expect("rows").iter().find(|row| row["name"] == "device total");
    assert!(total.is_some_and(|row| row["bytes"].as_u64() > Some(1 << 30)), "{}", answer["ledger"]);

    let out_of_memory = run(&["oom"]);
    assert!(!out_of_memory.status.success());
    let answer = explained(&folder.file("memory-rank3-oom.pickle"));
    assert_eq!(answer["failure"]["failures"], 1);
    assert!(folder.names().iter().all(|name| !name.contains("unfinished")), "{:?}", folder.names());
}
