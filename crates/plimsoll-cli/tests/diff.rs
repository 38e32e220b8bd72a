//! `plimsoll diff` as users run it.

use std::fs;

use crate::program::{Folder, json, kept, plimsoll, stderr, stdout, text};

#[test]
fn a_recording_does_not_differ_from_itself() {
    let file = kept("leak_layer.pickle.gz");
    let answer = text(&["diff", &file, &file]);
    assert!(answer.starts_with("no change: both peak at "), "{answer}");
    assert!(answer.contains("unchanged"), "{answer}");
}

#[test]
fn the_verdict_is_the_change_of_the_peak_and_the_lines_that_did_it() {
    let answer = text(&["diff", &kept("leak_layer.pickle.gz"), &kept("gpt2_oom.pickle.gz")]);
    let first = answer.lines().next().expect("a line");
    assert!(first.starts_with("peak +23.") && first.contains(" GiB at "), "{first}");
    assert!(first.contains("scenarios.py_:16 lm_steps"), "{first}");
    assert!(answer.contains("out of memory: CAPACITY"), "{answer}");
}

#[test]
fn changes_close_and_are_the_opposite_the_other_way_round() {
    let (a, b) = (kept("leak_layer.pickle.gz"), kept("leak_loss.pickle.gz"));
    let compared = |first: &str, second: &str| {
        let output = plimsoll(&["diff", first, second, "--json"]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let answer = json(&output);
        assert_eq!(answer["schema"], "plimsoll.diff/1");
        answer["devices"][0].clone()
    };
    let sum = |rows: &serde_json::Value| -> i64 {
        rows.as_array().expect("rows").iter().filter_map(|row| row["change_bytes"].as_i64()).sum()
    };
    let (there, back) = (compared(&a, &b), compared(&b, &a));
    let peak = |nth: usize| there["peak_allocated_bytes"][nth].as_i64().expect("bytes");
    let by = peak(1) - peak(0);
    assert_ne!(by, 0);
    for table in ["by_line", "by_category"] {
        assert_eq!((sum(&there[table]), sum(&back[table])), (by, -by), "{table}");
    }
}

#[test]
fn files_without_a_device_in_common_are_a_usage_error() {
    let output = plimsoll(&["diff", &kept("tiny.pickle.gz"), &kept("tiny.pickle.gz"), "--device", "7"]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains("device 7"), "{}", stderr(&output));
}

#[test]
fn a_recording_that_does_not_hold_its_whole_run_is_named() {
    let answer = text(&["diff", &kept("stackless/complete.pickle.gz"), &kept("stackless/ring.pickle.gz")]);
    assert!(answer.contains("its oldest events were lost"), "{answer}");
}

#[test]
fn the_page_says_what_the_terminal_says_and_replaces_nothing_unasked() {
    let folder = Folder::new("page-of-diff");
    let (a, b, page) =
        (kept("leak_layer.pickle.gz"), kept("leak_loss.pickle.gz"), folder.file("a page.html"));
    let said = text(&["diff", &a, &b, "--html", &page]);
    let written = fs::read_to_string(&page).expect("the page");
    let verdict = said.lines().next().expect("a verdict");
    assert!(
        verdict.starts_with("peak ") && written.contains(&verdict.replace('<', "&lt;").replace('>', "&gt;"))
    );
    let again = format!("<pre>plimsoll diff {a} {b} --html &#39;{page}&#39;</pre>");
    assert!(written.contains(&again), "{again}");
    for file in [&a, &b] {
        assert!(written.contains(&format!("<p>{file}: PyTorch")), "{file} in the footer");
    }
    let refused = plimsoll(&["diff", &a, &b, "--html", &page]);
    assert_eq!((refused.status.code(), refused.stdout.len()), (Some(2), 0), "{}", stderr(&refused));
    assert_eq!(plimsoll(&["diff", &a, &b, "--html", &page, "--force"]).status.code(), Some(0));
    assert!(
        stdout(&plimsoll(&["diff", &a, &b, "--html", "-"])).starts_with("<!doctype html>"),
        "the page alone"
    );
}
