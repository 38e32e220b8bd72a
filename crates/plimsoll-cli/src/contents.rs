//! The contents of a recording's peak, under names that are the same on another machine: for `plan --json` and `run
//! --check`. File names do not include the folder, because the program may be in a different folder on the other
//! machine.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use plimsoll_trace::explain::{Amount, Change};
use plimsoll_trace::render::comparison::SnapshotDiff;
use plimsoll_trace::render::words;
use serde::{Deserialize, Serialize};

use crate::explained::Explained;

/// Live bytes at the peak, on the device with the highest peak.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Contents {
    pub(crate) by_category: BTreeMap<String, u64>,
    pub(crate) by_line: BTreeMap<String, u64>,
}

impl Contents {
    /// The contents of a recording's peak.
    pub(crate) fn of(explained: &Explained) -> Contents {
        let diff = SnapshotDiff::of([explained.report(), explained.report()]);
        let peak = |it: &&_| peak_bytes(it);
        let Some(pair) = diff.pairs.iter().max_by_key(peak) else { return Contents::default() };
        let mut contents = Contents::default();
        for change in &pair.comparison.categories {
            let name = words::category(pair.reports[0].snapshot, change.key).into_owned();
            *contents.by_category.entry(name).or_default() += change.amounts[0].bytes;
        }
        for change in pair.lines() {
            *contents.by_line.entry(without_folder(&change.key)).or_default() += change.amounts[0].bytes;
        }
        contents
    }

    /// The rows that changed between two peaks, the largest change first. Unchanged rows are left out.
    pub(crate) fn changes(
        before: &BTreeMap<String, u64>,
        after: &BTreeMap<String, u64>,
    ) -> Vec<Change<String>> {
        let mut rows: BTreeMap<&String, [Amount; 2]> = BTreeMap::new();
        for (side, of) in [before, after].into_iter().enumerate() {
            for (name, &bytes) in of {
                rows.entry(name).or_default()[side] = Amount { bytes, blocks: 0 };
            }
        }
        let mut rows: Vec<_> =
            rows.into_iter().map(|(name, amounts)| Change { key: name.clone(), amounts }).collect();
        rows.sort_by_key(|row| Reverse(row.bytes().unsigned_abs()));
        rows
    }
}

fn peak_bytes(pair: &plimsoll_trace::render::comparison::Compared<'_>) -> u64 {
    pair.comparison.totals[0].peak_allocated_bytes
}

/// Turns `src/model.py:41 forward (activation)` into `model.py:41 forward`. If a line allocates for one purpose only, its name
/// ends with that purpose.
fn without_folder(line: &str) -> String {
    let line = line.rsplit_once(" (").filter(|(_, end)| end.ends_with(')')).map_or(line, |(line, _)| line);
    let (place, name) = line.split_once(' ').unwrap_or((line, ""));
    let file = place.rsplit(['/', '\\']).next().unwrap_or(place);
    format!("{file} {name}").trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_named_without_its_folder_and_purpose() {
        for (line, name) in [
            ("src/model.py:41 forward (activation)", "model.py:41 forward"),
            ("train.py:7 <module>", "train.py:7 <module>"),
            (words::NO_LINE, words::NO_LINE),
        ] {
            assert_eq!(without_folder(line), name);
        }
    }

    #[test]
    fn changes_are_those_of_both_sides_the_largest_first() {
        let of = |rows: &[(&str, u64)]| rows.iter().map(|&(name, bytes)| (name.to_owned(), bytes)).collect();
        let changes = Contents::changes(&of(&[("a", 5), ("b", 9)]), &of(&[("b", 2), ("c", 1)]));
        let rows: Vec<_> = changes.iter().map(|row| (row.key.as_str(), row.bytes())).collect();
        assert_eq!(rows, [("b", -7), ("a", -5), ("c", 1)]);
    }
}
