//! The GPU's memory as a sum; the peaks of PyTorch's counters; the processes; the largest owners.

use std::cmp::Reverse;

use plimsoll_trace::render::words;
use plimsoll_trace::report::{Brief, Cell, Column, Rank, Row, Section, Table};

use super::outside;
use super::sentences::when;
use crate::predict::analysis::judged::{Analysis, Judged};
use crate::predict::analysis::verdict::Verdict;
use crate::predict::answer::Outcome;
use crate::predict::gpu::Target;
use crate::protocol::{Peaks, Report};

/// The maximum number of rows in each table of owners.
const ROWS: usize = 6;

/// The maximum number of rows for processes.
const PROCESSES: usize = 8;

const BYTES: Column = Column::untitled("bytes", 12, "");
const WHAT: Column = Column::untitled("what", 0, "");

/// The GPU's memory, as a sum.
pub(super) fn account(
    outcome: &Outcome,
    judged: &Judged,
    target: &Target,
    size: impl Fn(u64) -> String,
) -> Section {
    let growth = outcome.need.as_ref().map_or(outcome.growth.as_ref(), |need| need.growth.as_ref());
    let end_bytes = growth.and_then(|growth| growth.end_bytes);
    let measured_bytes = judged.peaks.reserved_bytes;
    let reserved_bytes = measured_bytes.max(end_bytes.unwrap_or(0));
    let allocated = size(judged.peaks.allocated_bytes);
    let when = when(judged.peaks.reserved_step, &judged.report);
    // If the allocated bytes alone exceed the GPU's memory, they count as what the program needs,
    // as in the verdict.
    let needed_bytes = outcome.need.as_ref().map(|need| need.bytes);
    let is_allocated =
        needed_bytes.is_some_and(|it| it < reserved_bytes && it == judged.peaks.allocated_bytes);
    // Communicators that the process's peak includes may already be destroyed when PyTorch's memory peaks.
    let is_apart = end_bytes.is_none() && judged.peaks.peaks_apart();
    let counted_bytes = match (is_allocated, is_apart) {
        (true, _) => judged.peaks.allocated_bytes,
        (_, true) => judged.peaks.counted_bytes(),
        _ => reserved_bytes,
    };
    let measured = if is_apart {
        let at_its_own = size(measured_bytes);
        format!(
            "reserved by PyTorch when the process's memory peaked; {at_its_own} at PyTorch's own peak{when}"
        )
    } else if is_allocated {
        format!("allocated by PyTorch at its peak{when}; on a larger GPU, its cache is larger")
    } else if reserved_bytes > measured_bytes {
        format!("reserved by PyTorch at the end, computed; {} measured", size(measured_bytes))
    } else {
        format!("reserved by PyTorch at its peak{when}; {allocated} allocated")
    };
    let row = |name, bytes, what: String| Row::named(name, [Cell::Bytes(bytes), Cell::Text(what)]);
    let requested_bytes = outside::requested_bytes(judged);
    let outside_bytes = target.context_bytes + requested_bytes;
    let pytorch = row("pytorch", counted_bytes, measured);
    let taken = counted_bytes + outside_bytes;
    let mut rows = vec![pytorch.clone()];
    rows.extend(outside::rows(judged, &size));
    if requested_bytes > 0 {
        let what = "requested from CUDA by libraries, not by PyTorch (measured)".to_owned();
        rows.push(row("requested", requested_bytes, what));
    }
    let mut others_bytes = None;
    let left = match &outcome.verdict {
        Verdict::Fits { spare_bytes, .. } => {
            let all = target.limit_bytes().saturating_sub(*spare_bytes);
            others_bytes = all.checked_sub(taken).filter(|bytes| *bytes > 0);
            let taken = outcome.largest_bytes().map_or_else(String::new, |_| {
                format!("; unknown values may take {} of it", size(outcome.stake_bytes()))
            });
            Some(row("spare", *spare_bytes, format!("to spare{taken}")))
        }
        Verdict::RunsOut(_) | Verdict::Grows(_) if taken > target.limit_bytes() => {
            Some(row("short", taken - target.limit_bytes(), "too little".to_owned()))
        }
        _ => target.limit_bytes().checked_sub(taken).map(|bytes| row("free", bytes, "free".to_owned())),
    };
    let used_bytes = target.total_bytes.min(taken + others_bytes.unwrap_or(0) + target.others_bytes);
    let others = others_bytes.map(|bytes| row("others", bytes, "other processes on this GPU".to_owned()));
    rows.extend(others.clone());
    let given = (target.others_bytes > 0).then(|| {
        row("other_programs", target.others_bytes, "other programs on this GPU (given: --others)".to_owned())
    });
    rows.extend(given.clone());
    rows.extend(left.clone());
    rows.extend(outside::totals(target, &size, used_bytes));
    let what = "outside PyTorch: CUDA context, libraries, communicators".to_owned();
    let mut short = vec![pytorch, row("context", outside_bytes, what)];
    short.extend(others);
    short.extend(given);
    short.push(row("gpu", target.total_bytes, gpus_memory(target)));
    short.extend(left.filter(|row| row.name != "free"));
    let [short, all] = [short, rows].map(|rows| Table::of(vec![BYTES, WHAT], rows));
    let heading = format!("Memory of {}", target.name);
    // In the JSON report, the rows for memory outside the allocator are in a separate section.
    let value = Section::table("memory", Rank::Screen, "", short.clone()).value;
    Section::table("memory", Rank::Screen, heading, all)
        .valued(value)
        .briefly(Some(Brief::Table(short)))
        .noted(format!(" (PyTorch {})", judged.report.torch))
}

