//! `plimsoll explain` as users run it.

use crate::program::{Folder, explained, json, kept, plimsoll, stderr, text};

/// The sum of a table's bytes.
fn sum(rows: &serde_json::Value) -> u64 {
    let rows = rows.as_array().expect("a table");
    rows.iter().map(|row| row["bytes"].as_u64().expect("bytes")).sum()
}

#[test]
fn an_out_of_memory_run_is_explained_by_how_much_was_missing_and_what_was_allocated() {
    let answer = text(&["explain", &kept("gpt2_oom.pickle.gz")]);
    let first = answer.lines().next().expect("a line");
    assert!(
        first.starts_with("out of memory: CAPACITY. Tried to allocate 384.00 MiB, short by 104.93 MiB"),
        "{first}"
    );
    assert!(answer.contains("activations.py:66 forward"), "{answer}");
    assert!(answer.contains("every block at the address that PyTorch chose"), "{answer}");
}

#[test]
fn every_table_sums_to_what_was_held_and_that_is_what_pytorch_allocated() {
    for file in ["gpt2_oom.pickle.gz", "leak_layer.pickle.gz", "leak_loss.pickle.gz"] {
        let device = explained(&kept(file));
        let held = &device["held"];
        let all = held["bytes"].as_u64();
        for table in ["by_category", "by_line", "by_operator"] {
            assert_eq!(Some(sum(&held[table])), all, "{file}: {table}");
        }
        let allocated = match &device["failure"] {
            serde_json::Value::Null => &device["peak_allocated"]["allocated_bytes"],
            failure => &failure["allocated_bytes"],
        };
        assert_eq!(allocated.as_u64(), all, "{file}");
        assert_eq!(device["replay"]["identical"], true, "{file}");
    }
}

#[test]
fn the_ledgers_parts_sum_to_what_is_reserved() {
    let device = explained(&kept("gpt2_oom.pickle.gz"));
    let rows = device["ledger"].as_array().expect("rows");
    let parts = rows.iter().filter(|row| row["part_of"] == "reserved");
    let parts: u64 = parts.map(|row| row["bytes"].as_u64().expect("known")).sum();
    let reserved = rows.iter().find(|row| row["name"] == "reserved").expect("a row");
    assert_eq!(reserved["bytes"].as_u64(), Some(parts));
}

#[test]
fn phases_rises_and_the_purpose_of_a_request_are_shown() {
    let (evaluation, adam) =
        (kept("programs/oom_evaluation.pickle.gz"), kept("programs/adam_fused.pickle.gz"));
    let answer = text(&["explain", &evaluation]);
    assert!(answer.lines().any(|line| line.starts_with("requested") && line.ends_with(" during evaluation")));
    assert_eq!(explained(&evaluation)["peaks"]["failed_in"], "evaluation");
    let answer = text(&["explain", &adam]);
    let (_, phases) = answer.split_once("Peaks by phase").expect("phases");
    assert!(phases.lines().nth(1).is_some_and(|first| first.contains("  backward  ")), "{answer}");
    let (_, rise) = answer.split_once("  step 1 -> step 2").expect("a rise");
    assert!(rise.lines().nth(1).is_some_and(|first| first.contains("optimizer state")), "{answer}");
    let peaks = explained(&adam)["peaks"].clone();
    assert_eq!((&peaks["phases"][0]["phase"], &peaks["scopes_left_out"]), (&"backward".into(), &0.into()));
    let rise = &peaks["rises"][0];
    assert_eq!((&rise["steps"], &rise["pass"]), (&serde_json::json!([1, 2]), &"backward".into()));
    assert_eq!(rise["lines"][0]["category"], "optimizer state");
    let file = kept("gpt2_oom.pickle.gz");
    let answer = text(&["explain", &file]);
    assert!(answer.lines().any(|line| line.starts_with("perhaps [")), "{answer}");
    assert!(explained(&file)["failure"]["shapes"][0]["dims"].is_array());
}

#[test]
fn a_leak_is_the_verdict_with_its_bytes_a_step() {
    let answer = text(&["explain", &kept("leak_layer.pickle.gz")]);
    assert!(answer.starts_with("LEAK: 64.00 KiB per step in 56 of 56 steps (certain)"), "{answer}");
    let device = explained(&kept("leak_loss.pickle.gz"));
    assert_ne!(
        device["leaks"]["whole"]["verdict"], "leaking",
        "its device memory is the same after each step"
    );
}

