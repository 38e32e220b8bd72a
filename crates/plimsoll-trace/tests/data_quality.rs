//! Why blocks have no stacks: PyTorch's recordings of one program, each made so that a certain cause applies
//! (`tests/snapshots/stackless/make.py`), and the advice on what to record next time.

use plimsoll_trace::explain::{
    DataQuality, DeviceAnalysis, DeviceExplanation, Missing, NoStack, Options, Origins,
};
use plimsoll_trace::snapshot::Snapshot;

use crate::files;

fn quality(snapshot: &Snapshot, device: i32) -> DataQuality {
    let origins = Origins::of(snapshot);
    let explained =
        DeviceExplanation::of(snapshot, device, &origins, Options { infer: true, device_total_bytes: None });
    let analysis = DeviceAnalysis {
        snapshot,
        timeline: &explained.timeline,
        origins: &origins,
        purposes: &explained.purposes,
    };
    DataQuality::of(analysis, &explained.passes)
}

fn check(name: &str, causes: &[NoStack], asks: &[&str]) {
    let path = files::here(&format!("tests/snapshots/stackless/{name}.pickle.gz"));
    let found = quality(&files::open(&path), 0);
    let reasons: Vec<NoStack> = found.stackless.iter().map(|part| part.why).collect();
    assert_eq!(reasons, causes, "{name}: {found:?}");
    assert!(found.stackless_bytes() <= found.peak_bytes && found.peak_bytes > 0, "{name}: {found:?}");
    assert!(!found.is_complete(), "{name}: there are no annotations");
    let lines = found.record_with();
    for wanted in asks {
        assert!(lines[0].contains(wanted), "{name}: {lines:?}");
    }
}

#[test]
fn the_reason_why_blocks_have_no_stack_is_the_one_that_they_were_recorded_with() {
    check("complete", &[], &["stacks=\"all\"", "context=\"all\"", "global_record_annotations=True"]);
    check("late", &[NoStack::BeforeRecording], &["stacks=\"all\""]);
    check("no_context", &[NoStack::ContextOff], &["context=\"all\""]);
    check("python", &[NoStack::BackwardThread], &["stacks=\"all\""]);
    check("never", &[NoStack::NeverRecorded], &["stacks=\"python\""]);
}

#[test]
fn a_ring_that_ran_over_is_reported_and_a_longer_one_recommended() {
    check("ring", &[NoStack::RingOverflowed], &["max_entries=1000000"]);
}

#[test]
fn stacks_of_what_is_held_alone_leave_none_for_what_is_gone() {
    check("state", &[NoStack::LiveOnly], &["context=\"all\""]);
}

#[test]
fn what_a_file_does_not_say_is_named() {
    let missing = |name: &str, device| {
        quality(&files::open(&files::here(&format!("tests/snapshots/{name}.pickle.gz"))), device).missing
    };
    assert_eq!(missing("gpt2_oom", 0), [Missing::Annotations]);
    assert_eq!(missing("stackless/never", 0), [Missing::Events]);
    assert_eq!(missing("features.bare", 1), [Missing::Events, Missing::Settings]);
    let nothing = quality(&Snapshot::default(), 0).missing;
    assert_eq!(nothing, [Missing::Events, Missing::Segments, Missing::Settings]);
}

#[test]
fn bytes_without_a_stack_are_a_part_of_the_peak_in_every_recording() {
    for (name, snapshot) in files::snapshots() {
        for device in snapshot.devices() {
            let found = quality(&snapshot, device);
            let rest = found.peak_bytes.checked_sub(found.stackless_bytes() + found.no_python_bytes);
            assert!(rest.is_some(), "{name}: {found:?}");
            for part in &found.stackless {
                assert!(!part.why.reason().is_empty() && !part.why.remedy().is_empty());
            }
            assert_eq!(found.record_with().len(), 2);
        }
    }
}
