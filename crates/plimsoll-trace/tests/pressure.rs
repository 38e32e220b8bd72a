//! Memory pressure in PyTorch's recordings: retries, `empty_cache()`, garbage collection, and recordings that were
//! started again.

use plimsoll_trace::explain::{DeviceExplanation, Options, Origins};
use plimsoll_trace::pressure::Pressure;
use plimsoll_trace::replay::Replay;
use plimsoll_trace::snapshot::{Setting, Snapshot};
use plimsoll_trace::timeline::Timeline;
use plimsoll_trace::whatif::{Advice, CapacitySource, SETTINGS, WhatIf};

use crate::files;

const MIB: u64 = 1 << 20;

fn scene(name: &str) -> (Snapshot, Timeline) {
    let snapshot = files::open(&files::here(&format!("tests/snapshots/pressure/{name}.pickle.gz")));
    let mut timeline = Timeline::of(&snapshot, 0);
    Replay::of(&snapshot, &mut timeline);
    (snapshot, timeline)
}

fn counts(name: &str) -> (usize, usize, usize, usize) {
    let (snapshot, timeline) = scene(name);
    let Pressure { retries, emptied, collected, unclear, .. } = Pressure::of(&snapshot, &timeline);
    (retries.len(), emptied, collected, unclear)
}

#[test]
fn a_refused_request_is_a_retry_and_bounds_the_capacity() {
    for name in ["retry.all", "retry.alloc"] {
        let (snapshot, timeline) = scene(name);
        let pressure = Pressure::of(&snapshot, &timeline);
        let [first, second] = pressure.retries[..] else { panic!("{name}: {pressure:?}") };
        assert_eq!((first.segment_bytes, first.reserved_bytes), (700 * MIB, 1500 * MIB), "{name}");
        assert_eq!((first.released_bytes, second.released_bytes), (900 * MIB, 700 * MIB), "{name}");
        let capacity = pressure.capacity.expect("a bound");
        // The device had 2048 MiB, minus its context.
        assert_eq!((capacity.at_least_bytes, capacity.below_bytes), (1500 * MIB, 2120 * MIB), "{name}");
    }
}

#[test]
fn no_setting_is_given_more_than_the_device_had() {
    let (snapshot, timeline) = scene("retry.all");
    let answer = WhatIf::of(&snapshot, &timeline, &SETTINGS);
    assert_eq!(
        (answer.capacity_bytes, answer.capacity_from),
        (Some(1500 * MIB), Some(CapacitySource::Retry))
    );
    assert_eq!(answer.rows[0].outcome, answer.recorded);
    assert_eq!(answer.recorded.retries, 2);
    assert!(answer.rows.iter().all(|row| row.outcome.peak_reserved_bytes <= 1500 * MIB));
    let smaller = WhatIf::within(&snapshot, &timeline, &[""], Some(1000 * MIB));
    assert_eq!(smaller.capacity_from, Some(CapacitySource::DeviceTotal));
    assert!(smaller.rows.iter().all(|row| row.outcome.runs_out()), "{smaller:?}");
    assert_eq!(smaller.advice(), Advice::NotReproduced);
}

#[test]
fn what_the_program_or_the_collector_releases_is_no_retry() {
    assert_eq!(counts("emptied.all"), (0, 5, 0, 0));
    assert_eq!(counts("emptied.alloc"), (0, 5, 0, 0));
    assert_eq!(counts("collected.alloc"), (0, 0, 6, 0));
    // The device rejected the request, although PyTorch counts no retry.
    assert_eq!(counts("oversize.all"), (1, 0, 0, 0));
    let (snapshot, timeline) = scene("oversize.all");
    assert_eq!(WhatIf::of(&snapshot, &timeline, &[]).recorded.retries, 0);
}

#[test]
fn an_explanation_tries_settings_where_requests_were_refused() {
    let (snapshot, _) = scene("retry.alloc");
    let device = DeviceExplanation::of(&snapshot, 0, &Origins::of(&snapshot), Options::default());
    assert_eq!((device.failure, device.pressure.retries.len()), (None, 2));
    assert!(device.what_if.is_some_and(|what_if| what_if.advice().row().is_some()));
}

#[test]
fn the_device_that_the_recorder_names_bounds_every_row_and_its_own_collector() {
    let (mut snapshot, timeline) = scene("collected.alloc");
    let totals = Setting::Map(vec![("0".to_owned(), Setting::Int(2 << 30))]);
    let entry = Setting::Map(vec![("device_total_bytes".to_owned(), totals)]);
    snapshot.settings.push(("plimsoll_record".to_owned(), entry));
    let answer = WhatIf::of(&snapshot, &timeline, &SETTINGS);
    assert_eq!(
        (answer.capacity_bytes, answer.capacity_from),
        (Some(2 << 30), Some(CapacitySource::DeviceTotal))
    );
    // The process had half of the device, so its garbage collector runs in the simulation as it did in the recording.
    assert_eq!(answer.rows[0].outcome, answer.recorded);
    assert!(answer.rows.iter().all(|row| row.outcome.peak_reserved_bytes <= 1 << 30));
}

#[test]
fn a_recording_that_was_started_again_is_not_a_ring_that_ran_over() {
    for (name, expected) in [
        ("restart.all", (false, true)),
        ("restart.alloc", (false, true)),
        ("ring.all", (true, false)),
        ("ring.alloc", (true, false)),
        ("retry.all", (false, false)),
    ] {
        let quality = scene(name).1.quality;
        assert_eq!((quality.is_cut, quality.is_restarted), expected, "{name}");
    }
}

#[test]
fn a_state_without_events_recommends_nothing() {
    let (mut snapshot, _) = scene("retry.all");
    snapshot.traces = vec![Vec::new()];
    let timeline = Timeline::of(&snapshot, 0);
    assert_eq!(WhatIf::of(&snapshot, &timeline, &SETTINGS).advice(), Advice::NothingRecorded);
}
