//! `plimsoll explain --events` and user-defined categories, as users run them.

use serde_json::Value;

use crate::program;
use crate::program::{json, kept, plimsoll, stderr, text};

fn events(args: &[&str]) -> Value {
    let file = kept("gpt2_oom.pickle.gz");
    let output = plimsoll(&[&["explain", &file, "--json", "--events"], args].concat());
    assert_eq!(output.status.code(), Some(0), "{args:?}: {}", stderr(&output));
    json(&output)["devices"][0].clone()
}

#[test]
fn the_events_around_a_failure_have_levels_lives_and_stacks() {
    let device = events(&["--before", "3", "--after", "2"]);
    let at = device["at_event"].as_u64().expect("an event");
    let rows = device["events"].as_array().expect("events");
    let numbers: Vec<u64> = rows.iter().map(|row| row["event"].as_u64().expect("a number")).collect();
    assert_eq!(numbers, [at - 3, at - 2, at - 1, at, at + 1, at + 2]);
    let failed = &rows[3];
    assert_eq!((&failed["action"], &failed["bytes"]), (&"oom".into(), &402_653_184.into()));
    assert!(failed["device_free_bytes"].is_u64(), "{failed}");
    assert!(failed["frames"].as_array().is_some_and(|frames| frames.len() > 9), "{failed}");
    let explained = program::explained(&kept("gpt2_oom.pickle.gz"));
    assert_eq!(failed["level"]["allocated_bytes"], explained["failure"]["allocated_bytes"]);
    let freed = rows.iter().find(|row| row["action"] == "free_completed").expect("a block that was freed");
    assert!(freed["block"]["asked_for_by_event"].as_u64() < freed["event"].as_u64(), "{freed}");
}

#[test]
fn a_moment_is_the_peak_an_event_or_a_time() {
    let explained = program::explained(&kept("gpt2_oom.pickle.gz"));
    assert_eq!(events(&["peak"])["at_event"], explained["peak_allocated"]["after_event"]);
    let tenth = events(&["10", "--before", "0", "--after", "0"]);
    assert_eq!((&tenth["at_event"], tenth["events"].as_array().map(Vec::len)), (&10.into(), Some(1)));
    let late = events(&["100s"]);
    assert_eq!(late["at_event"].as_u64(), late["recorded_events"].as_u64().map(|all| all - 1));
    let since = events(&["50ms", "--after", "0"])["events"].as_array().expect("events").last().cloned();
    let since_us = since.as_ref().and_then(|event| event["since_first_us"].as_u64());
    assert!(since_us.is_some_and(|us| us <= 50_000), "{since:?}");
}

#[test]
fn events_for_people_mark_the_moment_and_count_the_frames_that_are_left_out() {
    let file = kept("gpt2_oom.pickle.gz");
    let answer = text(&["explain", &file, "--events", "--before", "1", "--after", "1"]);
    assert!(answer.contains("> marks the moment: when memory ran out"), "{answer}");
    let marked = |line: &str| line.starts_with("> event") && line.contains("oom 384.00 MiB");
    assert!(answer.lines().any(marked), "{answer}");
    assert!(answer.contains("--frames all prints them"), "{answer}");
    let all = text(&["explain", &file, "--events", "--frames", "all"]);
    assert!(all.contains("at::_ops::") && !all.contains("prints them"), "{all}");
    assert!(!text(&["explain", &file, "--events", "--frames", "none"]).contains("forward\n"));
}

#[test]
fn a_moment_that_is_not_there_is_refused() {
    let (file, other) = (kept("gpt2_oom.pickle.gz"), kept("leak_loss.pickle.gz"));
    let refused = |args: &[&str], why: &str| {
        let output = plimsoll(&[&["explain"], args].concat());
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(stderr(&output).contains(why), "{args:?}: {}", stderr(&output));
    };
    refused(&[&file, "--events", "1000000"], "there is no event 1000000");
    refused(&[&file, "--events", "soon"], "a moment is peak, end, failure");
    refused(&[&other, "--events", "failure"], "no request failed");
    refused(&[&file, &other, "--events"], "one snapshot");
    refused(&[&file, "--before", "3"], "--events");
    refused(&[&file, "--category", "mlp"], "NAME=REGEX");
    refused(&[&file, "--category", "mlp=("], "not a regular expression");
}

/// The bytes of a category in a table by category.
fn bytes_of(rows: &Value, name: &str) -> Option<u64> {
    let rows = rows.as_array()?;
    rows.iter().find(|row| row["category"] == name)?["bytes"].as_u64()
}

/// The sum of a table's bytes.
fn sum<'a>(rows: impl Iterator<Item = &'a Value>) -> u64 {
    rows.map(|row| row["bytes"].as_u64().expect("bytes")).sum()
}

const GELU: [&str; 2] = ["--category", r"gelu=activations\.py:\d+ forward$"];
const MLP: [&str; 2] = ["--category", r"mlp=pytorch_utils\.py"];

#[test]
fn blocks_whose_frames_match_are_shown_as_the_users_own_category_and_tables_still_sum() {
    let file = kept("gpt2_oom.pickle.gz");
    let explain = ["explain", &file, "--json"];
    let output = plimsoll(&[explain.as_slice(), &GELU, &MLP].concat());
    let held = json(&output)["devices"][0]["held"].clone();
    let is_gelu = |row: &&Value| {
        row["package_line"]["file"].as_str().is_some_and(|file| file.ends_with("/activations.py"))
    };
    let gelu = sum(held["by_line"].as_array().expect("lines").iter().filter(is_gelu));
    assert_eq!(bytes_of(&held["by_category"], "gelu"), Some(gelu));
    let all = sum(held["by_category"].as_array().expect("rows").iter());
    assert_eq!(held["bytes"].as_u64(), Some(all));
    // The first match counts.
    let output = plimsoll(&[explain.as_slice(), &["--category", "all=."], &GELU].concat());
    let rows = json(&output)["devices"][0]["held"]["by_category"].clone();
    assert_eq!(bytes_of(&rows, "all"), Some(all));
    assert!(stderr(&output).contains("--category gelu: no frame matches"), "{}", stderr(&output));
}

#[test]
fn both_sides_of_a_difference_have_the_users_categories() {
    let (before, after) = (kept("gpt2_oom.pickle.gz"), kept("leak_loss.pickle.gz"));
    for [a, b] in [[&before, &after], [&after, &before], [&before, &before]] {
        let output = plimsoll(&[["diff", a, b, "--json"].as_slice(), &MLP].concat());
        let rows = json(&output)["devices"][0]["by_category"].clone();
        let mlp = rows.as_array().expect("rows").iter().find(|row| row["category"] == "mlp");
        let mlp = mlp.expect("a row of the user's own");
        let has = [a, b].map(|file| *file == before);
        assert_eq!([0, 1].map(|side| mlp["bytes"][side].as_u64() > Some(0)), has, "{mlp}");
    }
}

#[test]
fn check_and_perfetto_show_the_users_categories() {
    let file = kept("gpt2_oom.pickle.gz");
    let output = plimsoll(&[["check", &file, "--peak-below", "1GiB", "--json"].as_slice(), &MLP].concat());
    assert!(json(&output).to_string().contains(r#""category":"mlp""#));
    let answer = text(&[["export", &file, "--to", "perfetto"].as_slice(), &MLP].concat());
    assert!(answer.contains(r#""name":"mlp""#));
    let output = plimsoll(&[["export", &file, "--to", "folded"].as_slice(), &MLP].concat());
    assert_eq!(output.status.code(), Some(2));
}
