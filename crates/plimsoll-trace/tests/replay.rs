//! Replays of real and synthetic recordings: our allocator does the same as PyTorch's, and the sums equal PyTorch's.

use plimsoll_needs::needs;
use plimsoll_trace::replay::Replay;
use plimsoll_trace::timeline::Timeline;

use crate::files;

#[needs(shared_snapshots)]
#[test]
fn the_peaks_of_a_replay_are_pytorchs_to_the_byte() {
    for (name, snapshot, figures) in files::made() {
        let mut timeline = Timeline::of(&snapshot, 0);
        let replay = Replay::of(&snapshot, &mut timeline);
        assert!(replay.is_identical(), "{name}: {replay:?}");
        let stats = |key: &str| figures["stats"][key].as_u64().expect("a figure");
        let (allocated, reserved) = (timeline.peak_allocated.level, timeline.peak_reserved.level);
        assert_eq!(allocated.allocated_bytes, stats("allocated_bytes.all.peak"), "{name}");
        assert_eq!(reserved.reserved_bytes, stats("reserved_bytes.all.peak"), "{name}");
        let last = timeline.curve(snapshot.trace(0)).last().expect("an event").level;
        assert_eq!(last.allocated_bytes, stats("allocated_bytes.all.current"), "{name}");
        assert_eq!(last.active_bytes, stats("active_bytes.all.current"), "{name}");
        let active = timeline.curve(snapshot.trace(0)).map(|moment| moment.level.active_bytes).max();
        assert_eq!(active, Some(stats("active_bytes.all.peak")), "{name}");
    }
}

#[test]
fn every_real_recording_is_replayed_without_a_difference() {
    for (name, snapshot) in files::snapshots() {
        for device in snapshot.devices() {
            let mut timeline = Timeline::of(&snapshot, device);
            let replay = Replay::of(&snapshot, &mut timeline);
            let is_made_by_hand = ["features", "little", "tiny"].iter().any(|made| name.starts_with(made));
            assert!(replay.is_identical() || is_made_by_hand, "{name} {device}: {replay:?}");
        }
    }
}
