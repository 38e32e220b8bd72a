//! `plimsoll export` as users run it: every format agrees with `plimsoll explain`.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::program::{Folder, explained, kept, plimsoll, stderr, text};

fn export(file: &str, more: &[&str]) -> String {
    text(&[&["export", &kept(file), "--to"], more].concat())
}

/// The sum of a folded file's figures.
fn folded_bytes(folded: &str) -> u64 {
    let bytes = |line: &str| line.rsplit_once(' ').expect("a figure").1.parse::<u64>().expect("bytes");
    folded.lines().map(bytes).sum()
}

#[test]
fn folded_stacks_sum_to_what_is_held_at_the_moment() {
    let (oom, leak) = (explained(&kept("gpt2_oom.pickle.gz")), explained(&kept("leak_layer.pickle.gz")));
    let check = |file, at: &[&str], bytes: &Value| {
        let folded = export(file, &[&["folded"], at].concat());
        assert_eq!(folded_bytes(&folded), bytes.as_u64().expect("bytes"), "{file} {at:?}");
    };
    check("gpt2_oom.pickle.gz", &[], &oom["held"]["bytes"]);
    check("gpt2_oom.pickle.gz", &["--at", "failure"], &oom["failure"]["allocated_bytes"]);
    check("gpt2_oom.pickle.gz", &["--at", "peak"], &oom["peak_allocated"]["allocated_bytes"]);
    let failed_at = oom["failure"]["event"].to_string();
    check("gpt2_oom.pickle.gz", &["--at", &failed_at], &oom["failure"]["allocated_bytes"]);
    check("leak_layer.pickle.gz", &[], &leak["peak_allocated"]["allocated_bytes"]);
    let end = folded_bytes(&export("leak_layer.pickle.gz", &["folded", "--at", "end"]));
    assert!(end < leak["peak_allocated"]["allocated_bytes"].as_u64().expect("bytes"), "{end}");
}

#[test]
fn a_folded_line_goes_from_the_outermost_frame_to_a_figure() {
    let folded = export("gpt2_oom.pickle.gz", &["folded"]);
    assert!(folded.lines().any(|line| line.contains(".py:") && line.contains(';')), "{folded}");
    let (frames, _) = folded.lines().next().expect("a line").rsplit_once(' ').expect("a figure");
    assert!(!frames.is_empty() && !frames.split(';').any(str::is_empty), "{frames}");
    let lines: Vec<&str> = folded.lines().map(|line| line.rsplit_once(' ').expect("a figure").0).collect();
    assert!(lines.is_sorted_by(|a, b| a < b), "a stack stands twice");
}

#[test]
fn speedscope_gets_the_same_stacks_with_each_frame_once() {
    let file: Value = serde_json::from_str(&export("gpt2_oom.pickle.gz", &["speedscope"])).expect("JSON");
    assert_eq!(file["$schema"], "https://www.speedscope.app/file-format-schema.json");
    let frames = file["shared"]["frames"].as_array().expect("frames");
    assert!(frames.iter().all(|frame| frame["name"].is_string()));
    let profile = &file["profiles"][0];
    assert_eq!((&profile["type"], &profile["unit"]), (&"sampled".into(), &"bytes".into()));
    let samples = profile["samples"].as_array().expect("samples");
    let places = samples.iter().flat_map(|sample| sample.as_array().expect("a stack"));
    assert!(places.into_iter().all(|place| place.as_u64().expect("a place") < frames.len() as u64));
    let weights: Vec<u64> =
        profile["weights"].as_array().expect("weights").iter().filter_map(Value::as_u64).collect();
    assert_eq!(weights.len(), samples.len());
    let all = folded_bytes(&export("gpt2_oom.pickle.gz", &["folded"]));
    assert_eq!((weights.iter().sum::<u64>(), profile["endValue"].as_u64()), (all, Some(all)));
}

/// The counters of a trace after each time, and all other events.
fn counters(trace: &Value) -> (Vec<BTreeMap<String, u64>>, Vec<Value>) {
    let (mut levels, mut others): (BTreeMap<u64, BTreeMap<String, u64>>, Vec<Value>) = Default::default();
    let mut now = BTreeMap::new();
    for event in trace["traceEvents"].as_array().expect("events") {
        if event["ph"] == "C" {
            let name = event["name"].as_str().expect("a name").to_owned();
            now.insert(name, event["args"]["bytes"].as_u64().expect("bytes"));
            levels.insert(event["ts"].as_u64().expect("a time"), now.clone());
        } else {
            others.push(event.clone());
        }
    }
    (levels.into_values().collect(), others)
}

