//! The recorded messages of `tests/protocol/messages.jsonl`, as this side reads and writes them.

use serde::de::DeserializeOwned;

use super::*;

/// Recorded messages: the kind, and the message.
fn recorded(kind: &str) -> Vec<Value> {
    let lines = include_str!("../../tests/protocol/messages.jsonl").lines();
    let all = lines.map(|line| serde_json::from_str::<(String, Value)>(line).expect("a kind and a message"));
    let found: Vec<Value> = all.filter(|(it, _)| it == kind).map(|(_, message)| message).collect();
    assert!(!found.is_empty(), "no message is a {kind}");
    found
}

fn read<T: DeserializeOwned>(kind: &str) -> Vec<T> {
    recorded(kind).into_iter().map(|it| serde_json::from_value(it).expect("readable")).collect()
}

#[test]
fn what_python_writes_is_read() {
    let reports: Vec<Report> = read("Report");
    assert!(reports.iter().all(|report| report.protocol == VERSION));
    let cut =
        reports.iter().find(|report| report.state == ProcessState::Stopped).expect("one that was stopped");
    assert_eq!((cut.steps, cut.devices.len(), cut.standin), (3, 1, true));
    assert!(cut.reads.iter().any(|read| read.fate == Fate::Branch && !read.sinks.is_empty()));
    assert!(reports.iter().any(|report| report.error.is_some()));
    assert_eq!((cut.holders.len(), cut.holders[0].tensors), (1, 12));
    assert_eq!(cut.devices[0].outside_bytes, Some(cut.outside.iter().map(|row| row.bytes).sum()));
    let refused = reports.iter().find_map(|report| report.refused.as_ref()).expect("one that did not fit");
    assert!(refused.row.bytes > refused.free_bytes);
    let done: Vec<Done> = read("Done");
    assert!(done.iter().any(|it| it.status == 0 && !it.beside));
    assert!(done.iter().any(|it| it.status == UNABLE));
    let measured: Vec<Measured> = read("Measured");
    assert!(measured[0].allocated_bytes <= measured[0].reserved_bytes);
}

#[test]
fn what_python_reads_has_the_recorded_fields() {
    let set = serde_json::json!({ "checkpoint": null, "accumulate": 2 });
    let request = Request {
        set: &set,
        reports: Path::new("/tmp/plan/reports-0"),
        shared: Path::new("/tmp/plan/shared-0"),
        view: Path::new("/tmp/plan/view-0"),
        limit_s: 600.0,
        limit_bytes: Some(23_922_540_544),
        memory_bytes: None,
        records: true,
        settles: false,
        stops: true,
        looks: true,
        counts: false,
        shows: true,
        ranks: 1,
        alone: true,
    };
    assert_eq!(recorded("Request"), [serde_json::to_value(request).expect("JSON")]);
    let cover = Cover {
        place: Path::new("/home/me"),
        lower: Path::new("/proc/self/fd/7"),
        upper: Path::new("/tmp/scratch/0/upper"),
    };
    let view = View {
        privileged: false,
        session: Path::new("/tmp/session"),
        scratch_bytes: 1 << 30,
        covers: vec![cover],
    };
    assert_eq!(recorded("View"), [serde_json::to_value(view).expect("JSON")]);
}

#[test]
fn both_sides_have_the_same_version_and_the_same_names() {
    let python = include_str!("../../python/plimsoll/protocol.py");
    let has = |line: &str| python.lines().any(|it| it == line || it.starts_with(&format!("{line}  #")));
    assert!(has(&format!("VERSION = {VERSION}")));
    let [started, done] = MARKS.map(|it| it.trim_start_matches('.'));
    for (name, value) in [
        ("STOP", STOP),
        ("STARTED", started),
        ("DONE", done),
        ("LATE", LATE),
        ("END", END),
        ("UNABLE", UNABLE),
        ("LOADED", LOADED),
        ("APPLIED", APPLIED),
    ] {
        assert!(has(&format!("{name} = \"{value}\"")), "{name}");
    }
}
