//! A recording of several devices: its verdict is that of the most important device, in every form of every verb.

use std::fs;
use std::path::Path;

use plimsoll_trace::snapshot::{Action, Segment, Snapshot};
use plimsoll_trace::{Sharing, input, output};

use crate::program::{Folder, json, kept, plimsoll, stderr, stdout, text};

/// A recording of the same program on two devices: on the first up to its failure, on the second including the
/// failure.
fn two_devices(folder: &Folder) -> String {
    let mut snapshot = input::open(Path::new(&kept("gpt2_oom.pickle.gz"))).expect("a snapshot");
    let trace = snapshot.traces.remove(0);
    let spared = trace.iter().copied().filter(|event| event.action != Action::Oom).collect();
    let on = |device: i32, segment: &Segment| Segment { device: Some(device), ..segment.clone() };
    let segments =
        [0, 1].map(|device| snapshot.segments.iter().map(move |it| on(device, it)).collect::<Vec<_>>());
    let snapshot = Snapshot { segments: segments.concat(), traces: vec![spared, trace], ..snapshot };
    let path = folder.file("two.pickle");
    output::save(&snapshot, Path::new(&path), Sharing::Equal).expect("a file");
    path
}

#[test]
fn the_device_that_ran_out_is_the_first_line_and_the_first_of_the_devices() {
    let folder = Folder::new("two-devices-text");
    let answer = text(&["explain", &two_devices(&folder)]);
    let first = answer.lines().next().expect("a line");
    assert!(first.starts_with("device 1: out of memory: CAPACITY. Tried to allocate 384.00 MiB"), "{first}");
    let rows: Vec<&str> = answer.lines().filter(|line| line.starts_with("  device ")).collect();
    assert!(
        rows[0].contains("device 1") && rows[0].ends_with("out of memory: CAPACITY, short by 104.93 MiB")
    );
    assert!(rows[1].contains("device 0") && rows[1].ends_with("nothing failed"), "{rows:?}");
    let places = ["\ndevice 1: out of memory", "\ndevice 0: nothing failed"].map(|part| answer.find(part));
    assert!(places[0].is_some() && places[0] < places[1], "{answer}");
}

#[test]
fn lines_of_which_several_devices_have_a_part_stand_side_by_side() {
    let folder = Folder::new("two-devices-lines");
    let file = two_devices(&folder);
    let answer = text(&["explain", &file]);
    let (_, lines) = answer.split_once("Lines with blocks on several devices").expect("the lines");
    let row = lines.lines().find(|line| line.contains("activations.py:66 forward")).expect("a row");
    assert_eq!(row.matches("20 of 40 blocks").count(), 2, "{row}");
    let answer = json(&plimsoll(&["explain", &file, "--json"]));
    let rows = answer["lines_of_several_devices"].as_array().expect("rows");
    let row = rows.iter().find(|row| row["package_line"]["line"] == 66).expect("a row");
    assert_eq!(row["blocks"], serde_json::json!([20, 20]));
    assert_eq!((&answer["verdict"]["device"], &answer["verdict"]["failed"]), (&1.into(), &true.into()));
    assert_eq!(answer["devices"][0]["device"], 1);
}

#[test]
fn the_page_begins_with_the_device_that_ran_out() {
    let folder = Folder::new("two-devices-page");
    let (file, page) = (two_devices(&folder), folder.file("page.html"));
    let output = plimsoll(&["explain", &file, "--html", &page]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let page = fs::read_to_string(&page).expect("the page");
    let verdict = page.find("<h2 class=\"verdict failed\">device 1: out of memory").expect("the verdict");
    assert!(page.find("<h2 class=\"verdict").is_some_and(|first| first == verdict), "it is the first");
    let [help, owners, rows, section] =
        ["What would help", "The largest owners", "device by device", "<section class=\"device\""]
            .map(|part| page.find(part).expect(part));
    assert!([verdict, help, owners, rows, section].is_sorted());
    assert!(page.contains("<p class=\"title\">device 1</p>") && page.contains("20 of 40 blocks"));
}

#[test]
fn without_a_failure_the_verdict_is_of_all_devices() {
    let answer = text(&["explain", &kept("programs/two_devices.pickle.gz")]);
    let first = answer.lines().next().expect("a line");
    assert!(
        first.starts_with("nothing failed on 2 devices: peak ") && first.ends_with(" on device 0"),
        "{first}"
    );
    let answer = json(&plimsoll(&["explain", &kept("programs/two_devices.pickle.gz"), "--json"]));
    assert_eq!(
        (&answer["verdict"]["device"], &answer["devices"][0]["device"]),
        (&serde_json::Value::Null, &0.into())
    );
}

#[test]
fn other_verbs_begin_with_the_device_that_is_worst() {
    let folder = Folder::new("two-devices-verbs");
    let file = two_devices(&folder);
    let failed = plimsoll(&["check", &file, "--no-oom"]);
    assert!(stdout(&failed).starts_with("failed: device 1: "), "{}", stdout(&failed));
    // A leak on the second device.
    let mut leak = input::open(Path::new(&kept("leak_layer.pickle.gz"))).expect("a snapshot");
    let quiet = leak.traces[0].iter().take(50).copied().collect();
    leak.traces.insert(0, quiet);
    leak.segments.iter_mut().for_each(|segment| segment.device = Some(1));
    let path = folder.file("leak.pickle");
    output::save(&leak, Path::new(&path), Sharing::Equal).expect("a file");
    assert!(text(&["leaks", &path]).starts_with("device 1: leaking"));
    assert!(text(&["explain", &path]).starts_with("device 1: LEAK"));
    let doctor = text(&["doctor", &path]);
    let grades: Vec<&str> = doctor.lines().filter(|line| line.starts_with("device ")).collect();
    assert!(grades[0].starts_with("device 0: ") && !grades[0].contains("good"), "{grades:?}");
}

#[test]
fn whatif_and_diff_list_the_device_that_ran_out_first() {
    let folder = Folder::new("two-devices-first");
    let file = two_devices(&folder);
    let first = text(&["whatif", &file]).lines().next().expect("a line").to_owned();
    assert!(first.starts_with("device 1: no setting tried would have served"), "{first}");
    let devices = |verb: &[&str]| {
        let answer = json(&plimsoll(verb));
        let devices = answer["devices"].as_array().expect("devices").clone();
        let number = |device: &serde_json::Value| device["device"].as_i64().expect("a number");
        devices.iter().map(number).collect::<Vec<_>>()
    };
    assert_eq!(devices(&["whatif", &file, "--json"]), [1, 0]);
    // The order is the same with user-defined settings, which are simulated again.
    assert_eq!(devices(&["whatif", &file, "expandable_segments:True", "--json"]), [1, 0]);
    let answer = text(&["diff", &file, &file]);
    let places = ["device 1: ", "device 0: "].map(|part| answer.find(part));
    assert!(places[0].is_some() && places[0] < places[1], "{answer}");
}
