//! A sample as text, for output without a terminal and for the texts that the screen shares with it.

use std::fmt::Write;

use plimsoll::Category;
use plimsoll::memory::live::Sample;
use plimsoll_trace::render::words;

use crate::bytes;

/// A sample as plain text.
pub(super) fn render(sample: &Sample, whole: bool) -> String {
    let mut out = process(sample) + "\n";
    let bound = sample.bound_bytes();
    // Writing to a `String` cannot fail.
    let _ = writeln!(out, "\n{}", bound_name(sample, whole));
    table(&mut out, &of_bound(sample), bound, whole);
    let _ = writeln!(out, "\nLive, by category");
    table(&mut out, &of_live(sample), sample.allocated_bytes, whole);
    let _ =
        writeln!(out, "\n{}\n{}\n{}", peaks(sample, whole), course(sample, whole), trouble(sample, whole));
    out
}

fn table(out: &mut String, rows: &[(&str, u64)], of: u64, whole: bool) {
    for &(name, bytes) in rows {
        let _ = writeln!(out, "{}", row(name, bytes, of, whole));
    }
}

/// A row with a name, a size, and its share.
pub(super) fn row(name: &str, bytes: u64, of: u64, whole: bool) -> String {
    let share = if of == 0 { 0.0 } else { 100.0 * bytes as f64 / of as f64 };
    format!("{name:<16}{:>14}{share:>7.1} %", bytes::shown(bytes, whole))
}

/// The name and size of the memory bound.
pub(super) fn bound_name(sample: &Sample, whole: bool) -> String {
    let name = if sample.limit_bytes.is_some() { "The limit of" } else { "The device's" };
    format!("{name} {}", bytes::shown(sample.bound_bytes(), whole))
}

/// The parts of the memory bound.
pub(super) fn of_bound(sample: &Sample) -> [(&'static str, u64); 4] {
    [
        ("live", sample.allocated_bytes),
        ("cached", sample.cached_bytes()),
        ("others", sample.other_bytes()),
        ("free", sample.free_bytes()),
    ]
}

/// Live bytes by category, in the order that all tables use. A PyTorch program reports some of the categories, and the rest as
/// `other`.
pub(super) fn of_live(sample: &Sample) -> Vec<(&str, u64)> {
    let bytes = |category: Category| sample.by_category.get(category.name()).copied();
    let is_pytorch = sample.by_category.contains_key(OTHER);
    let known = Category::ALL.into_iter().filter_map(|category| match bytes(category) {
        None if is_pytorch => None,
        bytes => Some((category.plural(), bytes.unwrap_or(0))),
    });
    known.chain(sample.by_category.get(OTHER).map(|&bytes| (OTHER, bytes))).collect()
}

/// Activations, inputs, temporaries and workspaces of a PyTorch program.
const OTHER: &str = "other";

/// The peaks so far.
pub(super) fn peaks(sample: &Sample, whole: bool) -> String {
    let size = |size| bytes::shown(size, whole);
    format!(
        "peaks: {} live, {} reserved",
        size(sample.peak_allocated_bytes),
        size(sample.peak_reserved_bytes)
    )
}

/// The number of steps, and the growth per step.
pub(super) fn course(sample: &Sample, whole: bool) -> String {
    let growth = match sample.growth_bytes_per_step {
        None => "too few steps to measure growth".to_owned(),
        Some(growth) if growth.abs() < 0.5 => "no growth from step to step".to_owned(),
        // The cast saturates at the range of the integer.
        Some(growth) => format!("growth {} a step", bytes::change(growth.round() as i128, whole)),
    };
    let steps = sample.steps;
    format!("{steps} step{} begun, {growth}", if steps == 1 { "" } else { "s" })
}

/// Signs of memory pressure: the largest free block in the cache, retries and failures.
pub(super) fn trouble(sample: &Sample, whole: bool) -> String {
    let hole = sample.largest_cached_bytes.map(|hole| bytes::shown(hole, whole));
    let hole = hole.map_or_else(String::new, |hole| format!("largest free {hole}, "));
    let skipped = sample.skipped_steps.map_or_else(String::new, |steps| format!(", skipped steps {steps}"));
    format!("{hole}retries {}, out of memory {}{skipped}", sample.num_alloc_retries, sample.num_ooms)
}

/// The identity of the process; the parts that must not be cut off come first.
pub(super) fn process(sample: &Sample) -> String {
    let rank = sample.rank.map_or_else(String::new, |rank| format!(", rank {rank},"));
    format!("process {}{rank} on {}: {}", sample.pid, words::plain(&sample.device), command(sample))
}

/// The command line on one line, with control characters escaped.
pub(super) fn command(sample: &Sample) -> String {
    words::plain(&sample.command).into_owned()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A training run in its fourth step under a limit of 64 MiB.
    pub(in crate::top) fn sample() -> Sample {
        let by_category = [("parameter", 4 << 20), ("optimizer state", 8 << 20), ("activation", 10 << 20)];
        Sample {
            schema: plimsoll::memory::live::SCHEMA.to_owned(),
            pid: 4711,
            command: "plimsoll train\nmnist".to_owned(),
            device: "cpu".to_owned(),
            capacity_bytes: 8 << 30,
            device_free_bytes: 7 << 30,
            limit_bytes: Some(64 << 20),
            allocated_bytes: 22 << 20,
            active_bytes: 22 << 20,
            reserved_bytes: 40 << 20,
            peak_allocated_bytes: 36 << 20,
            peak_reserved_bytes: 42 << 20,
            by_category: by_category.map(|(name, bytes)| (name.to_owned(), bytes)).into(),
            largest_cached_bytes: Some(12 << 20),
            num_alloc_retries: 2,
            num_ooms: 0,
            skipped_steps: None,
            resident_bytes: Some(123 << 20),
            steps: 34,
            step_levels: (0..34).map(|step| (12 << 20) + step * (1 << 16)).collect(),
            growth_bytes_per_step: Some(65536.0),
            rank: None,
            job: None,
        }
    }

    #[test]
    fn a_sample_in_words_sums_to_the_bound_and_to_what_is_live() {
        let expected = "\
process 4711 on cpu: plimsoll train mnist

The limit of 64.00 MiB
live                 22.00 MiB   34.4 %
cached               18.00 MiB   28.1 %
others                 0 bytes    0.0 %
free                 24.00 MiB   37.5 %

Live, by category
parameters            4.00 MiB   18.2 %
buffers                0 bytes    0.0 %
gradients              0 bytes    0.0 %
optimizer state       8.00 MiB   36.4 %
activations          10.00 MiB   45.5 %
temporaries            0 bytes    0.0 %
workspaces             0 bytes    0.0 %
inputs                 0 bytes    0.0 %
outputs                0 bytes    0.0 %

peaks: 36.00 MiB live, 42.00 MiB reserved
34 steps begun, growth +64.00 KiB a step
largest free 12.00 MiB, retries 2, out of memory 0
";
        assert_eq!(render(&sample(), false), expected);
    }

    #[test]
    fn growth_is_said_only_where_it_is_known_and_there() {
        let said = |growth| course(&Sample { growth_bytes_per_step: growth, steps: 1, ..sample() }, true);
        assert_eq!(said(None), "1 step begun, too few steps to measure growth");
        assert_eq!(said(Some(0.2)), "1 step begun, no growth from step to step");
        assert_eq!(said(Some(-512.0)), "1 step begun, growth -512 B a step");
    }
}