/// The label of the GPU's total memory.
fn gpus_memory(target: &Target) -> String {
    if target.shares_memory() { "the memory that the GPU and the host share" } else { "the GPU" }.to_owned()
}

/// The peaks of PyTorch's counters, and the memory that the process uses outside them.
pub(super) fn peaks(judged: &Judged, exact: bool, target: &Target, size: impl Fn(u64) -> String) -> Section {
    let Judged { report, peaks, .. } = judged;
    let Peaks { allocated_bytes, allocated_step, reserved_bytes, reserved_step, .. } = *peaks;
    let (least, most) = (target.least_context_bytes, target.context_bytes);
    let doubt = if exact { "" } else { "; not exact: the reasons are below" };
    let row = |name, bytes, title: &str, what| {
        Row::named(name, [Cell::Bytes(bytes), Cell::text(title), Cell::Text(what)])
    };
    let rows = vec![
        row(
            "allocated",
            allocated_bytes,
            "allocated",
            format!(
                "max_memory_allocated(){}; varies by up to 1 % from run to run on a real GPU",
                when(allocated_step, report)
            ),
        ),
        row(
            "reserved",
            reserved_bytes,
            "reserved",
            format!("max_memory_reserved(){}{doubt}", when(reserved_step, report)),
        ),
        row(
            "process",
            reserved_bytes + most,
            if least == most { "the process" } else { "the process, at most" },
            if least == most {
                format!("{} are outside PyTorch's allocator", size(most))
            } else {
                format!(
                    "at least {}: context and libraries take {} to {}",
                    size(reserved_bytes + least),
                    size(least),
                    size(most)
                )
            },
        ),
    ];
    let table = Table::of(vec![BYTES, Column::untitled("title", 22, ""), WHAT], rows);
    Section::table("peaks", Rank::Full, "The peaks", table)
        .noted(format!(" (PyTorch {}, {})", report.torch, target.name))
}

/// A row for each process and device, if there are several.
pub(super) fn processes(outcome: &Outcome) -> Section {
    let of_each = outcome.rows();
    let row = |(report, peaks): &(&Report, &Peaks)| {
        Row::of([
            Cell::text(report.name()),
            Cell::text(format!("device {}", peaks.device)),
            Cell::Bytes(peaks.allocated_bytes),
            Cell::Bytes(peaks.reserved_bytes),
            Cell::Count(report.steps),
            Cell::text(if report.failures > 0 { "ran OUT" } else { "" }),
        ])
    };
    let rows: Vec<Row> = if of_each.len() < 2 { Vec::new() } else { of_each.iter().map(row).collect() };
    let columns = vec![
        Column::untitled("process", 12, ""),
        Column::untitled("device", 10, ""),
        Column::untitled("allocated_bytes", 12, "allocated"),
        Column::untitled("reserved_bytes", 12, "reserved"),
        Column::untitled("steps", 4, "steps"),
        Column::untitled("ran_out", 0, ""),
    ];
    let table = Table::of(columns, rows);
    let brief = Table { most: PROCESSES, ..table.clone() };
    Section::table("processes", Rank::Screen, "Processes", table).briefly(Some(Brief::Table(brief)))
}

/// The largest owners, by category and by line.
pub(super) fn owners(analysis: &Analysis) -> [Section; 2] {
    let (device, snapshot) = (analysis.device(), &analysis.explained.snapshot);
    let owners = &device.owners;
    let section = |heading: String, columns: &[Column], rows: Vec<(u64, Vec<String>)>| {
        let row = |(bytes, words): (u64, Vec<String>)| {
            let figures = [Cell::Bytes(bytes), Cell::share(bytes, owners.bytes)];
            Row::of(figures.into_iter().chain(words.into_iter().map(Cell::Text)))
        };
        let columns = [&[BYTES, Column::untitled("percent", 5, "")][..], columns].concat();
        let rows = rows.into_iter().map(row).collect();
        let table = Table { most: ROWS, ..Table::of(columns, rows) };
        Section::lines("", Rank::Spare, []).headed(heading).briefly(Some(Brief::Table(table))).drawn()
    };
    let mut categories: Vec<(u64, String)> = Vec::new();
    for share in &owners.by_category {
        let name = words::category(snapshot, share.key.category).into_owned();
        match categories.iter_mut().find(|(_, known)| *known == name) {
            Some((bytes, _)) => *bytes += share.bytes,
            None => categories.push((share.bytes, name)),
        }
    }
    categories.sort_by_key(|(bytes, _)| Reverse(*bytes));
    let categories = categories.into_iter().map(|(bytes, name)| (bytes, vec![name])).collect();
    let lines = owners.by_line.iter().map(|share| {
        let purpose = words::purpose(snapshot, share.key.category).into_owned();
        (share.bytes, vec![purpose, words::asker(snapshot, share.key)])
    });
    [
        section(format!("Live memory {}, by category", words::when(device)), &[WHAT], categories),
        section("By line".to_owned(), &[Column::untitled("category", 15, ""), WHAT], lines.collect()),
    ]
}
