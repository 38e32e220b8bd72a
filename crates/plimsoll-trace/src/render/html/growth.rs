//! The growth from step to step: the staircase, and the lines that contribute to the growth.

use std::cmp::Reverse;
use std::fmt::{self, Write};

use plimsoll_alloc::Bytes;

use super::cells::{self, Bar, Size};
use super::stacks::{Layer, shapes};
use super::text::{Sentence, Text, capital};
use crate::explain::DeviceExplanation;
use crate::explain::leaks::{Course, Growth, Line, Place, Verdict};
use crate::render::{Report, words};

/// The number of lines with a separate colour in the staircase; page.css calls the colours `stair-0` and so on.
const STAIRS: usize = 6;
/// The number of rows in the table.
const ROWS: usize = 20;
/// The number of steps in the staircase; if there are more, they are evenly sampled.
const COLUMNS: usize = 300;
/// The number of steps that are shown as figures.
const FIGURES: usize = 60;

/// The section of one device.
pub(super) fn section(out: &mut String, report: &Report<'_>, device: &DeviceExplanation) -> fmt::Result {
    let (steps, leaks) = (&device.steps, &device.leaks);
    let size = |bytes| Size(bytes).to_string();
    if steps.len() < 2 {
        return write!(out, "<p class=\"said\">{}.</p>", capital(&words::steps(device, size)));
    }
    let Course { verdict, confidence, growth, .. } = leaks.whole;
    let class = if verdict == Verdict::Leaking { "said leaking" } else { "said" };
    write!(out, "<p class=\"{class}\"><strong>{}</strong> ({confidence})", capital(verdict.name()))?;
    if verdict == Verdict::Leaking {
        let Growth { bytes, from, .. } = growth;
        write!(out, ": {},", words::rate(&growth, size))?;
        write!(out, " {} in total since step {}", Size(bytes), from + 1)?;
    }
    let (count, evidence) = (steps.len(), steps.evidence());
    write!(out, ". {count} steps; a step ends where {evidence} ({}).</p>", steps.confidence)?;
    for pattern in words::patterns(report.snapshot, device).iter().take(ROWS) {
        write!(out, "<p class=\"said\">{}.</p>", Sentence(capital(pattern)))?;
    }
    let is_growing = |line: &&Line| line.course.verdict != Verdict::Steady && grown_bytes(&line.course) > 0;
    let mut growing: Vec<&Line> = leaks.lines.iter().filter(is_growing).collect();
    growing.sort_by_key(|line| Reverse((is_leaking(line), grown_bytes(&line.course))));
    staircase(out, &leaks.whole, &growing)?;
    if !growing.is_empty() {
        lines(out, report, &growing)?;
        if growing.iter().any(|line| is_leaking(line)) {
            write!(out, "<p class=\"hint\">{}</p>", words::NO_HOLDER)?;
        }
    }
    figures(out, &leaks.whole)
}

fn is_leaking(line: &Line) -> bool {
    line.course.verdict == Verdict::Leaking
}

/// How much more is live at the end of the last step than at the end of the first.
fn grown_bytes(course: &Course) -> u64 {
    let (first, last) = (course.held.first(), course.held.last());
    last.zip(first).map_or(0, |(last, first)| last.saturating_sub(*first))
}

/// Splits the steps into at most `most` runs of about equal length and returns the last step of each.
fn chosen(steps: usize, most: usize) -> impl Iterator<Item = usize> {
    let columns = steps.min(most);
    (1..=columns).map(move |column| column * steps / columns - 1)
}

/// Live memory at the end of each step. The coloured layers on top show how much memory each line has gained since the
/// first step.
fn staircase(out: &mut String, whole: &Course, growing: &[&Line]) -> fmt::Result {
    let columns: Vec<usize> = chosen(whole.held.len(), COLUMNS).collect();
    let grown = |line: &Line, step: usize| {
        let first = line.course.held.first().copied().unwrap_or(0);
        line.course.held.get(step).map_or(0, |held| held.saturating_sub(first))
    };
    let stairs = &growing[..growing.len().min(STAIRS)];
    let stair = |(nth, line): (usize, &&Line)| Layer {
        class: format!("stair-{nth}"),
        name: String::new(),
        bytes: columns.iter().map(|&step| grown(line, step)).collect(),
    };
    let mut rows: Vec<Layer> = stairs.iter().enumerate().map(stair).collect();
    let rest = columns.iter().enumerate().map(|(column, &step)| {
        rows.iter().fold(whole.held[step], |rest, row| rest.saturating_sub(row.bytes[column]))
    });
    let rest = Layer { class: "plain".to_owned(), name: String::new(), bytes: rest.collect() };
    rows.insert(0, rest);
    let (least, most) = axis(&rows, whole.verdict == Verdict::Leaking);
    let mut caption = match growing.len() {
        0 => "Live memory after each step".to_owned(),
        1..=STAIRS => "Live memory after each step; colours show how much lines grew".to_owned(),
        lines => {
            format!("Live memory after each step; colours show how much {STAIRS} of {lines} lines grew")
        }
    };
    if least > 0 {
        caption.push_str(&format!("; the axis begins at {}, not at zero", Bytes(least)));
    }
    write!(out, "<figure class=\"stairs\"><figcaption>{caption}</figcaption>")?;
    write!(out, "<b>{}</b><b>{}</b>", Bytes(most), Bytes(least))?;
    write!(
        out,
        "<svg viewBox=\"0 0 {} 100\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"{caption}\">",
        columns.len()
    )?;
    shapes(out, &rows, (least, most))?;
    write!(out, "</svg><span>step 1</span><span>step {}</span></figure>", whole.held.len())
}

