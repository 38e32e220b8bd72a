//! What-if: the simulation of the recorded settings gives the recorded figures, and the results for recordings that ran
//! out of memory.

use plimsoll_alloc::{Addr, StreamId};
use plimsoll_needs::needs;
use plimsoll_trace::explain::{Cause, DeviceExplanation, Options, Origins, Rest, StillNeeded};
use plimsoll_trace::replay::Replay;
use plimsoll_trace::snapshot::{Action, Event, Snapshot};
use plimsoll_trace::timeline::Timeline;
use plimsoll_trace::whatif::{Known, SETTINGS, WhatIf};

use crate::files;

#[needs(shared_snapshots)]
#[test]
fn a_recording_from_the_start_simulated_under_its_own_settings_is_the_recorded_one() {
    for (name, snapshot, figures) in files::made() {
        let mut timeline = Timeline::of(&snapshot, 0);
        Replay::of(&snapshot, &mut timeline);
        let answer = WhatIf::of(&snapshot, &timeline, &SETTINGS);
        assert_eq!(answer.rows[0].outcome, answer.recorded, "{name}");
        let stats = |key: &str| figures["stats"][key].as_u64().unwrap_or(0) as usize;
        assert_eq!(answer.recorded.segment_allocs, stats("num_device_alloc"), "{name}");
        assert_eq!(answer.recorded.segment_frees, stats("num_device_free"), "{name}");
        assert_eq!(answer.recorded.retries, stats("num_alloc_retries"), "{name}");
        for row in &answer.rows {
            assert!(
                answer.packed_bytes <= row.outcome.peak_reserved_bytes || row.outcome.runs_out(),
                "{name}"
            );
        }
        let packed = &answer.packed.outcome;
        let least = answer.rows.iter().take(3).map(|row| row.outcome.peak_reserved_bytes).min();
        assert!(Some(packed.peak_reserved_bytes) <= least || packed.runs_out(), "{name}: {packed:?}");
        println!(
            "{name} packed {} capacity {:?} {:?}",
            answer.packed_bytes, answer.capacity_bytes, answer.failures
        );
    }
}

#[test]
fn a_request_that_no_setting_can_serve_differs_from_one_that_fragmentation_denies() {
    let snapshot = files::open(&files::here("tests/snapshots/gpt2_oom.pickle.gz"));
    let mut timeline = Timeline::of(&snapshot, 0);
    Replay::of(&snapshot, &mut timeline);
    let answer = WhatIf::of(&snapshot, &timeline, &SETTINGS);
    assert_eq!(answer.capacity_bytes, Some(24 << 30));
    let [failure] = answer.failures[..] else { panic!("one request failed") };
    // PyTorch's message: tried to allocate 384 MiB, 184 MiB is free, 23.73 GiB allocated, 95.07 MiB not.
    assert_eq!((failure.asked_bytes, failure.device_free_bytes), (384 << 20, Some(184 << 20)));
    assert_eq!((failure.segment_bytes, failure.limit), (384 << 20, None));
    assert_eq!(failure.level.allocated_bytes, 25_477_176_832);
    assert_eq!(failure.level.reserved_bytes - failure.level.active_bytes, 99_688_960);
    let short_bytes = 25_477_176_832 + (384 << 20) - (24 << 30);
    assert_eq!(failure.cause(), Cause::Capacity { short_bytes });
    assert!(answer.rows.iter().all(|row| row.outcome.serves == [false]), "settings cannot help");
}

#[test]
fn the_packed_policy_has_a_row_of_its_own_with_the_calls_of_the_last_step() {
    let snapshot = files::open(&files::here("tests/snapshots/leak_loss.pickle.gz"));
    let origins = Origins::of(&snapshot);
    let device = DeviceExplanation::of(&snapshot, 0, &origins, Options::default());
    assert!(device.steps.len() > 1, "{:?}", device.steps);
    let answer = device.simulated(&snapshot, &[], None);
    let (packed, torch) = (&answer.packed.outcome, &answer.rows[0].outcome);
    assert_eq!(packed.peak_allocated_bytes, answer.packed_bytes);
    assert!(packed.peak_reserved_bytes <= torch.peak_reserved_bytes, "{packed:?}, {torch:?}");
    assert!(
        packed.fits() && answer.packed.last_step_calls.is_some_and(|calls| calls <= 1),
        "{:?}",
        answer.packed
    );
    let timeline = Timeline::of(&snapshot, 0);
    assert_eq!(WhatIf::of(&snapshot, &timeline, &[]).packed.last_step_calls, None, "the steps are unknown");
}

