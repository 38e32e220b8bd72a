//! The changes, for people: the verdict, both peaks, then the changes by category and by line.

use std::fmt::Write;

use plimsoll_trace::explain::{Amount, Change};
use plimsoll_trace::render::comparison::{Compared, IN_ALL, Listed, SIDES, SnapshotDiff, Total};
use plimsoll_trace::render::words;

use super::DiffArgs;
use crate::output::{BOLD, RESET};

/// The complete answer.
pub(super) fn render(diff: &SnapshotDiff<'_>, args: &DiffArgs) -> String {
    let page = Text { diff, args };
    let mut out = String::new();
    // Writing to a `String` cannot fail.
    for pair in &diff.pairs {
        if !out.is_empty() {
            out.push('\n');
        }
        page.pair(&mut out, pair);
    }
    for alone in diff.alone() {
        let _ = writeln!(out, "\n{alone}");
    }
    out
}

struct Text<'a> {
    diff: &'a SnapshotDiff<'a>,
    args: &'a DiffArgs,
}

impl Text<'_> {
    fn size(&self, bytes: u64) -> String {
        self.args.shown.size(bytes)
    }

    fn pair(&self, out: &mut String, pair: &Compared<'_>) {
        let lines = pair.lines();
        let verdict = pair.verdict(&lines, |bytes| self.size(bytes));
        let _ = writeln!(out, "{}{BOLD}{verdict}{RESET}", self.diff.prefix(pair));
        self.totals(out, pair);
        let _ = writeln!(out, "\n{BOLD}At the peak, by category{RESET}");
        let snapshot = pair.reports[0].snapshot;
        self.table(out, &pair.comparison.categories, |key| words::category(snapshot, *key).into_owned());
        let _ = writeln!(out, "\n{BOLD}At the peak, by line{RESET}");
        self.table(out, &lines, String::clone);
        out.push('\n');
        for (side, name) in SIDES.into_iter().enumerate() {
            let sentence = pair.side(side, |bytes| self.size(bytes));
            let _ = writeln!(out, "{name:<6}  {}: {sentence}", pair.reports[side].file);
        }
    }

    fn totals(&self, out: &mut String, pair: &Compared<'_>) {
        let _ = writeln!(out, "\n  {:>13}  {:>13}  {:>13}", "change", "before", "after");
        for total in pair.peaks() {
            let change = self.args.shown.change(total.change());
            let [before, after] = total.of.map(|bytes| self.size(bytes));
            let (name, percent) = (total.name, total.percent());
            let _ = writeln!(out, "  {change:>13}  {before:>13}  {after:>13}  {name}{percent}");
        }
        let requests = pair.requests();
        let Total { name, of: [before, after] } = requests;
        let change = requests.signed();
        let _ = writeln!(out, "  {change:>13}  {before:>13}  {after:>13}  {name}");
    }

    /// The largest changes, one row for all others, and the sum.
    fn table<K>(&self, out: &mut String, rows: &[Change<K>], name: impl Fn(&K) -> String) {
        let Listed { rows, rest, all } = Listed::of(rows, self.args.shown.rows);
        for Change { key, amounts } in rows {
            self.row(out, *amounts, &name(key));
        }
        if let Some(Change { key, amounts }) = rest {
            self.row(out, amounts, &key);
        }
        self.row(out, all, IN_ALL);
    }

    fn row(&self, out: &mut String, amounts: [Amount; 2], name: &str) {
        let change = self.args.shown.change(Amount::change(amounts));
        let [before, after] = amounts.map(|amount| self.size(amount.bytes));
        let _ = writeln!(out, "  {change:>13}  {before:>13}  {after:>13}  {name}");
    }
}
