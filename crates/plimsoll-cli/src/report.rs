//! A [`Report`] as text: short, for one screen, or in full.

use plimsoll_trace::report::{Body, Brief, Cell, Column, Rank, Report, Section, Table};

use crate::output::{BOLD, RESET};

/// The columns of a line.
const WIDTH: usize = 100;

/// The lines of a screen.
const LINES: usize = 40;

/// The most important sections: at most 40 lines of 100 columns. `size` prints bytes.
pub(crate) fn short(report: &Report, size: &dyn Fn(u64) -> String) -> String {
    let mut out = bold(&wrapped(&report.verdict, WIDTH));
    let shown = report.sections.iter().filter(|section| section.rank <= Rank::Spare);
    let mut parts: Vec<Part> = shown.filter_map(|section| brief(section, size)).collect();
    let lines = |parts: &[Part]| -> usize { parts.iter().map(|part| part.text.lines().count() + 1).sum() };
    while out.lines().count() + lines(&parts) > LINES
        && let Some(last) = parts.iter().rposition(|part| part.rank == Rank::Spare)
    {
        parts.remove(last);
    }
    join(&mut out, &parts);
    out
}

/// The text with all sections.
pub(crate) fn full(report: &Report, size: &dyn Fn(u64) -> String) -> String {
    let mut out = bold(&report.verdict);
    let shown = report.sections.iter().filter(|section| section.rank <= Rank::Full);
    let parts: Vec<Part> = shown.filter_map(|section| whole(section, size)).collect();
    join(&mut out, &parts);
    out
}

/// One section, after a blank line. Empty if the section has no text.
pub(crate) fn section(section: &Section, size: &dyn Fn(u64) -> String) -> String {
    whole(section, size).map_or_else(String::new, |part| format!("\n{}", part.text))
}

/// A section as text.
struct Part {
    rank: Rank,
    is_headed: bool,
    text: String,
}

fn join(out: &mut String, parts: &[Part]) {
    let mut before = (Rank::Head, false);
    for part in parts {
        let follows = (part.rank == Rank::Head) == (before.0 == Rank::Head) && !before.1;
        if part.is_headed || !follows {
            out.push('\n');
        }
        out.push_str(&part.text);
        before = (part.rank, part.is_headed);
    }
}

fn bold(text: &str) -> String {
    format!("{BOLD}{text}{RESET}\n")
}

/// The short form of a section; `None` if the section has no short form.
fn brief(section: &Section, size: &dyn Fn(u64) -> String) -> Option<Part> {
    match &section.brief {
        None => part(section, &section.body, size, WIDTH),
        Some(Brief::Line(line)) => {
            let text = wrapped(line, WIDTH) + "\n";
            Some(Part { rank: section.rank, is_headed: false, text })
        }
        Some(Brief::Table(table)) => part(section, &Body::Table(table.clone()), size, WIDTH),
    }
}

/// The complete section, in lines of any length; `None` if it is empty.
fn whole(section: &Section, size: &dyn Fn(u64) -> String) -> Option<Part> {
    part(section, &section.body, size, usize::MAX)
}

fn part(section: &Section, body: &Body, size: &dyn Fn(u64) -> String, width: usize) -> Option<Part> {
    if body.is_empty() && section.note.is_empty() {
        return None;
    }
    let Section { rank, heading, note, .. } = section;
    let lines = match body {
        // On the same line as its heading and not wrapped, so that it can be copied. A shell also reads two commands on
        // two lines.
        Body::Command(command) => {
            let mut text = format!("{heading}: {command}\n");
            if text.chars().count() > width {
                text = text.replace("; plimsoll ", "; \\\n  plimsoll ");
            }
            return Some(Part { rank: *rank, is_headed: false, text });
        }
        Body::Lines(lines) => lines.clone(),
        Body::Table(table) => {
            let fitted =
                |row: &str| if table.is_sum() { row.to_owned() } else { cut(row, width.saturating_sub(2)) };
            let rows = table.shown();
            let rows = rows.iter().map(|cells| fitted(&row(table, cells, size)));
            head(table).into_iter().chain(rows).chain(table.notes.iter().cloned()).collect()
        }
    };
    let mut text = String::new();
    let is_headed = !heading.is_empty();
    if is_headed {
        text = format!("{BOLD}{heading}{RESET}{note}\n");
    }
    let indent = if is_headed { "  " } else { "" };
    for line in lines {
        text += &wrapped(&format!("{indent}{line}"), width);
        text.push('\n');
    }
    Some(Part { rank: *rank, is_headed: is_headed || matches!(body, Body::Table(_)), text })
}

