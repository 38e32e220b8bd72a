//! Finds the same line of code in two recordings, even if files are in other folders and lines have moved: [`matched`].
//!
//! Files match if they have the same name; if there are several candidates, the one that shares the most parent folders
//! is chosen. Within a function, all lines are assumed to have moved by one offset: the one that matches the most
//! lines, or the smallest of several equally good ones. Lines that remain are matched in order, if both recordings have
//! the same number of such lines.

use std::collections::{BTreeMap, BTreeSet};

use crate::snapshot::{FrameId, Snapshot};

/// A function: its file and its name.
type Function<'a> = (&'a str, &'a str);
/// For each function, its lines, each with one of the line's frames.
type Lines<'a> = BTreeMap<Function<'a>, BTreeMap<i64, FrameId>>;

/// If there are more pairs than this, they are not compared. No program has so many, but a forged file may.
const MOST_PAIRS: usize = 1 << 20;

/// A line of code, with its frame in each recording that has it.
pub(super) type Pair = (Option<FrameId>, Option<FrameId>);

/// The matched lines of two recordings' frames: lines in both recordings, lines only in the first, and lines only in
/// the second. If a line has several frames, the first one represents it: see [`lead`].
pub(super) fn matched(a: (&Snapshot, &[FrameId]), b: (&Snapshot, &[FrameId])) -> Vec<Pair> {
    let (a, mut b) = (lines_of(a.0, a.1), lines_of(b.0, b.1));
    let files = same_files(&a, &b);
    let mut pairs = Vec::new();
    for ((file, function), a_lines) in a {
        let there = files.get(file).and_then(|file| b.remove(&(*file, function))).unwrap_or_default();
        pairs.extend(same_lines(a_lines, there));
    }
    pairs.extend(b.into_values().flatten().map(|(_, frame)| (None, Some(frame))));
    pairs
}

/// For each frame, the first frame that has the same line.
pub(super) fn lead(snapshot: &Snapshot, frames: &[FrameId]) -> BTreeMap<FrameId, FrameId> {
    let lines = lines_of(snapshot, frames);
    let first = |id: FrameId| {
        let (function, line) = line_of(snapshot, id);
        lines.get(&function).and_then(|lines| lines.get(&line)).copied().unwrap_or(id)
    };
    frames.iter().map(|&id| (id, first(id))).collect()
}

fn line_of(snapshot: &Snapshot, id: FrameId) -> (Function<'_>, i64) {
    let frame = snapshot.stacks.get_frame(id);
    ((snapshot.texts.get(frame.filename), snapshot.texts.get(frame.name)), frame.line)
}

fn lines_of<'a>(snapshot: &'a Snapshot, frames: &[FrameId]) -> Lines<'a> {
    let mut lines = Lines::new();
    for &id in frames {
        let (function, line) = line_of(snapshot, id);
        let first = lines.entry(function).or_default().entry(line).or_insert(id);
        *first = id.min(*first);
    }
    lines
}

/// The file's name and its folders, innermost first.
fn parts(path: &str) -> impl Iterator<Item = &str> {
    path.rsplit(['/', '\\'])
}

/// The file of `b` that corresponds to each file of `a`. No file is matched twice.
fn same_files<'a>(a: &Lines<'a>, b: &Lines<'a>) -> BTreeMap<&'a str, &'a str> {
    let files = |lines: &Lines<'a>| lines.keys().map(|(file, _)| *file).collect::<BTreeSet<&str>>();
    let (mut a, mut b) = (files(a), files(b));
    let mut same: BTreeMap<&str, &str> = a.intersection(&b).map(|&file| (file, file)).collect();
    a.retain(|file| !same.contains_key(file));
    b.retain(|file| !same.contains_key(file));

    let mut by_name: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for file in b {
        by_name.entry(parts(file).next().unwrap_or_default()).or_default().push(file);
    }
    let mut candidates = Vec::new();
    for file in a {
        for other in by_name.get(parts(file).next().unwrap_or_default()).into_iter().flatten() {
            let depth = parts(file).zip(parts(other)).take_while(|(a, b)| a == b).count();
            candidates.push((depth, file, *other));
        }
        if candidates.len() > MOST_PAIRS {
            break;
        }
    }
    candidates.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| (a.1, a.2).cmp(&(b.1, b.2))));
    let mut taken = BTreeSet::new();
    for (_, file, other) in candidates {
        if !same.contains_key(file) && taken.insert(other) {
            same.insert(file, other);
        }
    }
    same
}

