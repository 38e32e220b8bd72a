//! The changes from one recording to another: [`SnapshotDiff`], with a [`Compared`] for each device.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::Report;
use super::devices::severity;
use super::verdict;
use super::words::{self, NO_LINE};
use crate::explain::{Amount, Change, ChangedLine, Comparison, DeviceExplanation};
use crate::snapshot::FrameId;

/// The names of the two recordings.
pub const SIDES: [&str; 2] = ["before", "after"];
/// The name of a table's total.
pub const IN_ALL: &str = "total: memory_allocated()";

/// Two recordings, before and after.
#[derive(Debug, Clone)]
pub struct SnapshotDiff<'a> {
    /// The recordings.
    pub reports: [Report<'a>; 2],
    /// The compared pairs of devices, one device of each recording. The worst pair comes first, by the rule of
    /// [`worst_first`](super::devices::worst_first).
    pub pairs: Vec<Compared<'a>>,
    /// Devices that only one recording has: the index of the recording, and the device.
    pub alone: Vec<(usize, &'a DeviceExplanation)>,
}

/// A device of one recording, compared with a device of the other recording.
#[derive(Debug, Clone)]
pub struct Compared<'a> {
    /// The two recordings.
    pub reports: [Report<'a>; 2],
    /// The device in each recording.
    pub devices: [&'a DeviceExplanation; 2],
    /// The changes.
    pub comparison: Comparison,
}

/// A figure of the complete device, before and after.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Total {
    /// The name of the figure.
    pub name: &'static str,
    /// The figure before and after.
    pub of: [u64; 2],
}

/// The rows of a table that are listed, and the sum of the other rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed<'a, K> {
    /// The listed rows, in order.
    pub rows: Vec<&'a Change<K>>,
    /// The sum of the other rows, as one row; `None` if every row is listed.
    pub rest: Option<Change<String>>,
    /// The sum of all rows.
    pub all: [Amount; 2],
}

impl<'a> SnapshotDiff<'a> {
    /// Compares devices of the same number. If each recording has only one device, compares these two devices: the same
    /// program may have run on another device.
    pub fn of(reports: [Report<'a>; 2]) -> Self {
        let [a, b] = reports.map(|report| report.devices);
        let number = |device: &DeviceExplanation| device.timeline.device;
        let has = |devices: &'a [DeviceExplanation], wanted: i32| {
            devices.iter().find(|device| number(device) == wanted)
        };
        let mut pairs: Vec<[&'a DeviceExplanation; 2]> = match (a, b) {
            ([a], [b]) => vec![[a, b]],
            _ => a.iter().filter_map(|device| Some([device, has(b, number(device))?])).collect(),
        };
        let of = |side: usize, device: &DeviceExplanation| severity(reports[side].snapshot, device);
        pairs.sort_by_key(|[a, b]| of(0, a).min(of(1, b)));
        let is_alone = |&(side, device): &(usize, &DeviceExplanation)| {
            !pairs.iter().any(|pair| number(pair[side]) == number(device))
        };
        let all = a.iter().map(|device| (0, device)).chain(b.iter().map(|device| (1, device)));
        let mut alone: Vec<(usize, &DeviceExplanation)> = all.filter(is_alone).collect();
        alone.sort_by_key(|&(side, device)| (side, of(side, device)));
        let compared = |devices: [&'a DeviceExplanation; 2]| {
            let comparison = Comparison::of(reports[0].analysis(devices[0]), reports[1].analysis(devices[1]));
            Compared { reports, devices, comparison }
        };
        Self { reports, alone, pairs: pairs.into_iter().map(compared).collect() }
    }

    /// A sentence for each device that only one recording has.
    pub fn alone(&self) -> impl Iterator<Item = String> {
        let sentence = |&(side, device): &(usize, &DeviceExplanation)| {
            format!("device {} is only in {}", device.timeline.device, self.reports[side].file)
        };
        self.alone.iter().map(sentence)
    }

