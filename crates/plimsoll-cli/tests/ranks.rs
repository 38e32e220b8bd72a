//! `plimsoll explain` of several files: the ranks of a job.

use std::fs;

use plimsoll_trace::snapshot::{Action, Event};
use plimsoll_trace::{Sharing, input, output};

use crate::program::{Folder, json, kept, plimsoll, stderr, stdout, text};

/// A folder with a copy of a snapshot for each rank.
fn job(name: &str, files: &[&str]) -> Folder {
    let folder = Folder::new(name);
    for (rank, file) in files.iter().enumerate() {
        fs::copy(kept(file), folder.file(&format!("memory-rank{rank}.pickle.gz"))).expect("a copy");
    }
    folder
}

const LAYER: &str = "leak_layer.pickle.gz";

#[test]
fn the_rank_that_holds_more_than_the_others_is_the_verdict() {
    let folder = job("odd", &[LAYER, LAYER, "gpt2_oom.pickle.gz", LAYER]);
    fs::write(folder.file("notes.txt"), "no snapshot").expect("a file");
    let answer = text(&["explain", folder.path()]);
    let first = answer.lines().next().expect("a line");
    assert!(
        first.starts_with("rank 2 ran out of memory (1 of 4 ranks); rank 2 is the odd one out: 23.73 GiB"),
        "{first}"
    );
    assert!(first.contains("scenarios.py_:16 lm_steps"), "{first}");
    for part in ["LEAK: 64.00 KiB per step", "out of memory: CAPACITY, short by 104.93 MiB", "23.73 GiB*"] {
        assert!(answer.contains(part), "{part} is not in: {answer}");
    }
}

#[test]
fn ranks_that_are_alike_are_said_to_be() {
    let folder = job("alike", &[LAYER, LAYER, LAYER]);
    let answer = text(&["explain", folder.path()]);
    assert!(answer.starts_with("none of 3 ranks is odd: each has "), "{answer}");
    assert!(!answer.contains("Lines that differ"), "{answer}");
    let files: Vec<String> = folder.names().iter().map(|name| folder.file(name)).collect();
    let [a, b, c] = files.as_slice() else { panic!("{files:?}") };
    assert_eq!(text(&["explain", a, b, c]), answer, "files and their folder are the same");
}

#[test]
fn a_rank_that_cannot_be_read_is_named_and_the_answer_incomplete() {
    let folder = job("unreadable-rank", &[LAYER, LAYER, LAYER]);
    fs::write(folder.file("memory-rank3.pickle"), "a poem").expect("a file");
    let output = plimsoll(&["explain", folder.path()]);
    assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
    let answer = stdout(&output);
    assert!(
        answer.contains("incomplete without rank 3: ") && answer.contains("not a memory snapshot"),
        "{answer}"
    );
    let answer = json(&plimsoll(&["explain", folder.path(), "--json"]));
    assert_eq!((&answer["schema"], &answer["complete"]), (&"plimsoll.ranks/1".into(), &false.into()));
    assert_eq!(
        (&answer["ranks"][2]["name"], &answer["unreadable"][0]["name"]),
        (&"rank 2".into(), &"rank 3".into())
    );
}

#[test]
fn where_no_rank_can_be_read_there_is_no_answer() {
    let folder = Folder::new("no-rank");
    let empty = plimsoll(&["explain", folder.path()]);
    assert_eq!(empty.status.code(), Some(3));
    assert!(stderr(&empty).contains("the folder has no .pickle"), "{}", stderr(&empty));
    for rank in 0..2 {
        fs::write(folder.file(&format!("rank{rank}.pickle")), "a poem").expect("a file");
    }
    assert_eq!(plimsoll(&["explain", folder.path(), "--json"]).status.code(), Some(3));
}

