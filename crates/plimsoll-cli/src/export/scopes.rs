//! The scopes of a program, from the begin and end marks in a snapshot: [`of`]. A scope without a begin mark
//! starts with the recording, and one without an end mark ends with it.

use std::collections::BTreeMap;

use plimsoll_trace::snapshot::{Snapshot, Stage, TextId};

/// A scope, and the row in which it is drawn. Scopes in a row are nested or disjoint.
pub(super) struct Scope {
    pub(super) name: TextId,
    pub(super) begin: u64,
    pub(super) end: u64,
    pub(super) lane: usize,
}

/// All scopes, sorted by begin. `time` converts a time of the file to the clock's, and `last` is when the
/// recording ends.
pub(super) fn of(snapshot: &Snapshot, time: impl Fn(u64) -> u64, last: u64) -> Vec<Scope> {
    let mut open: BTreeMap<TextId, Vec<u64>> = BTreeMap::new();
    let mut found: Vec<(u64, u64, TextId)> = Vec::new();
    let mut now = 0;
    for annotation in &snapshot.annotations {
        now = annotation.time_us.get().map_or(now, &time);
        let begun = open.entry(annotation.name).or_default();
        match annotation.stage {
            Stage::Start => begun.push(now),
            Stage::End => {
                let begin = begun.pop().unwrap_or(0);
                found.push((begin.min(now), now, annotation.name));
            }
        }
    }
    let last = last.max(now);
    for (name, begun) in open {
        found.extend(begun.into_iter().map(|begin| (begin.min(last), last, name)));
    }
    found.sort_by_key(|&(begin, end, _)| (begin, std::cmp::Reverse(end)));
    let mut lanes: Vec<Vec<u64>> = Vec::new();
    let scope = |(begin, end, name)| Scope { name, begin, end, lane: lane(&mut lanes, begin, end) };
    found.into_iter().map(scope).collect()
}

/// The first row in which a scope does not cross another. `lanes` has the ends of the open scopes, outermost
/// first.
fn lane(lanes: &mut Vec<Vec<u64>>, begin: u64, end: u64) -> usize {
    for (place, open) in lanes.iter_mut().enumerate() {
        while open.pop_if(|outer| *outer <= begin).is_some() {}
        if open.last().is_none_or(|&outer| end <= outer) {
            open.push(end);
            return place;
        }
    }
    lanes.push(vec![end]);
    lanes.len() - 1
}
