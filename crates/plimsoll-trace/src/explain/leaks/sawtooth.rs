//! Levels that rise for some steps and then drop at once: [`Teeth`]. Python's garbage collector causes such levels when
//! it frees reference cycles, and so does a list that is cleared every few steps.
//!
//! If the frees have stacks, the stacks show which of the two is the cause: the collector can run anywhere, but a list
//! is cleared at one line. Otherwise the order of the frees shows the cause: Python frees the items of a list from the
//! last to the first.

use std::collections::{BTreeMap, BTreeSet};

use super::rows::{Release, Rows};
use crate::explain::origin::is_python;
use crate::snapshot::{Action, EventIndex, FrameId, Snapshot};

/// The cause of frees of several steps' blocks at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Teeth {
    /// Python's garbage collector caused the frees. Contains the confidence.
    Collector(&'static str),
    /// One line of the program caused the frees. Contains the confidence.
    Cleared(&'static str),
}

/// Groups of consecutive frees, without a request between them.
pub(super) struct Frees(Vec<u32>);

impl Frees {
    /// Counts the requests before each event.
    pub(super) fn of(snapshot: &Snapshot, device: i32) -> Self {
        let trace = snapshot.trace(device);
        let count = |asked: &mut u32, event: &crate::snapshot::Event| {
            *asked += u32::from(event.action == Action::Alloc);
            Some(*asked)
        };
        Self(trace.iter().scan(0, count).collect())
    }

    fn row_of(&self, at: EventIndex) -> u32 {
        self.0.get(at.index()).copied().unwrap_or(u32::MAX)
    }
}

/// Finds the cause of a line's frees, if the blocks of several steps were freed at once. Such frees must have occurred
/// twice, or once if the line has not accumulated more blocks since.
pub(super) fn find(
    snapshot: &Snapshot,
    device: i32,
    frees: &Frees,
    rows: &Rows,
    kept: &[u64],
) -> Option<Teeth> {
    let mut bursts: BTreeMap<u32, Vec<Release>> = BTreeMap::new();
    for &release in &rows.releases {
        bursts.entry(frees.row_of(release.at)).or_default().push(release);
    }
    let births = |burst: &[Release]| burst.iter().map(|it| it.birth).collect::<BTreeSet<u32>>().len();
    let bytes = |burst: &[Release]| burst.iter().fold(0_u64, |sum, it| sum.saturating_add(it.bytes));
    let (teeth, others): (Vec<_>, Vec<_>) = bursts.into_values().partition(|burst| births(burst) > 1);
    if !teeth.iter().any(|tooth| births(tooth) > 2) {
        return None;
    }
    let at_once = teeth.iter().fold(0_u64, |sum, tooth| sum.saturating_add(bytes(tooth)));
    let lasting = others.iter().flatten().filter(|it| it.death > it.birth + 1);
    let alone = lasting.fold(0_u64, |sum, it| sum.saturating_add(it.bytes));
    let last = teeth.iter().flatten().map(|it| it.death).max().unwrap_or(0) as usize;
    // Memory that is left after the last drop is live for another reason, and so is growth beyond every earlier peak.
    let first = rows.releases.iter().map(|it| it.birth).min().unwrap_or(0) as usize;
    let left = super::growth::sum(kept.get(first..last).unwrap_or_default());
    let since = super::growth::sum(kept.get(last..).unwrap_or_default());
    let highest = teeth.iter().map(|tooth| bytes(tooth)).max().unwrap_or(0);
    let is_once = teeth.len() == 1;
    let most = if is_once { highest } else { highest.saturating_mul(2) };
    if alone.saturating_add(left) > at_once / 4 || since > most {
        return None;
    }
    Some(match freed_by(snapshot, device, &teeth) {
        Teeth::Cleared(_) if is_once => Teeth::Cleared("a guess"),
        Teeth::Collector("likely") if is_once => Teeth::Collector("a guess"),
        teeth => teeth,
    })
}

/// The cause of these frees, judged by their stacks and their order.
fn freed_by(snapshot: &Snapshot, device: i32, teeth: &[Vec<Release>]) -> Teeth {
    let trace = snapshot.trace(device);
    let frames = |tooth: &Vec<Release>| {
        let stack = tooth.iter().map(|it| it.at).min().and_then(|at| trace.get(at.index())?.stack);
        stack.into_iter().flat_map(|stack| snapshot.stacks.frame_ids(stack))
    };
    let file = |id: FrameId| snapshot.texts.get(snapshot.stacks.get_frame(id).filename);
    let name = |id: FrameId| snapshot.texts.get(snapshot.stacks.get_frame(id).name);
    if teeth.iter().any(|tooth| frames(tooth).any(|id| name(id).contains("gc_collect"))) {
        return Teeth::Collector("certain");
    }
    let lines: BTreeSet<Option<FrameId>> =
        teeth.iter().map(|tooth| frames(tooth).find(|&id| is_python(file(id)))).collect();
    if lines.len() > 1 && !lines.contains(&None) {
        return Teeth::Collector("likely");
    }
    let is_backwards = |tooth: &Vec<Release>| {
        let mut tooth = tooth.clone();
        tooth.sort_by_key(|it| it.at);
        tooth.windows(2).all(|pair| pair[0].birth >= pair[1].birth)
    };
    match (teeth.iter().all(is_backwards), lines.contains(&None)) {
        (true, false) => Teeth::Cleared("likely"),
        (true, true) => Teeth::Cleared("a guess"),
        (false, _) => Teeth::Collector("a guess"),
    }
}