#[test]
fn figures_of_all_ranks_are_in_their_order() {
    let folder = job("figures", &[LAYER, "leak_loss.pickle.gz", LAYER, LAYER]);
    let output = plimsoll(&["explain", folder.path(), "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let answer = json(&output);
    assert_eq!(answer["peak_allocated"]["odd_ranks"], serde_json::json!([1]));
    for nth in 0..4 {
        let of = |row: &serde_json::Value| row["bytes"][nth].as_u64().expect("bytes");
        let lines: u64 = answer["lines"].as_array().expect("lines").iter().map(of).sum();
        assert_eq!(lines, of(&answer["peak_allocated"]), "rank {nth}");
    }
}

#[test]
fn the_page_of_a_job_says_what_the_terminal_says_and_that_a_rank_is_missing() {
    let folder = job("page-of-ranks", &[LAYER, LAYER, "gpt2_oom.pickle.gz", LAYER, LAYER, LAYER]);
    fs::write(folder.file("memory-rank6.pickle.gz"), "a poem").expect("a file");
    let (page, device) = (folder.file("page.html"), ["--device", "0"]);
    let output = plimsoll(&[&["explain", folder.path(), "--html", &page], &device[..]].concat());
    assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
    let (said, written) = (stdout(&output), fs::read_to_string(&page).expect("the page"));
    for line in said.lines().take(2) {
        assert!(written.contains(&line.replace('>', "&gt;")), "{line}");
    }
    assert!(
        said.starts_with("rank 2 ran out of memory") && said.contains("incomplete without rank 6"),
        "{said}"
    );
    let odd = written.find("<section class=\"device\"").expect("sections");
    assert!(written[odd..].contains("<p class=\"title\">rank 2: "), "the odd one is drawn");
    assert_eq!(written.matches("<section class=\"device\"").count(), 4);
    let other = format!("plimsoll explain {} --device 0\n", folder.file("memory-rank4.pickle.gz"));
    assert!(written.contains(&other), "{other}");
    let again = format!("<pre>plimsoll explain {} --device 0 --html {page}</pre>", folder.path());
    assert!(written.contains(&again), "{again}");
}

#[test]
fn the_page_of_a_job_goes_where_it_is_asked_to_and_replaces_nothing_unasked() {
    let folder = job("page-there-of-ranks", &[LAYER, LAYER]);
    let page = folder.file("page.html");
    fs::write(&page, "mine").expect("a file");
    let explain = |more: &[&str]| plimsoll(&[&["explain", folder.path(), "--html"], more].concat());
    let refused = explain(&[&page]);
    assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
    assert!(stderr(&refused).contains("--force") && refused.stdout.is_empty(), "{}", stderr(&refused));
    assert_eq!(explain(&[&page, "--force"]).status.code(), Some(0));
    assert!(fs::read_to_string(&page).expect("a page").contains("<html"));
    assert!(stdout(&explain(&["-"])).starts_with("<!doctype html>"), "the page alone");
}

#[test]
fn two_files_of_one_rank_are_one_rank_judged_by_the_one_written_at_the_failure() {
    let folder = job("recorders-files", &[LAYER, "gpt2_oom.pickle.gz", LAYER, LAYER]);
    // As the recorder writes them: one at the failure, and one when the program ends.
    let later = folder.file("memory-rank1.pickle");
    fs::rename(folder.file("memory-rank1.pickle.gz"), folder.file("memory-rank1-oom.pickle.gz"))
        .expect("renamed");
    let mut snapshot = input::open(kept("gpt2_oom.pickle.gz").as_ref()).expect("a snapshot");
    let freed = |event: &Event| {
        let mut event = *event;
        event.action = Action::FreeRequested;
        event
    };
    let is_alloc = |event: &&Event| event.action == Action::Alloc;
    let frees: Vec<Event> = snapshot.traces[0].iter().rev().filter(is_alloc).take(5).map(freed).collect();
    snapshot.traces[0].extend(frees);
    output::save(&snapshot, later.as_ref(), Sharing::Equal).expect("a file");
    let answer = text(&["explain", folder.path()]);
    assert!(
        answer.starts_with("rank 1 ran out of memory (1 of 4 ranks); rank 1 is the odd one out"),
        "{answer}"
    );
    let accounted = answer.lines().nth(1).expect("a line");
    let [used, unused] = ["memory-rank1-oom.pickle.gz", "memory-rank1.pickle"].map(|name| folder.file(name));
    assert!(
        accounted.starts_with(&format!("rank 1: {used} is used, not {unused}: both are from one run")),
        "{accounted}"
    );
    assert!(accounted.ends_with("(out of memory: CAPACITY, short by 104.93 MiB)"), "{accounted}");
    let answer = json(&plimsoll(&["explain", folder.path(), "--json"]));
    assert_eq!(answer["ranks"].as_array().map(Vec::len), Some(4));
    assert_eq!((&answer["ranks"][1]["file"], &answer["unused"][0]["file"]), (&used.into(), &unused.into()));
    let page = folder.file("page.html");
    plimsoll(&["explain", folder.path(), "--html", &page]);
    let page = fs::read_to_string(&page).expect("the page");
    assert!(page.contains("rank 1: ") && page.contains(" is used, not "));
}

#[test]
fn two_processes_of_one_rank_are_both_shown() {
    let folder = Folder::new("two-processes");
    let mut snapshot = input::open(kept(LAYER).as_ref()).expect("a snapshot");
    for process in [12, 34] {
        // The other process records at the same time, and has no event in common.
        for event in &mut snapshot.traces[0] {
            event.time_us = event.time_us.get().map(|time| time + 1).into();
        }
        let path = folder.file(&format!("rank0-{process}.pickle"));
        output::save(&snapshot, path.as_ref(), Sharing::Equal).expect("a file");
    }
    let answer = text(&["explain", folder.path()]);
    assert!(answer.starts_with("none of 2 ranks is odd"), "{answer}");
    for process in [12, 34] {
        let name = format!("rank 0 ({})", folder.file(&format!("rank0-{process}.pickle")));
        assert!(answer.contains(&name), "{name} is not in {answer}");
    }
}