/// The lines of one function in both recordings.
fn same_lines(a: BTreeMap<i64, FrameId>, mut b: BTreeMap<i64, FrameId>) -> Vec<Pair> {
    let shift = shift(&a, &b);
    let (mut pairs, mut rest) = (Vec::new(), Vec::new());
    for (line, frame) in a {
        match b.remove(&line.saturating_add(shift)) {
            Some(other) => pairs.push((Some(frame), Some(other))),
            None => rest.push(frame),
        }
    }
    let others: Vec<FrameId> = b.into_values().collect();
    if rest.len() == others.len() {
        pairs.extend(rest.into_iter().zip(others).map(|(a, b)| (Some(a), Some(b))));
    } else {
        pairs.extend(rest.into_iter().map(|frame| (Some(frame), None)));
        pairs.extend(others.into_iter().map(|frame| (None, Some(frame))));
    }
    pairs
}

/// The offset by which the lines of a function have moved.
fn shift(a: &BTreeMap<i64, FrameId>, b: &BTreeMap<i64, FrameId>) -> i64 {
    if a.len().saturating_mul(b.len()) > MOST_PAIRS {
        return 0;
    }
    let mut votes: BTreeMap<i64, usize> = BTreeMap::new();
    for (from, to) in a.keys().flat_map(|from| b.keys().map(move |to| (from, to))) {
        *votes.entry(to.saturating_sub(*from)).or_default() += 1;
    }
    let best =
        votes.into_iter().max_by_key(|&(shift, votes)| (votes, std::cmp::Reverse(shift.unsigned_abs())));
    best.map_or(0, |(shift, _)| shift)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::Frame;

    type Line = (&'static str, &'static str, i64);

    fn snapshot(lines: &[Line]) -> (Snapshot, Vec<FrameId>) {
        let mut snapshot = Snapshot::default();
        let frames = lines.iter().map(|&(file, function, line)| {
            let filename = snapshot.texts.intern(file).unwrap();
            let name = snapshot.texts.intern(function).unwrap();
            snapshot.stacks.frame(Frame { filename, name, line, fx: None }).unwrap()
        });
        let frames = frames.collect();
        (snapshot, frames)
    }

    /// Checks the pairs of matching lines: indices in `a` and in `b`.
    fn check(a: &[Line], b: &[Line], expected: &[(Option<usize>, Option<usize>)]) {
        let ((a, a_frames), (b, b_frames)) = (snapshot(a), snapshot(b));
        let mut found: Vec<_> = matched((&a, &a_frames), (&b, &b_frames))
            .into_iter()
            .map(|(a, b)| (a.map(FrameId::index), b.map(FrameId::index)))
            .collect();
        found.sort_unstable();
        assert_eq!(found, expected);
    }

    #[test]
    fn files_elsewhere_are_the_same_by_the_folders_that_agree() {
        check(
            &[("/home/a/run/model.py", "f", 3), ("/home/a/run/lib/model.py", "f", 3), ("x.py", "g", 1)],
            &[("C:\\b\\run\\lib\\model.py", "f", 3), ("C:\\b\\run\\model.py", "f", 3), ("y.py", "g", 1)],
            &[(None, Some(2)), (Some(0), Some(1)), (Some(1), Some(0)), (Some(2), None)],
        );
    }

    #[test]
    fn lines_that_moved_together_are_the_same_although_another_stands_in_their_place() {
        check(
            &[("m.py", "f", 10), ("m.py", "f", 11), ("m.py", "f", 12)],
            &[("m.py", "f", 11), ("m.py", "f", 12), ("m.py", "f", 13), ("m.py", "g", 10)],
            &[(None, Some(3)), (Some(0), Some(0)), (Some(1), Some(1)), (Some(2), Some(2))],
        );
    }

    #[test]
    fn what_remains_is_matched_in_order_only_if_it_is_as_many() {
        check(
            &[("m.py", "f", 1), ("m.py", "f", 5)],
            &[("m.py", "f", 1), ("m.py", "f", 50)],
            &[(Some(0), Some(0)), (Some(1), Some(1))],
        );
        check(
            &[("m.py", "f", 1), ("m.py", "f", 5)],
            &[("m.py", "f", 1), ("m.py", "f", 50), ("m.py", "f", 60)],
            &[(None, Some(1)), (None, Some(2)), (Some(0), Some(0)), (Some(1), None)],
        );
        check(&[("m.py", "f", i64::MIN)], &[("m.py", "f", i64::MAX)], &[(Some(0), Some(0))]);
    }
}