    /// The prefix of a sentence about a pair: the name of its device, if there are several pairs.
    pub fn prefix(&self, pair: &Compared<'_>) -> String {
        if self.pairs.len() > 1 {
            format!("device {}: ", pair.devices[0].timeline.device)
        } else {
            String::new()
        }
    }
}

impl Compared<'_> {
    /// A sentence that says how much the peak changed, and at which lines. `size` formats a number of bytes.
    pub fn verdict(&self, lines: &[Change<String>], size: impl Fn(u64) -> String) -> String {
        let [a, b] = self.comparison.totals.map(|totals| totals.peak_allocated_bytes);
        let by = i128::from(b) - i128::from(a);
        let most = lines.iter().map(|line| line.bytes().unsigned_abs()).max().unwrap_or(0);
        // Lines that changed little compared with the first line appear only in the table.
        let largest = lines.iter().filter(|line| line.bytes().unsigned_abs() * 10 >= most.max(1));
        let causes: Vec<String> = largest
            .take(3)
            .map(|line| {
                let at = if line.key.starts_with(NO_LINE) { "with" } else { "at" };
                format!("{} {at} {}", words::change(line.bytes(), &size), line.key)
            })
            .collect();
        match (by, causes.is_empty()) {
            (0, true) => format!("no change: both peak at {}, with the same bytes at every line", size(a)),
            (0, false) => format!("both peak at {}, with different contents: {}", size(a), causes.join(", ")),
            _ => format!("peak {}{}: {}", words::change(by, size), percent([a, b]), causes.join(", ")),
        }
    }

    /// The peaks of allocated and of reserved bytes.
    pub fn peaks(&self) -> [Total; 2] {
        let [a, b] = self.comparison.totals;
        let allocated = [a.peak_allocated_bytes, b.peak_allocated_bytes];
        let reserved = [a.peak_reserved_bytes, b.peak_reserved_bytes];
        [
            Total { name: "peak allocated: max_memory_allocated()", of: allocated },
            Total { name: "peak reserved: max_memory_reserved()", of: reserved },
        ]
    }

    /// The number of requests that were served.
    pub fn requests(&self) -> Total {
        let of = self.comparison.totals.map(|totals| totals.allocations);
        Total { name: "served requests", of }
    }

    /// Each line's live bytes at the peaks, summed over all categories. The largest change comes first.
    pub fn lines(&self) -> Vec<Change<String>> {
        let mut lines: BTreeMap<[Option<FrameId>; 2], Vec<&Change<ChangedLine>>> = BTreeMap::new();
        for change in &self.comparison.lines {
            lines.entry(change.key.frames).or_default().push(change);
        }
        let named = lines.into_iter().map(|(frames, changes)| {
            let what = match changes.as_slice() {
                [one] => {
                    let name = one.key.category.name(self.reports[0].snapshot);
                    name.map_or_else(String::new, |name| format!(" ({})", words::plain(name)))
                }
                _ => String::new(),
            };
            let amounts = sum(changes.iter().map(|change| change.amounts));
            Change { key: format!("{}{what}", self.line(frames)), amounts }
        });
        let mut named: Vec<Change<String>> = named.collect();
        named.sort_by_key(|line| Reverse(line.bytes().unsigned_abs()));
        named
    }

    /// The name of a line in the second recording, and its place in the first recording if it moved.
    fn line(&self, frames: [Option<FrameId>; 2]) -> String {
        let [a, b] =
            [0, 1].map(|side| frames[side].map(|frame| words::line(self.reports[side].snapshot, frame)));
        match (a, b) {
            (Some(a), Some(b)) if a != b => match a.rsplit_once(' ') {
                Some((place, _)) => format!("{b} (was {place})"),
                None => format!("{b} (was {a})"),
            },
            (_, Some(line)) | (Some(line), None) => line,
            (None, None) => NO_LINE.to_owned(),
        }
    }

    /// A sentence with the verdict of one recording, and with what is unknown about it.
    pub fn side(&self, side: usize, size: impl Fn(u64) -> String) -> String {
        let device = self.devices[side];
        let gap = match device.timeline.quality {
            quality if quality.events == 0 => {
                "; it has no events: its peak is the memory live when it was taken"
            }
            quality if quality.is_cut => "; its oldest events were lost, so its peak may have been higher",
            quality if quality.is_restarted => {
                "; it lacks an earlier recording, so its peak may have been higher"
            }
            _ => "",
        };
        format!("{}{gap}", verdict::sentence(device, size))
    }
}

