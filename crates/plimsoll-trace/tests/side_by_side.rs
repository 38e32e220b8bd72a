//! Comparisons of two recordings, and of several ranks: sums add up, lines are matched, outliers are found.

use std::collections::BTreeMap;

use plimsoll_trace::explain::{
    Comparison, DeviceAnalysis, DeviceExplanation, Options, Origins, Place, Ranks,
};
use plimsoll_trace::snapshot::{Snapshot, StackId, Stacks};

use crate::files;

/// The analysis of one device.
struct Recording {
    snapshot: Snapshot,
    origins: Origins,
    device: DeviceExplanation,
}

impl Recording {
    fn of(snapshot: Snapshot, device: i32) -> Self {
        let origins = Origins::of(&snapshot);
        let device = DeviceExplanation::of(
            &snapshot,
            device,
            &origins,
            Options { infer: true, device_total_bytes: None },
        );
        Self { snapshot, origins, device }
    }

    fn open(name: &str) -> Self {
        Self::of(files::open(&files::here(&format!("tests/snapshots/{name}.pickle.gz"))), 0)
    }

    fn analysis(&self) -> DeviceAnalysis<'_> {
        DeviceAnalysis {
            snapshot: &self.snapshot,
            timeline: &self.device.timeline,
            origins: &self.origins,
            purposes: &self.device.purposes,
        }
    }
}

fn assert_closes(comparison: &Comparison, at: &str) {
    let [before, after] = comparison.totals.map(|totals| i128::from(totals.peak_allocated_bytes));
    let lines: i128 = comparison.lines.iter().map(|row| row.bytes()).sum();
    let categories: i128 = comparison.categories.iter().map(|row| row.bytes()).sum();
    assert_eq!((lines, categories), (after - before, after - before), "{at}");
    let held = comparison.lines.iter().map(|row| i128::from(row.amounts[0].bytes)).sum::<i128>();
    assert_eq!(held, before, "{at}");
    assert!(comparison.lines.windows(2).all(|rows| rows[0].bytes().abs() >= rows[1].bytes().abs()), "{at}");
}

#[test]
fn changes_of_lines_and_of_categories_sum_to_the_change_of_the_peak() {
    let recordings: Vec<(String, Recording)> = files::snapshots()
        .flat_map(|(name, snapshot)| {
            let devices = snapshot.devices();
            devices.into_iter().map(move |device| (name.clone(), Recording::of(snapshot.clone(), device)))
        })
        .collect();
    for pair in recordings.windows(2) {
        let [(a, first), (b, second)] = pair else { unreachable!("windows of two") };
        assert_closes(&Comparison::of(first.analysis(), second.analysis()), &format!("{a} and {b}"));
    }
}

#[test]
fn a_recording_does_not_differ_from_itself() {
    for name in ["gpt2_oom", "leak_layer", "leak_loss"] {
        let recording = Recording::open(name);
        let comparison = Comparison::of(recording.analysis(), recording.analysis());
        assert_closes(&comparison, name);
        assert!(!comparison.lines.is_empty());
        for row in &comparison.lines {
            assert_eq!((row.bytes(), row.key.frames[0]), (0, row.key.frames[1]), "{name}");
            assert_eq!(row.amounts[0], row.amounts[1], "{name}");
        }
    }
}

#[test]
fn lines_are_found_again_where_the_program_moved_and_grew_by_three_lines() {
    let recording = Recording::open("leak_layer");
    let mut moved = files::open(&files::here("tests/snapshots/leak_layer.pickle.gz"));
    // The same stacks, with other folders and three lines further down.
    let mut stacks = Stacks::default();
    let mut ids = BTreeMap::new();
    for nth in 1..moved.stacks.len() {
        let id = StackId::new(nth).expect("few");
        let frames: Vec<_> = moved.stacks.frames(id).copied().collect();
        let frames: Vec<_> = frames
            .into_iter()
            .map(|mut frame| {
                let file = moved.texts.get(frame.filename).replacen('/', "/elsewhere/", 1);
                frame.filename = moved.texts.intern(&file).expect("room");
                frame.line += 3;
                stacks.frame(frame).expect("room")
            })
            .collect();
        ids.insert(id, stacks.stack(&frames).expect("room"));
    }
    moved.stacks = stacks;
    for event in &mut moved.traces[0] {
        event.stack = event.stack.map(|id| ids.get(&id).copied().unwrap_or(id));
    }
    for block in moved.segments.iter_mut().flat_map(|segment| &mut segment.blocks) {
        block.stack = block.stack.map(|id| ids.get(&id).copied().unwrap_or(id));
    }
    let moved = Recording::of(moved, 0);
    let comparison = Comparison::of(recording.analysis(), moved.analysis());
    assert_closes(&comparison, "moved");
    let line = |of: &Recording, frame| Place::of(&of.snapshot, frame);
    let mut with_lines = 0;
    for row in &comparison.lines {
        assert_eq!(row.bytes(), 0, "{row:?}");
        if let [Some(a), Some(b)] = row.key.frames {
            let (a, b) = (line(&recording, a), line(&moved, b));
            assert_eq!((&a.function, a.line + 3), (&b.function, b.line));
            with_lines += 1;
        } else {
            assert_eq!(row.key.frames, [None, None], "{row:?}");
        }
    }
    assert!(with_lines > 0);
}

#[test]
fn the_rank_that_holds_what_the_others_do_not_is_odd() {
    let (layer, loss) = (Recording::open("leak_layer"), Recording::open("leak_loss"));
    let rank = |nth: usize, of| (format!("rank{nth}"), of);
    let analysis = [layer.analysis(), layer.analysis(), loss.analysis(), layer.analysis()];
    let ranks =
        Ranks::of(&analysis.into_iter().enumerate().map(|(nth, of)| rank(nth, of)).collect::<Vec<_>>());
    assert_eq!(ranks.allocated.odd, [2]);
    for (nth, rank) in ranks.ranks.iter().enumerate() {
        let sum: u64 = ranks.lines.iter().map(|line| line.across.bytes[nth]).sum();
        assert_eq!(sum, rank.totals.peak_allocated_bytes, "{}", rank.name);
        assert_eq!(rank.totals.peak_reserved_bytes, ranks.reserved.bytes[nth]);
    }
    let total: u64 = ranks.ranks.iter().map(|rank| rank.totals.peak_allocated_bytes).sum();
    assert_eq!(ranks.allocated.sum_bytes, total);
    assert_eq!(ranks.lines[0].across.odd, [2], "the least alike comes first: {:?}", ranks.lines[0]);

    let alike = Ranks::of(&[rank(0, layer.analysis()), rank(1, layer.analysis()), rank(2, layer.analysis())]);
    assert!(alike.lines.iter().all(|line| line.across.odd.is_empty() && line.across.spread_bytes() == 0));
    assert!(Ranks::of(&[]).lines.is_empty());
}
