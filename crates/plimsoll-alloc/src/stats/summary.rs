//! The statistics as PyTorch's table: [`Stats::summary`].
//!
//! Widths and units are exactly those of `torch.cuda.memory_summary`, so that programs that parse that
//! table can parse this one.

use super::{PoolStats, Stat, Stats};

const WIDTH: usize = 75;

impl Stats {
    /// The table of `torch.cuda.memory_summary()`, with the first 56 characters of `title`. With PyTorch's own title,
    /// `PyTorch CUDA memory summary, device ID 0`, the text is identical to PyTorch's.
    pub fn summary(&self, title: &str) -> String {
        let (double, single) = ("=".repeat(WIDTH), "-".repeat(WIDTH));
        let mut lines = vec![double.clone(), format!("{:18}{title:<56.56} ", ""), single.clone()];
        let (ooms, retries) = (self.num_ooms, self.num_alloc_retries);
        lines.push(format!("{:12}CUDA OOMs: {ooms:<12} | {:6} cudaMalloc retries: {retries:<8}  ", "", ""));
        lines.push(double.clone());
        lines.push("        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  ".to_owned());
        for (metric, stats, write) in self.metrics() {
            lines.push(single.clone());
            lines.extend(group(metric, &stats, write));
        }
        let oversize = [
            ("Oversize allocations", self.oversize_allocations),
            ("Oversize GPU segments", self.oversize_segments),
        ];
        for (metric, stat) in oversize {
            lines.push(single.clone());
            lines.push(row(metric, stat, stat, count));
        }
        lines.push(double);
        lines.iter().map(|line| format!("|{line}|\n")).collect()
    }

    fn metrics(&self) -> [(&'static str, PoolStats, Write); 9] {
        [
            ("Allocated memory", self.allocated_bytes(), size),
            ("Active memory", self.active_bytes(), size),
            ("Requested memory", self.requested_bytes(), size),
            ("GPU reserved memory", self.reserved_bytes(), size),
            ("Non-releasable memory", self.inactive_split_bytes(), size),
            ("Allocations", self.allocation(), count),
            ("Active allocs", self.active(), count),
            ("GPU reserved segments", self.segment(), count),
            ("Non-releasable allocs", self.inactive_split(), count),
        ]
    }
}

/// Formats a value in the unit that fits `reference`, so that the rows of a group share a unit.
type Write = fn(value: i64, reference: i64) -> String;

fn group(metric: &str, stats: &PoolStats, write: Write) -> [String; 3] {
    [
        row(metric, stats.all, stats.all, write),
        row("      from large pool", stats.large_pool, stats.all, write),
        row("      from small pool", stats.small_pool, stats.all, write),
    ]
}

fn row(metric: &str, stat: Stat, reference: Stat, write: Write) -> String {
    let [current, peak, allocated, freed] = [
        write(stat.current, reference.current),
        write(stat.peak, reference.peak),
        write(stat.allocated, reference.allocated),
        write(stat.freed, reference.freed),
    ];
    format!(" {metric:<21} | {current} | {peak} | {allocated} | {freed} ")
}

fn size(bytes: i64, reference: i64) -> String {
    let unit = Unit { names: &["B  ", "KiB", "MiB", "GiB", "TiB", "PiB"], step: 1024, from: 768.0 * 1024.0 };
    let (value, name) = unit.suit(bytes, reference);
    format!("{value:6} {name}")
}

fn count(value: i64, reference: i64) -> String {
    let unit = Unit { names: &[" ", "K", "M"], step: 1000, from: 750.0 * 1000.0 };
    let (value, name) = unit.suit(value, reference);
    format!("{value:7} {name} ")
}

/// A list of units, and the value from which the next larger unit is used.
struct Unit {
    names: &'static [&'static str],
    step: i64,
    from: f64,
}

impl Unit {
    /// `value` in the unit that fits `reference`, rounded down to a whole number.
    fn suit(&self, value: i64, reference: i64) -> (i64, &'static str) {
        let (mut value, mut reference, mut nth) = (value, reference as f64, 0);
        while nth + 1 < self.names.len() && reference >= self.from {
            value = value.div_euclid(self.step);
            reference /= self.step as f64;
            nth += 1;
        }
        (value, self.names[nth])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unit_follows_the_reference_value() {
        assert_eq!(size(1_000_000, 1_000_000), "   976 KiB");
        assert_eq!(size(700_000, 700_000), "700000 B  ");
        assert_eq!(size(32 << 20, 32 << 20), " 32768 KiB");
        assert_eq!(size(0, 32 << 20), "     0 KiB");
        assert_eq!(count(749_999, 749_999), " 749999   ");
        assert_eq!(count(750_000, 750_000), "    750 K ");
    }

    #[test]
    fn every_line_is_as_wide_as_pytorchs() {
        let summary = Stats::default().summary("PyTorch CUDA memory summary, device ID 0");
        assert!(summary.lines().all(|line| line.len() == WIDTH + 2), "{summary}");
        assert_eq!(summary.lines().count(), 6 + 9 * 4 + 4 + 1);
        let long = Stats::default().summary(&"title ".repeat(20));
        assert!(long.lines().all(|line| line.len() == WIDTH + 2), "{long}");
    }
}
