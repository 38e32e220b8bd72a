//! A comparison of the ranks of a job, in words: [`RankTable`].

use std::cmp::Reverse;

use super::Report;
use super::words::{NO_LINE, few, plain};
use crate::explain::{DeviceExplanation, LineAcross, Place, Ranks};

/// The maximum number of ranks with separate columns; with more ranks, each line shows only the smallest, the median
/// and the largest figure.
pub const COLUMNS: usize = 8;
/// The names of the columns of a range, in the order of [`Across::range`](crate::explain::Across::range).
pub const RANGE: [&str; 3] = ["least", "median", "most"];
/// The meaning of the mark next to an odd figure.
pub const ODD: &str = "far from the others, which are close to each other";

/// The ranks of a job, with the explanation of each.
#[derive(Debug, Clone)]
pub struct RankTable<'a> {
    /// The figures of the ranks.
    pub ranks: Ranks,
    /// The recording and the device of each rank, in the same order.
    pub devices: Vec<(Report<'a>, &'a DeviceExplanation)>,
    /// The ranks whose file could not be read, and the reasons.
    pub unreadable: &'a [(String, String)],
    /// Other files of the same ranks, which are not used.
    pub unused: &'a [Unused],
}

/// A file that is not used, because its rank has another file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unused {
    /// The rank's name.
    pub rank: String,
    /// The file.
    pub file: String,
    /// The file that is used instead.
    pub used: String,
    /// Why the other file is used.
    pub why: &'static str,
    /// The verdict of this file, in a few words.
    pub brief: String,
}

impl Unused {
    /// A sentence about which file is used, and why.
    pub fn sentence(&self) -> String {
        let Self { rank, file, used, why, brief } = self;
        format!("{rank}: {} is used, not {}: {why} ({brief})", plain(used), plain(file))
    }
}

impl<'a> RankTable<'a> {
    /// Compares recordings, each with the name of its rank. Several devices of one recording count as separate ranks.
    pub fn of(
        files: &[(&'a str, Report<'a>)],
        unreadable: &'a [(String, String)],
        unused: &'a [Unused],
    ) -> Self {
        let devices = files.iter().flat_map(|(name, report)| {
            let named = move |device: &DeviceExplanation| match report.devices.len() {
                1 => (*name).to_owned(),
                _ => format!("{name} device {}", device.timeline.device),
            };
            report.devices.iter().map(move |device| (named(device), *report, device))
        });
        Self { unreadable, unused, ..Self::named(devices) }
    }

    /// Compares devices, each with a name.
    pub(super) fn named(devices: impl Iterator<Item = (String, Report<'a>, &'a DeviceExplanation)>) -> Self {
        let (analysis, devices): (Vec<_>, Vec<_>) =
            devices.map(|(name, report, device)| ((name, report.analysis(device)), (report, device))).unzip();
        Self { ranks: Ranks::of(&analysis), devices, unreadable: &[], unused: &[] }
    }

    /// A sentence for each file that could not be read.
    pub fn missing(&self) -> impl Iterator<Item = String> {
        self.unreadable.iter().map(|(name, why)| format!("incomplete without {name}: {why}"))
    }

    /// A rank's name.
    pub fn name(&self, nth: usize) -> &str {
        &self.ranks.ranks[nth].name
    }

    /// Whether one of a rank's figures is odd.
    pub fn is_odd(&self, nth: usize) -> bool {
        self.ranks.allocated.is_odd(nth) || self.ranks.reserved.is_odd(nth)
    }

    /// A sentence about the failures, and about the rank that differs from the other ranks. `size` formats a number of
    /// bytes.
    pub fn verdict(&self, size: impl Fn(u64) -> String) -> String {
        let failed = self.devices.iter().enumerate().filter(|(_, (_, device))| device.failure.is_some());
        let failed: Vec<&str> = failed.map(|(nth, _)| self.name(nth)).collect();
        // A rank with several devices counts only once.
        let has_failed = |rank: &&[(Report<'_>, &DeviceExplanation)]| {
            rank.iter().any(|(_, device)| device.failure.is_some())
        };
        let (count, some) = (self.by_file().count(), self.by_file().filter(has_failed).count());
        let failed = match failed.len() {
            0 => String::new(),
            all if all == self.devices.len() && count > 1 => format!("all {count} ranks ran out of memory; "),
            _ if count == 1 => format!("{} ran out of memory; ", few(&failed)),
            _ => format!("{} ran out of memory ({some} of {count} ranks); ", few(&failed)),
        };
        format!("{failed}{}", self.odd(size))
    }

    /// The devices of each recording.
    pub(super) fn by_file(&self) -> impl Iterator<Item = &[(Report<'a>, &'a DeviceExplanation)]> {
        self.devices.chunk_by(|(a, _), (b, _)| std::ptr::eq(a.snapshot, b.snapshot))
    }

    /// The word for what the rows represent: ranks, or devices if a rank has several devices.
    fn rows(&self) -> &'static str {
        if self.by_file().count() < self.devices.len() { "devices" } else { "ranks" }
    }