/// With expandable segments, each stream reserves address space for the whole device, which runs out. Then each request
/// would search all blocks of the others.
#[test]
fn a_setting_that_fails_again_and_again_is_not_simulated_to_the_end() {
    let of = |nth: u32| Event::new(Action::Alloc, Addr(512 * u64::from(nth)), 512, StreamId(nth.into()));
    let snapshot = Snapshot { traces: vec![(0..12_000_u32).map(of).collect()], ..Snapshot::default() };
    let timeline = Timeline::of(&snapshot, 0);
    let answer = WhatIf::of(&snapshot, &timeline, &SETTINGS);
    let failures = answer.rows.iter().map(|row| row.outcome.new_failures);
    assert_eq!(failures.max(), Some(1_000));
}

#[test]
fn settings_that_are_none_or_need_a_capacity_that_is_not_known_have_no_row() {
    let snapshot = files::open(&files::here("tests/snapshots/leak_loss.pickle.gz"));
    let timeline = Timeline::of(&snapshot, 0);
    let settings = ["no_such_option:1", "max_split_size_mb:1", SETTINGS[8], "max_split_size_mb:64"];
    let answer = WhatIf::of(&snapshot, &timeline, &settings);
    let rows: Vec<_> = answer.rows.iter().map(|row| row.setting.as_str()).collect();
    assert_eq!((rows.as_slice(), answer.capacity_bytes), (["", "max_split_size_mb:64"].as_slice(), None));
}

/// The advice for a program that runs out of memory while its optimizer creates its state.
fn advice_after(still_needed: Option<&StillNeeded>) -> (String, Option<String>) {
    let snapshot = files::open(&files::here("tests/snapshots/programs/oom_optimizer.pickle.gz"));
    let mut timeline = Timeline::of(&snapshot, 0);
    Replay::of(&snapshot, &mut timeline);
    let answer = WhatIf::knowing(&snapshot, &timeline, &SETTINGS, Known { still_needed, ..Known::default() });
    let advice = answer.advice();
    (advice.name().to_owned(), advice.row().map(|row| row.setting.clone()))
}

#[test]
fn a_setting_that_serves_the_failed_request_but_not_the_rest_is_not_recommended() {
    let needed = |bytes: u64, requests: &[u64]| StillNeeded {
        bytes,
        requests: requests.to_vec(),
        rest: Rest::OptimizerState { parts: 2 },
        confidence: "likely",
    };
    let (expandable, mib) = (Some("expandable_segments:True".to_owned()), 1 << 20);
    assert_eq!(advice_after(None), ("serves".to_owned(), expandable.clone()));
    assert_eq!(advice_after(Some(&needed(mib, &[mib]))), ("serves".to_owned(), expandable.clone()));
    assert_eq!(advice_after(Some(&needed(mib, &[]))), ("serves".to_owned(), expandable));
    for rest in [needed(100 * mib, &[60 * mib, 40 * mib]), needed(100 * mib, &[])] {
        assert_eq!(advice_after(Some(&rest)), ("serves one request".to_owned(), None), "{rest:?}");
    }
}

#[test]
fn explain_and_whatif_take_what_is_still_needed_from_the_recording() {
    let snapshot = files::open(&files::here("tests/snapshots/programs/oom_optimizer.pickle.gz"));
    let origins = Origins::of(&snapshot);
    let device = DeviceExplanation::of(&snapshot, 0, &origins, Options::default());
    let needed = device.still_needed.as_ref().expect("states of the other parameters");
    assert_eq!(needed.requests.iter().sum::<u64>(), needed.bytes);
    let what_if = device.what_if.as_ref().expect("settings are tried");
    assert_eq!(what_if.advice().name(), "serves one request");
    assert_eq!(device.simulated(&snapshot, &SETTINGS, None).advice(), what_if.advice());
}
