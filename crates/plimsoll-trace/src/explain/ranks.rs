//! A comparison of the ranks of one job: [`Ranks`], and how one rank differs from the others.
//!
//! The ranks of one program use about the same amount of memory. An outlier is found by the median and the median
//! absolute deviation, because a few outliers do not shift these as much as they shift a mean (Iglewicz and Hoaglin,
//! How to Detect and Handle Outliers, 1993). A rank is odd if its distance from the median is more than 3.5 ÷ 0.6745
//! times the median absolute deviation; here, it must also be at least 1 MiB and 5 % of the median. With only two
//! ranks, neither counts as odd.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::compare::Totals;
use super::fragmentation::DeviceAnalysis;
use super::owners::Owners;
use crate::snapshot::{FrameId, Snapshot};

/// The ranks of a job, each at its own peak.
#[derive(Debug, Clone, PartialEq)]
pub struct Ranks {
    /// The ranks, in the order given.
    pub ranks: Vec<Rank>,
    /// The peaks of allocated bytes.
    pub allocated: Across,
    /// The peaks of reserved bytes.
    pub reserved: Across,
    /// The lines with live blocks at the peak of any rank, the largest differences first. The lines of one rank add up
    /// to its allocated bytes.
    pub lines: Vec<LineAcross>,
}

/// One rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rank {
    /// The name of the rank.
    pub name: String,
    /// The device.
    pub device: i32,
    /// The totals of the rank.
    pub totals: Totals,
}

/// A line of the program, the same in all recordings.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The file with its innermost folder: hosts may have the program in different places.
    pub file: String,
    /// The function.
    pub function: String,
    /// The number of the line.
    pub line: i64,
}

/// Bytes and blocks; each vector is indexed by rank.
type Figures = (Vec<u64>, Vec<u64>);

/// One line's memory in each rank.
#[derive(Debug, Clone, PartialEq)]
pub struct LineAcross {
    /// The line; `None` for blocks that have no line.
    pub place: Option<Place>,
    /// The library line that this line called, if any.
    pub package: Option<Place>,
    /// Bytes at the ranks' peaks.
    pub across: Across,
    /// Blocks at the ranks' peaks, by rank.
    pub blocks: Vec<u64>,
}

/// One figure for each rank.
#[derive(Debug, Clone, PartialEq)]
pub struct Across {
    /// Bytes, by rank.
    pub bytes: Vec<u64>,
    /// The sum over all ranks.
    pub sum_bytes: u64,
    /// The median; for an even number of ranks, the mean of the middle two.
    pub median_bytes: u64,
    /// The median absolute deviation.
    pub distance_bytes: u64,
    /// The indices of the odd ranks, in ascending order.
    pub odd: Vec<usize>,
}

impl Across {
    /// Finds the odd ranks of a figure.
    pub fn of(bytes: Vec<u64>) -> Self {
        let median_bytes = median(bytes.clone());
        let distances: Vec<u64> = bytes.iter().map(|bytes| bytes.abs_diff(median_bytes)).collect();
        let distance_bytes = median(distances.clone());
        let least = (median_bytes / 20).max(1 << 20);
        let is_odd =
            |distance: u64| 0.6745 * distance as f64 > 3.5 * distance_bytes as f64 && distance >= least;
        let odd = distances.iter().enumerate().filter(|&(_, &distance)| is_odd(distance));
        let odd = if bytes.len() < 3 { Vec::new() } else { odd.map(|(nth, _)| nth).collect() };
        let sum_bytes = bytes.iter().fold(0, |sum: u64, &bytes| sum.saturating_add(bytes));
        Self { bytes, sum_bytes, median_bytes, distance_bytes, odd }
    }

    /// Whether a rank is odd.
    pub fn is_odd(&self, nth: usize) -> bool {
        self.odd.binary_search(&nth).is_ok()
    }

    /// The smallest figure, the median and the largest figure.
    pub fn range(&self) -> [u64; 3] {
        let [least, most] = [self.bytes.iter().min(), self.bytes.iter().max()];
        [least.copied().unwrap_or(0), self.median_bytes, most.copied().unwrap_or(0)]
    }

    /// The largest minus the smallest.
    pub fn spread_bytes(&self) -> u64 {
        let [least, _, most] = self.range();
        most - least
    }
}