    fn odd(&self, size: impl Fn(u64) -> String) -> String {
        let ranks = &self.ranks;
        let (of, what) = match (ranks.allocated.odd.is_empty(), ranks.reserved.odd.is_empty()) {
            (true, false) => (&ranks.reserved, "reserved"),
            _ => (&ranks.allocated, "allocated"),
        };
        if of.bytes.is_empty() {
            return "no rank".to_owned();
        }
        let [least, _, most] = of.range();
        let range = if least == most {
            format!("each has {} {what} at its peak", size(most))
        } else {
            format!("{} to {} {what} at their peaks", size(least), size(most))
        };
        let Some(&odd) = of.odd.first() else {
            return match of.bytes.len() {
                1 => format!("{} {what} at its peak", size(most)),
                2 if least != most => {
                    format!("{range}; two ranks are too few to say which is odd{}", self.widest(size))
                }
                count => format!("none of {count} {} is odd: {range}", self.rows()),
            };
        };
        let others = size(of.median_bytes);
        let names: Vec<&str> = of.odd.iter().map(|&nth| self.name(nth)).collect();
        let are = if names.len() == 1 { "is the odd one out" } else { "are odd" };
        let cause = self.cause(odd).map_or_else(String::new, |line| {
            let [here, median] = [line.across.bytes[odd], line.across.median_bytes].map(&size);
            format!("; {here} {}, the others {median}", at(line))
        });
        let here = size(of.bytes[odd]);
        format!("{} {are}: {here} {what} at its peak, the others {others}{cause}", few(&names))
    }

    /// The line in which an odd rank differs most from the other ranks.
    fn cause(&self, odd: usize) -> Option<&LineAcross> {
        let lines = self.ranks.lines.iter().filter(|line| line.across.is_odd(odd));
        lines.max_by_key(|line| line.across.bytes[odd].abs_diff(line.across.median_bytes))
    }

    /// A phrase about the line in which two ranks differ most.
    fn widest(&self, size: impl Fn(u64) -> String) -> String {
        self.ranks.lines.first().map_or_else(String::new, |line| {
            format!("; they differ most by {} {}", size(line.across.spread_bytes()), at(line))
        })
    }

    /// The lines in which the ranks differ, the largest differences first.
    pub fn differing(&self) -> Vec<&LineAcross> {
        self.ranks.lines.iter().filter(|line| line.across.spread_bytes() > 0).collect()
    }

    /// The names of the ranks that are odd in a line.
    pub fn odd_names(&self, line: &LineAcross) -> String {
        few(&line.across.odd.iter().map(|&nth| self.name(nth)).collect::<Vec<_>>())
    }

    /// At most `most` ranks, the most important first: odd ranks, ranks that ran out of memory, then the ranks with the
    /// most memory.
    pub fn foremost(&self, most: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.devices.len()).collect();
        order.sort_by_key(|&nth| {
            let failed = self.devices[nth].1.failure.is_some();
            Reverse((self.is_odd(nth), failed, self.ranks.allocated.bytes[nth]))
        });
        order.truncate(most);
        order
    }
}

/// The place of a line of the program, for use in a sentence.
fn at(of: &LineAcross) -> String {
    format!("{} {}", if of.place.is_some() { "at" } else { "with" }, line(of))
}

/// The name of a line of the program, with the library line that it called, from any rank.
pub fn line(line: &LineAcross) -> String {
    let at = |place: &Place| format!("{}:{} {}", plain(&place.file), place.line, plain(&place.function));
    let own = line.place.as_ref().map_or_else(|| NO_LINE.to_owned(), at);
    match &line.package {
        Some(package) => format!("{own} > {}", at(package)),
        None => own,
    }
}