#[test]
fn perfetto_gets_counters_that_sum_up_and_the_failure_as_an_instant() {
    let file = "gpt2_oom.pickle.gz";
    let trace: Value = serde_json::from_str(&export(file, &["perfetto"])).expect("JSON");
    let (levels, others) = counters(&trace);
    assert!(levels.len() > 100);
    for level in &levels {
        let categories: u64 = level
            .iter()
            .filter(|(name, _)| !["allocated", "reserved"].contains(&name.as_str()))
            .map(|(_, b)| b)
            .sum();
        assert_eq!(categories, level["allocated"], "{level:?}");
    }
    let answer = explained(&kept(file));
    let peak = |name: &str| levels.iter().map(|level| level[name]).max();
    assert_eq!(peak("reserved"), answer["peak_reserved"]["reserved_bytes"].as_u64());
    assert!(peak("allocated") <= answer["peak_allocated"]["allocated_bytes"].as_u64());
    let failed: Vec<&Value> = others.iter().filter(|event| event["ph"] == "i").collect();
    assert_eq!(failed.len() as u64, answer["failure"]["failures"].as_u64().expect("a number"));
    assert_eq!(failed[failed.len() - 1]["args"]["asked_bytes"], answer["failure"]["asked_bytes"]);
}

#[test]
fn perfetto_gets_scopes_that_lie_in_each_other_or_apart() {
    let trace: Value = serde_json::from_str(&export("features.p4.pickle.gz", &["perfetto"])).expect("JSON");
    let (_, others) = counters(&trace);
    let number = |event: &Value, key: &str| event[key].as_u64().expect("a number");
    let scopes: Vec<(u64, u64, u64)> = others
        .iter()
        .filter(|event| event["ph"] == "X")
        .map(|event| (number(event, "tid"), number(event, "ts"), number(event, "ts") + number(event, "dur")))
        .collect();
    assert!(!scopes.is_empty());
    for (a, b) in scopes.iter().flat_map(|a| scopes.iter().map(move |b| (a, b))) {
        let crosses = a.0 == b.0 && a.1 < b.1 && b.1 < a.2 && a.2 < b.2;
        assert!(!crosses, "{a:?} crosses {b:?}");
    }
}