impl Total {
    /// The second figure minus the first.
    pub fn change(&self) -> i128 {
        i128::from(self.of[1]) - i128::from(self.of[0])
    }

    /// The change of a count, with its sign.
    pub fn signed(&self) -> String {
        let change = self.change();
        if change == 0 { "0".to_owned() } else { format!("{change:+}") }
    }

    /// The change in percent of the first figure, in brackets; empty if the first figure is 0.
    pub fn percent(&self) -> String {
        percent(self.of)
    }
}

impl<'a, K> Listed<'a, K> {
    /// Lists at most `most` rows, omitting those that did not change.
    pub fn of(rows: &'a [Change<K>], most: usize) -> Self {
        let (first, behind) = rows.split_at(rows.len().min(most));
        let (listed, quiet): (Vec<_>, Vec<_>) = first.iter().partition(|row| row.bytes() != 0);
        let rest: Vec<_> = quiet.into_iter().chain(behind).collect();
        let others = (!rest.is_empty()).then(|| {
            let what = if rest.iter().all(|row| row.bytes() == 0) { "unchanged" } else { "more" };
            let amounts = sum(rest.iter().map(|row| row.amounts));
            Change { key: format!("{} {what}", rest.len()), amounts }
        });
        Self { rows: listed, rest: others, all: sum(rows.iter().map(|row| row.amounts)) }
    }
}

fn sum(rows: impl Iterator<Item = [Amount; 2]>) -> [Amount; 2] {
    let plus = |a: Amount, b: Amount| Amount {
        bytes: a.bytes.saturating_add(b.bytes),
        blocks: a.blocks.saturating_add(b.blocks),
    };
    rows.fold([Amount::default(); 2], |[a, b], [more_a, more_b]| [plus(a, more_a), plus(b, more_b)])
}

fn percent([before, after]: [u64; 2]) -> String {
    if before == 0 || before == after {
        return String::new();
    }
    format!(" ({:+.1} %)", 100.0 * (after as f64 - before as f64) / before as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unchanged_rows_are_summed_in_one_and_all_rows_add_up() {
        let amount = |bytes| Amount { bytes, blocks: 1 };
        let rows = [(9, 1), (5, 5), (2, 4), (0, 1)];
        let rows = rows.map(|(a, b)| Change { key: "", amounts: [amount(a), amount(b)] });
        let check = |most, listed: usize, rest: Option<(&str, i128)>| {
            let listed_rows = Listed::of(&rows, most);
            assert_eq!(listed_rows.rows.len(), listed, "{most}");
            assert_eq!(listed_rows.rest.as_ref().map(|it| (it.key.as_str(), it.bytes())), rest, "{most}");
            assert_eq!(listed_rows.all.map(|all| (all.bytes, all.blocks)), [(16, 4), (11, 4)]);
        };
        check(4, 3, Some(("1 unchanged", 0)));
        check(2, 1, Some(("3 more", 3)));
        check(0, 0, Some(("4 more", -5)));
    }

    #[test]
    fn changes_have_a_sign_and_a_percentage() {
        let total = |of| Total { name: "", of };
        assert_eq!(
            [[8, 10], [10, 8], [7, 7], [0, 3]].map(|of| total(of).percent()),
            [" (+25.0 %)", " (-20.0 %)", "", ""]
        );
        assert_eq!([[8, 10], [10, 8], [7, 7]].map(|of| total(of).signed()), ["+2", "-2", "0"]);
    }
}