/// The titles of the columns, above the figures; `None` if the table has no titles.
fn head(table: &Table) -> Option<String> {
    let cells = table.rows.first().filter(|_| table.is_titled())?.cells.iter();
    let titles = table.columns.iter().zip(cells).map(|(Column { title, width, .. }, cell)| match cell {
        Cell::Text(_) => format!("{title:<width$}"),
        _ => format!("{title:>width$}"),
    });
    Some(format!("{BOLD}{}{RESET}", titles.collect::<Vec<_>>().join("  ").trim_end()))
}

fn row(table: &Table, cells: &[Cell], size: &dyn Fn(u64) -> String) -> String {
    let cells = table.columns.iter().zip(cells).map(|(column, cell)| self::cell(*column, cell, size));
    cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
}

fn cell(Column { width, unit, .. }: Column, cell: &Cell, size: &dyn Fn(u64) -> String) -> String {
    let figure = match cell {
        Cell::Text(text) => return format!("{text:<width$}"),
        Cell::Figure(text) => format!("{text:>width$}"),
        Cell::Bytes(bytes) => format!("{:>width$}", size(*bytes)),
        Cell::Percent(percent) => format!("{percent:>width$.1} %"),
        Cell::Count(1) => format!("{:>width$} {:<2$}", 1, unit.trim_end_matches('s'), unit.len()),
        Cell::Count(count) => format!("{count:>width$} {unit}"),
    };
    if unit.is_empty() || matches!(cell, Cell::Count(_)) { figure } else { format!("{figure} {unit}") }
}

/// Wraps text to this many columns. Lines after the first are indented by two more columns. Words that are
/// too long are not split.
fn wrapped(text: &str, width: usize) -> String {
    let indent = text.chars().take_while(|char| *char == ' ').count();
    let (mut out, mut column) = (" ".repeat(indent), indent);
    let mut is_first = true;
    // The spaces in a table are kept.
    for word in text[indent..].split_inclusive(' ') {
        let length = word.trim_end().chars().count();
        if !is_first && column + length > width {
            out.truncate(out.trim_end().len());
            out.push('\n');
            out.push_str(&" ".repeat(indent + 2));
            column = indent + 2;
            if length == 0 {
                continue;
            }
        }
        out.push_str(word);
        column += word.chars().count();
        is_first = false;
    }
    out.truncate(out.trim_end().len());
    out
}

/// The line, truncated to this many columns.
fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let kept: String = text.chars().take(width - 1).collect();
    format!("{}…", kept.trim_end())
}

#[cfg(test)]
mod tests {
    use plimsoll_trace::explain::{DeviceExplanation, Options, Origins};
    use plimsoll_trace::render::{Report as Recording, html};
    use plimsoll_trace::report::Row;
    use plimsoll_trace::snapshot::Snapshot;

    use super::*;

    #[test]
    fn long_lines_are_wrapped_at_blanks_and_long_words_stay() {
        assert_eq!(wrapped("one two three", 8), "one two\n  three");
        assert_eq!(wrapped("  one two three", 9), "  one two\n    three");
        assert_eq!(wrapped("one two", 7), "one two");
        assert_eq!(wrapped("a-word-that-is-long and", 8), "a-word-that-is-long\n  and");
        assert_eq!(wrapped("a   b", 80), "a   b");
    }

