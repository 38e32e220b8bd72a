//! The ranks of a job side by side, in the words of every form that says it: [`Abreast`].

use std::cmp::Reverse;

use super::Report;
use super::words::NO_LINE;
use crate::explain::{DeviceExplanation, LineAcross, Place, Ranks};

/// What a mark at a figure means.
pub const ODD: &str = "far from the others, which are close to each other";

/// The ranks of a job, and what each tells.
#[derive(Debug, Clone)]
pub struct Abreast<'a> {
    /// Their figures.
    pub ranks: Ranks,
    /// The device of each, with its recording, in the same order.
    pub devices: Vec<(Report<'a>, &'a DeviceExplanation)>,
    /// What could not be read, by the names of its ranks, and why.
    pub unreadable: &'a [(String, String)],
}

impl<'a> Abreast<'a> {
    /// Puts recordings side by side, each with the name of its rank; several devices of one are ranks of their own.
    pub fn of(files: &[(&'a str, Report<'a>)], unreadable: &'a [(String, String)]) -> Self {
        let devices = files.iter().flat_map(|(name, report)| {
            let named = move |device: &DeviceExplanation| match report.devices.len() {
                1 => (*name).to_owned(),
                _ => format!("{name} device {}", device.timeline.device),
            };
            report.devices.iter().map(move |device| (named(device), *report, device))
        });
        let (known, devices): (Vec<_>, Vec<_>) =
            devices.map(|(name, report, device)| ((name, report.known(device)), (report, device))).unzip();
        Self { ranks: Ranks::of(&known), devices, unreadable }
    }

    /// What could not be read, a sentence for each.
    pub fn missing(&self) -> impl Iterator<Item = String> {
        self.unreadable.iter().map(|(name, why)| format!("incomplete without {name}: {why}"))
    }

    /// What a rank is called.
    pub fn name(&self, nth: usize) -> &str {
        &self.ranks.ranks[nth].name
    }

    /// Whether a figure of a rank is odd.
    pub fn is_odd(&self, nth: usize) -> bool {
        self.ranks.allocated.odd.contains(&nth) || self.ranks.reserved.odd.contains(&nth)
    }

    /// What failed, then who is odd. `size` writes a number of bytes.
    pub fn verdict(&self, size: impl Fn(u64) -> String) -> String {
        let failed = self.devices.iter().enumerate().filter(|(_, (_, device))| device.failure.is_some());
        let failed: Vec<&str> = failed.map(|(nth, _)| self.name(nth)).collect();
        let count = self.ranks.ranks.len();
        let failed = match failed.len() {
            0 => String::new(),
            all if all == count => format!("all {count} ranks ran out of memory; "),
            few @ 1..=4 => format!("{} ran out of memory ({few} of {count} ranks); ", failed.join(", ")),
            many => format!("{many} of {count} ranks ran out of memory; "),
        };
        format!("{failed}{}", self.odd(size))
    }

    fn odd(&self, size: impl Fn(u64) -> String) -> String {
        let ranks = &self.ranks;
        let (of, what) = match (ranks.allocated.odd.is_empty(), ranks.reserved.odd.is_empty()) {
            (true, false) => (&ranks.reserved, "reserved"),
            _ => (&ranks.allocated, "allocated"),
        };
        let (least, most) = (of.bytes.iter().min(), of.bytes.iter().max());
        let (Some(&least), Some(&most)) = (least, most) else { return "no rank".to_owned() };
        let range = if least == most {
            format!("each has {} {what} at its peak", size(most))
        } else {
            format!("{} to {} {what} at their peaks", size(least), size(most))
        };
        let Some(&odd) = of.odd.first() else {
            return match of.bytes.len() {
                2 if least != most => {
                    format!("{range}; which of two is odd cannot be told{}", self.widest(size))
                }
                count => format!("none of {count} ranks is odd: {range}"),
            };
        };
        let others = size(of.median_bytes);
        let names: Vec<&str> = of.odd.iter().map(|&nth| self.name(nth)).collect();
        let are = if names.len() == 1 { "is the odd one out" } else { "are odd" };
        let cause = self.cause(odd).map_or_else(String::new, |line| {
            let [here, median] = [line.across.bytes[odd], line.across.median_bytes].map(&size);
            format!("; {here} {}, the others {median}", at(line.place.as_ref()))
        });
        let here = size(of.bytes[odd]);
        format!("{} {are}: {here} {what} at its peak, the others {others}{cause}", names.join(", "))
    }

    /// The line in which an odd rank differs most from the others.
    fn cause(&self, odd: usize) -> Option<&LineAcross> {
        let lines = self.ranks.lines.iter().filter(|line| line.across.odd.contains(&odd));
        lines.max_by_key(|line| line.across.bytes[odd].abs_diff(line.across.median_bytes))
    }

    /// The line in which two ranks differ most.
    fn widest(&self, size: impl Fn(u64) -> String) -> String {
        self.ranks.lines.first().map_or_else(String::new, |line| {
            format!("; they differ most by {} {}", size(line.across.spread_bytes()), at(line.place.as_ref()))
        })
    }

    /// The lines in which they differ, the least alike first.
    pub fn differing(&self) -> Vec<&LineAcross> {
        self.ranks.lines.iter().filter(|line| line.across.spread_bytes() > 0).collect()
    }

    /// The names of the ranks that are odd in a line.
    pub fn odd_names(&self, line: &LineAcross) -> String {
        line.across.odd.iter().map(|&nth| self.name(nth)).collect::<Vec<_>>().join(", ")
    }

    /// At most so many ranks, those that matter most first: odd ones, those that ran out of memory, then the largest.
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

/// A place in a sentence.
fn at(line: Option<&Place>) -> String {
    format!("{} {}", if line.is_some() { "at" } else { "with" }, place(line))
}

/// A line of the program, whichever rank has it.
pub fn place(place: Option<&Place>) -> String {
    place.map_or_else(
        || NO_LINE.to_owned(),
        |Place { file, function, line }| format!("{file}:{line} {function}"),
    )
}
