//! `plimsoll check` as CI runs it: an exit code, and the responsible lines of code.

use std::fs;
use std::process::Command;

use crate::program::{Folder, explained, json, kept, plimsoll, stderr, stdout};

fn check(file: &str, more: &[&str]) -> std::process::Output {
    plimsoll(&[&["check", &kept(file)], more].concat())
}

#[test]
fn a_peak_above_its_limit_exits_with_1_and_names_the_lines() {
    let output = check("leak_layer.pickle.gz", &["--peak-below", "1MiB", "--rows", "3"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let text = stdout(&output);
    assert!(text.starts_with("failed: peak was limited to 1024.00 KiB, but "), "{text}");
    assert!(text.lines().next().expect("a line").ends_with(" were allocated"), "{text}");
    assert!(text.contains("the largest lines at the peak:") && text.contains(".py"), "{text}");
    assert_eq!(text.lines().count(), 5, "{text}");
}

#[test]
fn a_peak_is_within_a_limit_of_its_own_size_and_not_of_a_byte_less() {
    let answer = explained(&kept("leak_layer.pickle.gz"));
    for (option, peak) in [
        ("--peak-below", &answer["peak_allocated"]["allocated_bytes"]),
        ("--reserved-below", &answer["peak_reserved"]["reserved_bytes"]),
    ] {
        let bytes = peak.as_u64().expect("bytes");
        assert_eq!(check("leak_layer.pickle.gz", &[option, &bytes.to_string()]).status.code(), Some(0));
        assert_eq!(check("leak_layer.pickle.gz", &[option, &(bytes - 1).to_string()]).status.code(), Some(1));
    }
}

#[test]
fn skipped_steps_of_grad_scaler_have_a_limit() {
    const SEGMENT: &str = r#"{"device": 0, "address": 4194304, "total_size": 512, "allocated_size": 512, "active_size": 512,
        "requested_size": 512, "stream": 0, "segment_type": "small", "blocks":
        [{"address": 4194304, "size": 512, "requested_size": 512, "state": "active_allocated"}]}"#;
    let folder = Folder::new("skipped");
    let file = folder.file("snapshot.json");
    let entry = |steps: u32| format!("{{\"max_entries\": 1000, \"skipped_steps\": {steps}}}");
    let snapshot = |record: &str| {
        let settings = format!("{{\"plimsoll_record\": {record}}}");
        fs::write(
            &file,
            format!(
                "{{\"segments\": [{SEGMENT}], \"device_traces\": [[]], \"allocator_settings\": {settings}}}"
            ),
        )
        .expect("a file");
        let output = plimsoll(&["check", &file, "--skipped-at-most", "2"]);
        (output.status.code(), stdout(&output))
    };
    let (code, text) = snapshot(&entry(3));
    assert_eq!((code, text.as_str()), (Some(1), "failed: GradScaler skipped 3 steps; the limit is 2\n"));
    assert_eq!(snapshot(&entry(2)), (Some(0), "ok: GradScaler skipped 2 steps; the limit is 2\n".to_owned()));
    let (code, text) = snapshot("{\"max_entries\": 1000}");
    assert!(code == Some(4) && text.starts_with("incomplete: no GradScaler steps were recorded"), "{text}");
}

#[test]
fn a_failed_request_fails_no_oom() {
    let output = check("gpt2_oom.pickle.gz", &["--no-oom"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stdout(&output).contains("expected no failed request, but "), "{}", stdout(&output));
    assert_eq!(check("leak_layer.pickle.gz", &["--no-oom"]).status.code(), Some(0));
}

#[test]
fn fragmentation_is_a_share_of_what_is_reserved() {
    let answer = json(&check("gpt2_oom.pickle.gz", &["--frag-below", "100%", "--json"]));
    let one = &answer["assertions"][0];
    let actual = one["actual_percent"].as_f64().expect("percent");
    assert!((0.0..100.0).contains(&actual), "{one}");
    let rows = explained(&kept("gpt2_oom.pickle.gz"))["ledger"].clone();
    let row = |name: &str| rows.as_array().expect("rows").iter().find(|row| row["name"] == name).cloned();
    let bytes = |name: &str| row(name).expect("a row")["bytes"].as_f64().expect("bytes");
    let share = 100.0 * bytes("cached, pinned by live blocks") / bytes("reserved");
    assert!((actual - share).abs() < 1e-9, "{actual} is not {share}");
}

#[test]
fn a_baseline_bounds_both_peaks_with_its_tolerance() {
    let (same, less) = (kept("leak_layer.pickle.gz"), kept("leak_loss.pickle.gz"));
    let code = |file: &str, baseline: &str, tolerance: &str| {
        let output = plimsoll(&["check", file, "--baseline", baseline, "--tolerance", tolerance]);
        (output.status.code(), stdout(&output))
    };
    assert_eq!(code(&same, &same, "0").0, Some(0));
    let peak = |file: &str| explained(file)["peak_allocated"]["allocated_bytes"].as_u64().expect("bytes");
    let (low, high) = if peak(&same) < peak(&less) { (&same, &less) } else { (&less, &same) };
    let (failed, text) = code(high, low, "2%");
    assert_eq!(failed, Some(1), "{text}");
    assert!(text.contains(" of the baseline and 2 %), but "), "{text}");
    assert!(text.contains("the lines that grew the most:"), "{text}");
    assert_eq!(code(high, low, "100000").0, Some(0));
    // The growth by line equals that of `diff`.
    let changed = json(&plimsoll(&["diff", low, high, "--json"]))["devices"][0]["by_line"].clone();
    let grown = changed.as_array().expect("rows").iter().filter_map(|row| row["change_bytes"].as_u64());
    let grown: Vec<u64> = grown.filter(|&bytes| bytes > 0).take(10).collect();
    let failed = json(&plimsoll(&["check", high, "--baseline", low, "--json"]))["assertions"][0].clone();
    assert_eq!(failed["name"], "baseline-peak");
    let lines = failed["lines"].as_array().expect("lines").iter().filter_map(|row| row["bytes"].as_u64());
    assert_eq!(lines.collect::<Vec<u64>>(), grown);
}

#[test]
fn what_a_recording_cannot_answer_exits_with_4() {
    let output = check("features.bare.pickle.gz", &["--peak-below", "80GiB"]);
    assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
    assert!(stdout(&output).starts_with("incomplete: "), "{}", stdout(&output));
    assert!(stdout(&output).contains("it has no events"), "{}", stdout(&output));
    let output = check("features.bare.pickle.gz", &["--no-oom"]);
    assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
    let said = "incomplete: device 0: it is unknown whether a request failed: ";
    assert!(stdout(&output).starts_with(said), "{}", stdout(&output));
}

#[test]
fn a_leak_fails_no_leak_with_the_lines_that_leak() {
    let output = check("leak_layer.pickle.gz", &["--no-leak"]);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let text = stdout(&output);
    assert!(text.starts_with("failed: leaking: 64.00 KiB per step in 56 of 56 steps"), "{text}");
    assert!(
        text.contains("memory kept per step, by line:\n    +64.00 KiB  ") && text.contains(".py"),
        "{text}"
    );
    let answer = json(&check("leak_layer.pickle.gz", &["--no-leak", "--json"]))["assertions"][0].clone();
    assert_eq!((&answer["name"], &answer["actual_bytes_per_step"]), (&"no-leak".into(), &(64 << 10).into()));
    assert_eq!(answer["lines"][0]["bytes"], 64 << 10);
}

#[test]
fn no_leak_holds_where_memory_is_steady_and_is_open_where_there_are_no_steps() {
    assert_eq!(check("leak_loss.pickle.gz", &["--no-leak"]).status.code(), Some(0));
    let open = check("gpt2_oom.pickle.gz", &["--no-leak"]);
    assert_eq!(open.status.code(), Some(4));
    assert!(stdout(&open).starts_with("incomplete: too few steps to tell"), "{}", stdout(&open));
}

#[test]
fn json_and_junit_say_the_same() {
    let folder = Folder::new("junit");
    let report = folder.file("report.xml");
    let output =
        check("gpt2_oom.pickle.gz", &["--no-oom", "--reserved-below", "1TiB", "--json", "--junit", &report]);
    assert_eq!(output.status.code(), Some(1));
    let answer = json(&output);
    assert_eq!((&answer["schema"], &answer["holds"]), (&"plimsoll.check/1".into(), &false.into()));
    let names =
        |place: usize| (&answer["assertions"][place]["name"], &answer["assertions"][place]["verdict"]);
    assert_eq!(names(0), (&"reserved-below".into(), &"ok".into()));
    assert_eq!(names(1), (&"no-oom".into(), &"failed".into()));
    assert_eq!(answer["assertions"][0]["limit_bytes"], 1_u64 << 40);
    assert_eq!(
        (&answer["assertions"][1]["limit_failures"], &answer["assertions"][1]["actual_failures"]),
        (&0.into(), &1.into())
    );
    assert!(!answer["assertions"][1]["lines"].as_array().expect("lines").is_empty());
    let xml = fs::read_to_string(&report).expect("a report");
    assert!(xml.contains("tests=\"2\" failures=\"1\" errors=\"0\""), "{xml}");
    assert!(xml.contains("<failure message=\"expected no failed request, but "), "{xml}");
    assert_eq!(xml.matches("<testcase ").count(), 2);
}

#[test]
fn on_github_what_does_not_hold_is_an_annotation_on_one_line() {
    let file = kept("leak_layer.pickle.gz");
    let github = |more: &[&str]| {
        let mut program = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
        program.args(["check", &file, "--no-oom", "--peak-below", "1MiB"]).args(more);
        stdout(&program.env("GITHUB_ACTIONS", "true").output().expect("the program starts"))
    };
    let text = github(&[]);
    let commands: Vec<&str> =
        text.lines().filter(|line| line.starts_with("::error title=plimsoll check ")).collect();
    assert_eq!(commands.len(), 1, "{text}");
    assert!(commands[0].contains("::peak was limited to 1024.00 KiB, but "), "{text}");
    assert!(commands[0].contains("%0A  the largest lines at the peak:"), "{text}");
    assert!(!github(&["--json"]).contains("::error"), "JSON stays JSON");
    assert!(!stdout(&check("leak_layer.pickle.gz", &["--peak-below", "1MiB"])).contains("::error"));
}

#[test]
fn nothing_asserted_is_a_usage_error() {
    for args in
        [&[][..], &["--json"], &["--tolerance", "2"], &["--frag-below", "much"], &["--peak-below", "0"]]
    {
        assert_eq!(check("leak_layer.pickle.gz", args).status.code(), Some(2), "{args:?}");
    }
}