    #[test]
    fn a_row_that_is_too_long_is_cut() {
        assert_eq!(cut(&"x".repeat(WIDTH), WIDTH), "x".repeat(WIDTH));
        let long = cut(&"x".repeat(WIDTH + 1), WIDTH);
        assert!(long.chars().count() == WIDTH && long.ends_with('…'), "{long}");
    }

    fn plain(text: &str) -> String {
        text.replace(BOLD, "").replace(RESET, "")
    }

    fn rows(count: usize) -> Vec<Row> {
        (0..count).map(|nth| Row::of([Cell::Bytes(nth as u64), Cell::text("a row")])).collect()
    }

    fn ledger(rank: Rank, rows: Vec<Row>) -> Section {
        let columns = vec![Column::untitled("bytes", 6, ""), Column::untitled("what", 0, "")];
        Section::table("ledger", rank, "Ledger", Table::of(columns, rows))
    }

    fn report(sections: Vec<Section>) -> Report {
        Report { verdict: "fits".to_owned(), is_bad: false, sections }
    }

    #[test]
    fn a_screen_shows_what_matters_and_the_full_text_everything() {
        let size = |bytes: u64| format!("{bytes} B");
        let report = report(vec![
            Section::command("next", "Next", Some("plimsoll plan".to_owned())),
            ledger(Rank::Screen, rows(2)),
            Section::lines("hosts", Rank::Full, ["example.com".to_owned()]).headed("Hosts"),
            Section::lines("", Rank::Screen, ["all".to_owned()])
                .headed("All")
                .briefly(Some(Brief::Line("more: --full".to_owned()))),
        ]);
        let head = "fits\nNext: plimsoll plan\n\nLedger\n     0 B  a row\n     1 B  a row\n\n";
        assert_eq!(plain(&short(&report, &size)), format!("{head}more: --full\n"));
        assert_eq!(plain(&full(&report, &size)), format!("{head}Hosts\n  example.com\n\nAll\n  all\n"));
    }

    /// The page for an empty recording with this report.
    fn page(report: &Report) -> String {
        let snapshot = Snapshot { traces: vec![Vec::new()], ..Snapshot::default() };
        let origins = Origins::of(&snapshot);
        let device = DeviceExplanation::of(&snapshot, 0, &origins, Options::default());
        let recording = Recording { file: "a", snapshot: &snapshot, origins: &origins, devices: &[device] };
        html::Page { about: html::About::Prediction(recording, report), title: "a", command: "b" }.html()
    }

    #[test]
    fn a_new_row_is_in_every_view() {
        let size = |bytes: u64| format!("{bytes} B");
        let mut rows = rows(1);
        rows.push(Row::named("demo", [Cell::Bytes(7), Cell::text("a demonstration")]));
        let report = report(vec![ledger(Rank::Screen, rows)]);
        for text in [short(&report, &size), full(&report, &size)] {
            assert!(text.contains("\n     7 B  a demonstration\n"), "{text}");
        }
        let row = &report.json()["ledger"][1];
        assert_eq!(*row, serde_json::json!({ "name": "demo", "bytes": 7, "what": "a demonstration" }));
        let page = page(&report);
        assert!(page.contains(">7 bytes</data><td>a demonstration"), "{page}");
    }

    #[test]
    fn a_screen_has_at_most_forty_lines() {
        let size = |bytes: u64| bytes.to_string();
        let report = report(vec![
            ledger(Rank::Screen, rows(20)),
            ledger(Rank::Spare, rows(10)),
            ledger(Rank::Spare, rows(30)),
        ]);
        let text = short(&report, &size);
        assert!(text.lines().count() <= LINES && text.matches("Ledger").count() == 2, "{text}");
    }
}