fn median(mut bytes: Vec<u64>) -> u64 {
    bytes.sort_unstable();
    let (Some(&low), Some(&high)) =
        (bytes.get(bytes.len().saturating_sub(1) / 2), bytes.get(bytes.len() / 2))
    else {
        return 0;
    };
    low + (high - low) / 2
}

impl LineAcross {
    /// The sum of all ranks' blocks.
    pub fn sum_blocks(&self) -> u64 {
        self.blocks.iter().sum()
    }

    /// Whether several ranks have blocks of this line: each rank may hold a part of the same data.
    pub fn is_shared(&self) -> bool {
        self.blocks.iter().filter(|&&blocks| blocks > 0).count() > 1
    }
}

impl Ranks {
    /// Compares ranks, each with a name. The ranks are the files of a job, or the devices of a file.
    pub fn of(analysis: &[(String, DeviceAnalysis<'_>)]) -> Self {
        let ranks = analysis.iter().map(|(name, analysis)| Rank {
            name: name.clone(),
            device: analysis.timeline.device,
            totals: Totals::of(*analysis),
        });
        let ranks: Vec<Rank> = ranks.collect();
        let mut lines: BTreeMap<[Option<Place>; 2], Figures> = BTreeMap::new();
        for (nth, (_, analysis)) in analysis.iter().enumerate() {
            let peak = analysis.timeline.peak_allocated.after;
            let owners = Owners::after(analysis.timeline, analysis.origins, analysis.purposes, peak);
            for share in &owners.by_line {
                let frames = [share.key.frame, share.key.package_line];
                let place = frames.map(|frame| frame.map(|frame| Place::of(analysis.snapshot, frame)));
                let zeros = || (vec![0; ranks.len()], vec![0; ranks.len()]);
                let (bytes, blocks) = lines.entry(place).or_insert_with(zeros);
                bytes[nth] = bytes[nth].saturating_add(share.bytes);
                blocks[nth] += share.blocks;
            }
        }
        let lines = lines.into_iter();
        let lines = lines.map(|([place, package], (bytes, blocks))| {
            let across = Across::of(bytes);
            LineAcross { place, package, across, blocks }
        });
        let mut lines: Vec<LineAcross> = lines.collect();
        lines.sort_by_key(|line| Reverse((line.across.spread_bytes(), line.across.sum_bytes)));
        let figure = |of: fn(&Totals) -> u64| Across::of(ranks.iter().map(|rank| of(&rank.totals)).collect());
        Self {
            allocated: figure(|totals| totals.peak_allocated_bytes),
            reserved: figure(|totals| totals.peak_reserved_bytes),
            ranks,
            lines,
        }
    }
}

impl Place {
    /// The line of a frame.
    pub fn of(snapshot: &Snapshot, frame: FrameId) -> Self {
        let frame = snapshot.stacks.get_frame(frame);
        let path = snapshot.texts.get(frame.filename);
        let mut parts = path.rsplit(['/', '\\']);
        let name = parts.next().unwrap_or_default();
        let folder = parts.next().filter(|folder| !folder.is_empty());
        Self {
            file: folder.map_or_else(|| name.to_owned(), |folder| format!("{folder}/{name}")),
            function: snapshot.texts.get(frame.name).to_owned(),
            line: frame.line,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn check(mib: &[u64], odd: &[usize]) {
        assert_eq!(Across::of(mib.iter().map(|mib| mib * MIB).collect()).odd, odd, "{mib:?}");
    }

    #[test]
    fn a_rank_is_odd_if_it_is_far_from_the_others_which_are_close_to_each_other() {
        check(&[100, 100, 100, 190], &[3]);
        check(&[10, 100, 101, 99, 100, 98, 102, 100], &[0]);
        check(&[1843, 29_700, 6300], &[1]);
        check(&[0, 0, 500, 0], &[2]);
        check(&[100, 120, 140, 160], &[]);
        check(&[100, 100, 100, 104], &[]); // differences of less than 5 % do not count
    }

    #[test]
    fn of_two_ranks_neither_is_called_odd() {
        check(&[1, 1000], &[]);
        check(&[1], &[]);
        check(&[], &[]);
    }

    #[test]
    fn half_of_the_ranks_cannot_be_odd() {
        check(&[100, 100, 900, 900], &[]);
    }

    #[test]
    fn medians_are_the_middle_or_the_mean_of_the_two_in_the_middle() {
        assert_eq!([vec![3, 1, 2], vec![4, 1, 2, 8], vec![7], vec![]].map(median), [2, 3, 7, 0]);
    }
}