/// The counters and the clock of an exported recording with this trace.
fn traced(name: &str, events: &[&str]) -> (Vec<BTreeMap<String, u64>>, Value) {
    let folder = Folder::new(name);
    let file = folder.file("snapshot.json");
    let trace = events.join(",");
    let segment = r#"{"address": 2097152, "total_size": 2097152, "stream": 0, "segment_type": "small",
        "blocks": [{"address": 2097152, "size": 512, "state": "active_allocated"}]}"#;
    fs::write(&file, format!(r#"{{"segments": [{segment}], "device_traces": [[{trace}]]}}"#))
        .expect("a file");
    let trace: Value = serde_json::from_str(&text(&["export", &file, "--to", "perfetto"])).expect("JSON");
    (counters(&trace).0, trace["otherData"]["clock"].clone())
}

#[test]
fn a_recording_without_times_counts_its_events() {
    let alloc = r#"{"action": "alloc", "addr": 2097152, "size": 512, "stream": 0}"#;
    let other = r#"{"action": "alloc", "addr": 2097664, "size": 512, "stream": 0}"#;
    let free = r#"{"action": "free_requested", "addr": 2097664, "size": 512, "stream": 0}"#;
    let done = r#"{"action": "free_completed", "addr": 2097664, "size": 512, "stream": 0}"#;
    let (levels, clock) = traced("no-times", &[alloc, other, free, done]);
    assert_eq!(clock, "event numbers");
    let allocated: Vec<u64> = levels.iter().map(|level| level["allocated"]).collect();
    assert_eq!(allocated, [512, 1024, 512]);
}

#[test]
fn a_recording_without_events_has_a_level_all_the_same() {
    let (levels, _) = traced("no-events", &[]);
    let level = |name: &str| levels.iter().map(|level| level[name]).collect::<Vec<_>>();
    assert_eq!((level("allocated"), level("reserved")), (vec![512], vec![2 << 20]));
}

#[test]
fn memory_viz_gets_a_pickle_of_protocol_4_that_says_the_same() {
    let folder = Folder::new("memory-viz");
    for file in ["features.p2.pickle.gz", "features.p5.pickle.gz", "little.json.gz", "gpt2_oom.pickle.gz"] {
        let out = folder.file(file);
        text(&["export", &kept(file), "--to", "memory_viz", "-o", &out]);
        assert!(fs::read(&out).expect("a file").starts_with(&[0x80, 4]), "{file}");
        assert_eq!(explained(&out), explained(&kept(file)), "{file}");
    }
}

#[test]
fn a_file_that_is_there_is_replaced_only_with_force() {
    let folder = Folder::new("export-force");
    let out = folder.file("a.folded");
    let (file, to) = (kept("little.json.gz"), ["--to", "folded", "-o", &out]);
    let export = |more: &[&str]| plimsoll(&[&["export", &file], &to[..], more].concat());
    fs::write(&out, "mine").expect("a file");
    let refused = export(&[]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("already exists: add --force"), "{}", stderr(&refused));
    assert_eq!(fs::read_to_string(&out).expect("a file"), "mine");
    assert_eq!(export(&["--force"]).status.code(), Some(0));
    assert_ne!(fs::read_to_string(&out).expect("a file"), "mine");
    assert_eq!(folder.names(), ["a.folded"]);
    let nowhere = plimsoll(&["export", &file, "--to", "folded", "-o", &folder.file("no/such/a.folded")]);
    assert_eq!(nowhere.status.code(), Some(3), "{}", stderr(&nowhere));
}

#[cfg(unix)]
#[test]
fn a_link_stays_a_link_and_a_device_a_device() {
    let folder = Folder::new("export-link");
    let (file, link) = (kept("little.json.gz"), folder.file("link"));
    fs::write(folder.file("target"), "old").expect("a file");
    std::os::unix::fs::symlink(folder.file("target"), &link).expect("a link");
    text(&["export", &file, "--to", "folded", "-o", &link, "-f"]);
    assert!(fs::symlink_metadata(&link).expect("a link").is_symlink());
    assert_ne!(fs::read_to_string(folder.file("target")).expect("a file"), "old");
    text(&["export", &file, "--to", "folded", "-o", "/dev/null"]);
    assert!(!fs::metadata("/dev/null").expect("a device").is_file());
}

#[test]
fn moments_that_are_not_there_are_usage_errors() {
    let check = |file: &str, more: &[&str], part: &str| {
        let output = plimsoll(&[&["export", &kept(file), "--to"], more].concat());
        assert_eq!(output.status.code(), Some(2), "{more:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(part), "`{part}` is not in: {}", stderr(&output));
    };
    check("leak_layer.pickle.gz", &["folded", "--at", "failure"], "no request failed");
    check("gpt2_oom.pickle.gz", &["folded", "--at", "99999999"], "there is no event 99999999");
    check("gpt2_oom.pickle.gz", &["folded", "--at", "noon"], "a moment is peak, end, failure");
    check("gpt2_oom.pickle.gz", &["perfetto", "--at", "peak"], "--at works only with folded and speedscope");
    check("gpt2_oom.pickle.gz", &["memory_viz", "--device", "0"], "leave out --device");
    check("gpt2_oom.pickle.gz", &["sculpture"], "possible values");
}

#[test]
fn a_reader_that_goes_away_ends_an_export_quietly() {
    for format in ["folded", "perfetto", "memory_viz"] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
            .args(["export", &kept("gpt2_oom.pickle.gz"), "--to", format])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program starts");
        drop(child.stdout.take());
        let output = child.wait_with_output().expect("an end");
        assert_eq!(output.status.code(), Some(0), "{format}: {}", stderr(&output));
        assert!(!stderr(&output).contains("error"), "{}", stderr(&output));
    }
}

#[test]
fn a_database_has_every_event_segment_and_block() {
    let folder = Folder::new("sqlite");
    let (file, out) = (kept("gpt2_oom.pickle.gz"), folder.file("a.db"));
    text(&["export", &file, "--to", "sqlite", "-o", &out]);
    let database = rusqlite::Connection::open(&out).expect("a database");
    let number = |query: &str| database.query_row(query, [], |row| row.get::<_, i64>(0)).expect(query);
    let answer = explained(&file);
    assert_eq!(
        number("SELECT count(*) FROM device_traces") as u64,
        answer["events"].as_u64().expect("events")
    );
    let oom = "SELECT size FROM device_traces WHERE action = 'oom' ORDER BY id DESC LIMIT 1";
    assert_eq!(Some(number(oom) as u64), answer["failure"]["asked_bytes"].as_u64());
    // Every block is inside its segment, and the blocks fill it.
    let misplaced = "SELECT count(*) FROM blocks b JOIN segments s ON b.segment_id = s.id \
                     WHERE b.addr < s.addr OR b.addr + b.size > s.addr + s.total_size";
    assert_eq!(number(misplaced), 0);
    assert_eq!(number("SELECT sum(size) FROM blocks"), number("SELECT sum(total_size) FROM segments"));
    let line = "SELECT json_extract(frames, '$[0].line') FROM device_traces WHERE frames != '[]' LIMIT 1";
    assert!(number(line) >= 0);
    let check: String = database.query_row("PRAGMA integrity_check", [], |row| row.get(0)).expect("a check");
    assert_eq!(check, "ok");
}

#[test]
fn folded_stacks_have_frames_of_cpp_only_where_they_are_asked_for() {
    let (plain, native) =
        (export("gpt2_oom.pickle.gz", &["folded"]), export("gpt2_oom.pickle.gz", &["folded", "--native"]));
    assert!(!plain.contains(".so") && native.contains("libpython3"), "{plain}");
    assert_eq!(folded_bytes(&plain), folded_bytes(&native));
    assert_eq!(
        plimsoll(&["export", &kept("gpt2_oom.pickle.gz"), "--to", "perfetto", "--native"]).status.code(),
        Some(2)
    );
}