/// The range of the axis. It begins at zero, so that growth that is small compared with the total looks small. Only for
/// a leak, which grows without end, the axis begins higher, so that even a small leak is visible.
fn axis(rows: &[Layer], is_leaking: bool) -> (u64, u64) {
    let columns = rows.first().map_or(0, |row| row.bytes.len());
    let top = |column| rows.iter().fold(0_u64, |sum, row| sum.saturating_add(row.bytes[column]));
    let tops = (0..columns).map(top);
    let most = tops.max().unwrap_or(0).max(1);
    let least = rows.first().and_then(|rest| rest.bytes.iter().min()).copied().unwrap_or(0);
    if !is_leaking || least < most / 2 || least == most {
        (0, most)
    } else {
        (least.saturating_sub((most - least) / 4), most)
    }
}

fn lines(out: &mut String, report: &Report<'_>, growing: &[&Line]) -> fmt::Result {
    out.push_str("<table class=\"growing\"><thead><tr><th>grown by<th class=\"bar\">share<th>a step");
    out.push_str("<th>line<th>what that is<tbody>");
    let all = growing.iter().fold(0_u64, |sum, line| sum.saturating_add(grown_bytes(&line.course)));
    for (nth, line) in growing.iter().take(ROWS).enumerate() {
        let Course { verdict, confidence, growth, held, .. } = &line.course;
        let grown = grown_bytes(&line.course);
        let class = if nth < STAIRS { format!("stair-{nth}") } else { "plain".to_owned() };
        let bar = Bar { bytes: grown, of: all, class: &class };
        let per_step = match (line.course.kept_of_each(), growth.usual_bytes) {
            (Some(bytes), _) => format!("{} in each", Size(bytes)),
            (None, 0) => String::new(),
            (None, bytes) => format!("{} in {} of {}", Size(bytes), growth.grew, growth.steps),
        };
        let place = match line.place {
            Place::Line(frame) => cells::line(report, Some(frame)),
            place => Text(words::place(report.snapshot, place)).to_string(),
        };
        let (first, last) = (held.first().copied(), held.last().copied());
        let [first, last] = [first, last].map(|bytes| Bytes(bytes.unwrap_or(0)));
        write!(out, "<tr><td>{}{bar}<td>{per_step}<td>{place}", Size(grown))?;
        write!(out, "<td>{} ({confidence}); {first} after step 1, {last} after the last", verdict.name())?;
    }
    if let Some(rest) = growing.get(ROWS..).filter(|rest| !rest.is_empty()) {
        let bytes = rest.iter().fold(0_u64, |sum, line| sum.saturating_add(grown_bytes(&line.course)));
        let (bar, lines) = (Bar::plain(bytes, all), words::counted(rest.len() as u64, "more line"));
        write!(out, "<tr><td>{}{bar}<td><td>{lines}<td>", Size(bytes))?;
    }
    out.push_str("</table>");
    Ok(())
}

/// For each step, live memory at its end, and how many bytes of its own blocks remain.
fn figures(out: &mut String, whole: &Course) -> fmt::Result {
    let steps = whole.held.len();
    out.push_str("<details><summary>the figures, step by step</summary><table><thead><tr>");
    out.push_str(
        "<th>live<th class=\"bar\">of the most<th>step<th>allocated in it, and live at the end<tbody>",
    );
    let most = whole.held.iter().copied().max().unwrap_or(0);
    for step in chosen(steps, FIGURES) {
        let (held, kept) = (whole.held[step], whole.kept.get(step).copied().unwrap_or(0));
        write!(out, "<tr><td>{}{}<td>{}<td>{}", Size(held), Bar::plain(held, most), step + 1, Size(kept))?;
    }
    out.push_str("</table></details>");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_axis_begins_at_nothing_unless_a_leak_would_hardly_show() {
        let of = |rows: &[&[u64]], is_leaking| {
            let layer =
                |bytes: &&[u64]| Layer { class: String::new(), name: String::new(), bytes: bytes.to_vec() };
            axis(&rows.iter().map(layer).collect::<Vec<_>>(), is_leaking)
        };
        let check = |rows: &[&[u64]], expected| assert_eq!(of(rows, true), expected, "{rows:?}");
        check(&[&[7, 7, 7]], (0, 7));
        check(&[&[100, 100], &[0, 200]], (0, 300));
        check(&[&[1000, 1000], &[0, 40]], (990, 1040));
        check(&[], (0, 1));
        assert_eq!(of(&[&[1000, 1000], &[0, 40]], false), (0, 1040), "a wobble of 4 % looks small");
    }

    #[test]
    fn the_last_step_is_always_among_those_that_are_shown() {
        assert_eq!(chosen(3, 300).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(chosen(10, 4).collect::<Vec<_>>(), [1, 4, 6, 9]);
        assert_eq!(chosen(0, 4).count(), 0);
    }
}