#[test]
fn what_others_hold_is_the_verdict_where_it_is_more_than_was_missing() {
    let file = kept("gpt2_oom.pickle.gz");
    let failure = |total: u64| {
        let output = plimsoll(&["explain", &file, "--device-total", &total.to_string(), "--json"]);
        json(&output)["devices"][0]["failure"].clone()
    };
    let known = explained(&file)["failure"].clone();
    let of = |figure: &str| known[figure].as_u64().expect("bytes");
    let without_others = of("reserved_bytes") + of("device_free_bytes");
    let own_context = 1 << 30;
    let enough = without_others + own_context + of("short_bytes") + 1;
    assert_eq!(failure(enough - 1)["cause"], "capacity");
    let answer = failure(enough);
    assert_eq!((&answer["cause"], &answer["short_bytes"]), (&"held by others".into(), &known["short_bytes"]));
    assert_eq!(answer["held_by_others_bytes"], own_context + of("short_bytes") + 1);
    let answer = text(&["explain", &file, "--device-total", &enough.to_string()]);
    assert!(answer.starts_with("out of memory: USED BY OTHERS. Tried to allocate 384.00 MiB"), "{answer}");
}

#[test]
fn guesses_can_be_left_out() {
    let output = plimsoll(&["explain", &kept("gpt2_oom.pickle.gz"), "--no-infer", "--json"]);
    let held = json(&output)["devices"][0]["held"]["by_category"].clone();
    assert_eq!(held.as_array().map(Vec::len), Some(1));
    assert_eq!(held[0]["confidence"], "unknown");
}

#[test]
fn what_is_no_snapshot_is_refused_with_exit_code_3() {
    let output = plimsoll(&["explain", file!()]);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
    let output = plimsoll(&["explain", "no-such-file.pickle"]);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
}

#[test]
fn a_device_that_is_not_there_is_a_usage_error_that_names_those_that_are() {
    let output = plimsoll(&["explain", &kept("gpt2_oom.pickle.gz"), "--device", "3"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("device 3"), "{}", stderr(&output));
}

#[test]
fn holes_are_shown_with_what_pins_them_and_over_time() {
    let device = explained(&kept("leak_layer.pickle.gz"));
    let holes = &device["fragmentation"];
    let number = |value: &serde_json::Value| value.as_u64().expect("a number");
    let pins = holes["pins"].as_array().expect("pins");
    let pinned: u64 = pins.iter().map(|pin| number(&pin["pinned_bytes"])).sum();
    assert_eq!(pinned, number(&holes["pinned_bytes"]));
    let born: Vec<_> = pins.iter().map(|pin| pin["oldest"]["born_event"].as_u64()).collect();
    assert!(born.is_sorted() && born.len() > 3, "{born:?}");
    let over_time = holes["over_time"].as_array().expect("moments");
    assert_eq!(over_time.len(), 32);
    assert!(over_time.iter().all(|it| number(&it["largest_bytes"]) <= number(&it["reserved_bytes"])));
    let answer = text(&["explain", &kept("leak_layer.pickle.gz")]);
    let row = answer.lines().find(|row| row.contains("the largest hole over time: ")).expect("a row");
    assert_eq!(row.matches(',').count(), 7, "{row}");
    assert!(device["verdict"].as_str().is_some_and(|verdict| answer.starts_with(verdict)));
}

#[test]
fn what_stays_at_the_end_stands_beside_the_peak_if_it_is_more_than_little() {
    let file = kept("programs/two_devices.pickle.gz");
    let answer = text(&["explain", &file, "--device", "0"]);
    let (_, stays) = answer.split_once("Live at the end: ").expect("a section");
    assert!(
        stays.starts_with(
            "65.00 MiB is live when the recording ends, 22.9 % of the 283.24 MiB live at the peak"
        )
    );
    let end = &explained(&file)["held_at_end"];
    for table in ["by_category", "by_line"] {
        assert_eq!(Some(sum(&end[table])), end["bytes"].as_u64(), "{table}");
    }
    assert_eq!(end["by_category"][0]["category"], "workspace");
    // If a recording ends at the failure, there is no section about the end.
    let answer = text(&["explain", &kept("gpt2_oom.pickle.gz")]);
    assert!(!answer.contains("Live at the end"), "{answer}");
    assert!(explained(&kept("gpt2_oom.pickle.gz"))["held_at_end"].is_null());
}

#[test]
fn a_file_without_events_says_what_cannot_be_known() {
    let answer = text(&["explain", &kept("features.bare.pickle.gz")]);
    assert!(
        !answer.contains("nothing failed") && answer.contains("failures and the peak are unknown"),
        "{answer}"
    );
    let answer = json(&plimsoll(&["explain", &kept("features.bare.pickle.gz"), "--json"]));
    assert!(answer["verdict"]["failed"].is_null(), "{answer}");
}

#[test]
fn a_recording_of_our_own_runtime_names_layers_and_its_one_step() {
    let folder = Folder::new("own-recording");
    let file = folder.file("own.pickle");
    text(&["train", "mnist", "--images", "20", "--epochs", "1", "--device", "sim", "--snapshot", &file]);
    let answer = text(&["explain", &file]);
    for part in ["fc1.weight > tensor", "Plimsoll's runtime", "Growth by step: 1 step ("] {
        assert!(answer.contains(part), "{part} in {answer}");
    }
    assert!(!answer.contains("torch."), "{answer}");
}
