//! Figures with the same name are equal in the tables, the verdict and the simulated rows of an explanation, even if a
//! recording contradicts itself so that its replay is inexact.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use plimsoll_trace::explain::{DeviceExplanation, Options, Origins, Part, Remaining};
use plimsoll_trace::snapshot::Snapshot;
use plimsoll_trace::whatif::WhatIf;

use crate::files;

/// The figures by name, each with its table.
#[derive(Default)]
struct Figures(BTreeMap<&'static str, Vec<(&'static str, u64)>>);

impl Figures {
    fn add(&mut self, name: &'static str, table: &'static str, bytes: u64) {
        self.0.entry(name).or_default().push((table, bytes));
    }
}

fn figures(snapshot: &Snapshot, device: i32) -> (Figures, bool) {
    let origins = Origins::of(snapshot);
    let of = DeviceExplanation::of(snapshot, device, &origins, Options::default());
    let (mut found, then) = (Figures::default(), "memory_allocated() at the moment explained");
    let sum = |bytes: &mut dyn Iterator<Item = u64>| bytes.fold(0, u64::saturating_add);
    let row = |part: Part| of.ledger.rows().iter().find(|row| row.part == part).and_then(|row| row.bytes);
    let live = [Part::Requested, Part::Rounding, Part::Unsplit, Part::Unplaced];
    found.add(then, "ledger", sum(&mut live.into_iter().filter_map(row)));
    found.add(then, "owners", of.owners.bytes);
    found.add(then, "by category", sum(&mut of.owners.by_category.iter().map(|share| share.bytes)));
    found.add(then, "by line", sum(&mut of.owners.by_line.iter().map(|share| share.bytes)));
    found.add(then, "by operator", sum(&mut of.owners.by_operator.iter().map(|share| share.bytes)));
    if let Some(remaining) = Remaining::of(of.analysis(snapshot, &origins), &of) {
        found.add(then, "remaining at the end", remaining.then_bytes);
    }

    let level = of.failure.map_or(of.timeline.peak_allocated.level, |failure| failure.level);
    found.add(then, "verdict", level.allocated_bytes);
    let reserved = "memory_reserved() at the moment explained";
    found.add(reserved, "verdict", level.reserved_bytes);
    found.add(reserved, "ledger", of.ledger.reserved);
    found.add(reserved, "holes", of.fragmentation.all.reserved_bytes);
    found.add("cached", "ledger", of.ledger.cached.sum());
    found.add("cached", "holes", of.fragmentation.all.cached.sum());
    found.add("pinned", "ledger", of.ledger.cached.pinned);
    found.add("pinned", "pins", sum(&mut of.fragmentation.pins.iter().map(|pin| pin.pinned_bytes)));

    let what_if = WhatIf::of(snapshot, &of.timeline, &[]);
    let (allocated, peak) = ("max_memory_allocated()", "max_memory_reserved()");
    found.add(allocated, "verdict", of.timeline.peak_allocated.level.allocated_bytes);
    found.add(allocated, "what-if", what_if.recorded.peak_allocated_bytes);
    let phases = of.peaks.phases.iter().map(|(_, moment)| moment.level.allocated_bytes);
    if let Some(highest) = phases.max().filter(|_| of.timeline.peak_allocated.after.is_some()) {
        found.add(allocated, "peaks by phase", highest);
    }
    found.add(peak, "verdict", of.timeline.peak_reserved.level.reserved_bytes);
    found.add(peak, "what-if", what_if.recorded.peak_reserved_bytes);
    (found, of.replay.is_identical())
}

/// Finds the compressed snapshots in a folder and its subfolders.
fn below(folder: &Path, found: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for path in entries.map(|entry| entry.expect("an entry").path()) {
        let name = path.to_string_lossy();
        if path.is_dir() {
            below(&path, found);
        } else if name.ends_with(".pickle.gz") || name.ends_with(".zst") {
            found.push(path);
        }
    }
}

#[test]
fn no_two_tables_call_different_numbers_by_one_name() {
    let mut paths = Vec::new();
    below(&files::here("tests/snapshots"), &mut paths);
    below(&files::here("../../../shared/snapshots"), &mut paths);
    paths.sort();
    let (mut inexact, mut wrong) = (0, Vec::new());
    for path in paths {
        let snapshot = files::open(&path);
        for device in snapshot.devices() {
            let (figures, is_identical) = figures(&snapshot, device);
            inexact += usize::from(!is_identical);
            for (name, tables) in figures.0 {
                if tables.iter().any(|(_, bytes)| *bytes != tables[0].1) {
                    wrong.push(format!("{} device {device}: {name}: {tables:?}", path.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} names have several figures:\n{}", wrong.len(), wrong.join("\n"));
    assert!(inexact > 3, "files whose replay is inexact are among them");
}
