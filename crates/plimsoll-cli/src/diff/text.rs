//! What changed, for people: the verdict, both peaks, then by category and by line.

use std::collections::BTreeMap;
use std::fmt::Write;

use plimsoll_alloc::Category;
use plimsoll_trace::explain::{Amount, Change, ChangedLine};
use plimsoll_trace::render::words;
use plimsoll_trace::snapshot::FrameId;

use super::{Both, DiffArgs, Pair};
use crate::output::{BOLD, RESET};

/// Of blocks without a stack, or whose stack has none.
const NO_LINE: &str = "no line of Python";

/// A name, and what it has in the first and in the second.
type Row = (String, [Amount; 2]);

/// The whole answer.
pub(super) fn render(both: &Both, args: &DiffArgs) -> String {
    let page = Page { both, args };
    let mut out = String::new();
    // Writing to a `String` cannot fail.
    for pair in &both.pairs {
        if !out.is_empty() {
            out.push('\n');
        }
        page.pair(&mut out, pair);
    }
    for (side, device) in &both.alone {
        let _ = writeln!(out, "\ndevice {device} is in {} alone", both.files[*side].file);
    }
    out
}

struct Page<'a> {
    both: &'a Both,
    args: &'a DiffArgs,
}

impl Page<'_> {
    fn size(&self, bytes: u64) -> String {
        self.args.shown.size(bytes)
    }

    fn change(&self, bytes: i128) -> String {
        self.args.shown.change(bytes)
    }

    fn pair(&self, out: &mut String, pair: &Pair) {
        let devices = self.both.devices(pair);
        let lines = self.lines(pair);
        if self.both.pairs.len() > 1 {
            let _ = write!(out, "device {}: ", devices[0].timeline.device);
        }
        let _ = writeln!(out, "{BOLD}{}{RESET}", self.verdict(pair, &lines));
        self.totals(out, pair);
        let _ = writeln!(out, "\n{BOLD}At the peak, by category{RESET}");
        let categories = &pair.comparison.categories;
        let names = categories.iter().map(|change| (kind(change.key), change.amounts));
        self.table(out, &names.collect::<Vec<_>>());
        let _ = writeln!(out, "\n{BOLD}At the peak, by line{RESET}");
        self.table(out, &lines);
        for (name, (file, device)) in ["before", "after"].into_iter().zip(self.both.files.iter().zip(devices))
        {
            let gap = match device.timeline.quality {
                quality if quality.events == 0 => {
                    "; it has no events: its peak is what it held as it was taken"
                }
                quality if quality.is_cut => "; its oldest events were lost, and a higher peak may have been",
                _ => "",
            };
            let space = if name == "before" { "\n" } else { "" };
            let verdict = words::verdict(device, |bytes| self.size(bytes));
            let _ = writeln!(out, "{space}{name:<6}  {}: {verdict}{gap}", file.file);
        }
    }

    /// By how much the peak changed, and the lines that did it.
    fn verdict(&self, pair: &Pair, lines: &[Row]) -> String {
        let [a, b] = pair.comparison.totals.map(|totals| totals.peak_allocated_bytes);
        let by = i128::from(b) - i128::from(a);
        let most = lines.iter().map(|(_, amounts)| between(*amounts).unsigned_abs()).max().unwrap_or(0);
        // Lines that did little beside the first are for the table.
        let telling =
            lines.iter().filter(|(_, amounts)| between(*amounts).unsigned_abs() * 10 >= most.max(1));
        let causes: Vec<String> = telling
            .take(3)
            .map(|(line, amounts)| {
                let at = if line.starts_with(NO_LINE) { "with" } else { "at" };
                format!("{} {at} {line}", self.change(between(*amounts)))
            })
            .collect();
        let size = self.size(a);
        match (by, causes.is_empty()) {
            (0, true) => format!("no change: a peak of {size} in both, line by line"),
            (0, false) => format!("a peak of {size} in both, otherwise made up: {}", causes.join(", ")),
            _ => format!("peak {}{}: {}", self.change(by), percent(by, a), causes.join(", ")),
        }
    }

    fn totals(&self, out: &mut String, pair: &Pair) {
        let [a, b] = pair.comparison.totals;
        let _ = writeln!(out, "\n  {:>13}  {:>13}  {:>13}", "change", "before", "after");
        for (name, of) in [
            ("allocated at most: max_memory_allocated()", [a.peak_allocated_bytes, b.peak_allocated_bytes]),
            ("reserved at most: max_memory_reserved()", [a.peak_reserved_bytes, b.peak_reserved_bytes]),
        ] {
            let by = i128::from(of[1]) - i128::from(of[0]);
            let change = self.change(by);
            let [before, after] = of.map(|bytes| self.size(bytes));
            let _ = writeln!(out, "  {change:>13}  {before:>13}  {after:>13}  {name}{}", percent(by, of[0]));
        }
        let by = i128::from(b.allocations) - i128::from(a.allocations);
        let (before, after) = (a.allocations, b.allocations);
        let by = if by == 0 { "0".to_owned() } else { format!("{by:+}") };
        let _ = writeln!(out, "  {by:>13}  {before:>13}  {after:>13}  requests that were served");
    }

    /// What each line holds at the peaks, whatever for; what changed the most comes first.
    fn lines(&self, pair: &Pair) -> Vec<Row> {
        let mut lines: BTreeMap<[Option<FrameId>; 2], Vec<&Change<ChangedLine>>> = BTreeMap::new();
        for change in &pair.comparison.lines {
            lines.entry(change.key.frames).or_default().push(change);
        }
        let named = lines.into_iter().map(|(frames, changes)| {
            let what = match changes.as_slice() {
                [one] => {
                    one.key.category.map_or_else(String::new, |category| format!(" ({})", category.name()))
                }
                _ => String::new(),
            };
            (format!("{}{what}", self.line(frames)), sum(changes.iter().map(|change| change.amounts)))
        });
        let mut named: Vec<Row> = named.collect();
        named.sort_by_key(|(_, amounts)| std::cmp::Reverse(between(*amounts).unsigned_abs()));
        named
    }

    /// A line as the second calls it, and where it was in the first if that is elsewhere.
    fn line(&self, frames: [Option<FrameId>; 2]) -> String {
        let [a, b] = [0, 1].map(|side| frames[side].map(|frame| (&self.both.files[side].snapshot, frame)));
        let words = |(snapshot, frame)| words::line(snapshot, frame);
        match (a.map(words), b.map(words)) {
            (Some(a), Some(b)) if a != b => match a.rsplit_once(' ') {
                Some((place, _)) => format!("{b} (was {place})"),
                None => format!("{b} (was {a})"),
            },
            (_, Some(line)) | (Some(line), None) => line,
            (None, None) => NO_LINE.to_owned(),
        }
    }

    /// The largest changes, one row for the rest, and the sum.
    fn table(&self, out: &mut String, rows: &[Row]) {
        let (listed, rest) = rows.split_at(rows.len().min(self.args.shown.rows));
        let (listed, quiet): (Vec<_>, Vec<_>) =
            listed.iter().partition(|(_, amounts)| between(*amounts) != 0);
        let rest: Vec<_> = quiet.into_iter().chain(rest).collect();
        for (name, amounts) in listed {
            self.row(out, *amounts, name);
        }
        if !rest.is_empty() {
            let alike = rest.iter().all(|(_, amounts)| between(*amounts) == 0);
            let what = if alike { "unchanged" } else { "more" };
            let all = sum(rest.iter().map(|(_, amounts)| *amounts));
            self.row(out, all, &format!("{} {what}", rest.len()));
        }
        let all = sum(rows.iter().map(|(_, amounts)| *amounts));
        self.row(out, all, "in all: memory_allocated()");
    }

    fn row(&self, out: &mut String, amounts: [Amount; 2], name: &str) {
        let change = self.change(between(amounts));
        let [before, after] = amounts.map(|amount| self.size(amount.bytes));
        let _ = writeln!(out, "  {change:>13}  {before:>13}  {after:>13}  {name}");
    }
}

fn kind(category: Option<Category>) -> String {
    category.map_or("unknown", |category| category.plural()).to_owned()
}

fn between(amounts: [Amount; 2]) -> i128 {
    Change { key: (), amounts }.bytes()
}

fn sum(rows: impl Iterator<Item = [Amount; 2]>) -> [Amount; 2] {
    let plus = |a: Amount, b: Amount| Amount {
        bytes: a.bytes.saturating_add(b.bytes),
        blocks: a.blocks.saturating_add(b.blocks),
    };
    rows.fold([Amount::default(); 2], |[a, b], [more_a, more_b]| [plus(a, more_a), plus(b, more_b)])
}

/// A change in percent of what there was before, where there was something.
fn percent(by: i128, of: u64) -> String {
    if of == 0 || by == 0 { String::new() } else { format!(" ({:+.1} %)", 100.0 * by as f64 / of as f64) }
}
