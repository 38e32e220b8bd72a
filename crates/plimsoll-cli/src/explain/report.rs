//! The report about one device of a recording: [`report`]. The text and the JSON are made from it; the page shows the
//! same facts, taken from the recording.

use plimsoll_trace::explain::leaks::{Place, Verdict};
use plimsoll_trace::explain::{
    DeviceExplanation, Fragmentation, Holes, Part, Pin, PinningBlock, Rise, Row as LedgerRow, Share,
};
use plimsoll_trace::render::devices::decisive;
use plimsoll_trace::render::{failure, ledger, pressure, verdict, words};
use plimsoll_trace::report::{Cell, Column, Rank, Report, Row, Section, Table};
use plimsoll_trace::timeline::Timeline;
use serde_json::json;

use super::{advice, devices, holes, peaks, remaining, values};
use crate::explained::Explained;
use crate::output::{BOLD, RESET};
use crate::predicted::Predicted;
use crate::report::full;
use crate::shown::Shown;
use crate::{doctor, leaks, whatif};

/// Moments in the recording for which the largest hole is shown.
const MOMENTS: usize = 8;

/// The report, with its sections in reading order.
pub(crate) fn report(explained: &Explained, device: &DeviceExplanation, shown: Shown) -> Report {
    let size = |bytes: u64| shown.size(bytes);
    let verdict = verdict::sentence(device, size);
    let (snapshot, origins) = (&explained.snapshot, &explained.origins);
    let mut sections = facts(explained, device, &verdict);
    let failed = failure::request(snapshot, origins, device, size);
    sections.push(Section::lines("failure", Rank::Head, failed).valued(values::failure(explained, device)));
    let pressed = pressure::lines(snapshot, origins, device, size);
    sections.push(Section::lines("retries", Rank::Head, pressed).valued(values::retries(explained, device)));
    let help = advice::lines(explained, device, size);
    sections.push(Section::lines("what_would_help", Rank::Head, help).headed("What would help"));
    let predicted = Predicted::read(snapshot, device.timeline.device);
    let said = predicted.iter().flat_map(Predicted::lines);
    let section = Section::lines("prediction", Rank::Head, said).headed("Found by `predict`");
    sections.push(section.valued(predicted.as_ref().map(Predicted::json)));
    sections.extend(tables(explained, device, shown));
    let sections = sections.into_iter().map(Section::drawn).collect();
    Report { verdict, is_bad: words::is_bad(device), sections }
}

/// The text about all devices.
pub(super) fn text(explained: &Explained, shown: Shown) -> String {
    let size = |bytes: u64| shown.size(bytes);
    let mut out = String::new();
    let several = explained.devices.len() > 1;
    if several {
        devices::head(&mut out, explained, shown);
    }
    let decisive = decisive(&explained.devices).filter(|_| several);
    for device in &explained.devices {
        if !out.is_empty() {
            out.push('\n');
        }
        let mut report = report(explained, device, shown);
        if decisive.is_some_and(|one| std::ptr::eq(one, device)) {
            // The head already has the device's full verdict and the reason for the failed request.
            report.verdict = verdict::brief(device, size);
            report.sections.retain(|section| section.key != "failure");
        }
        out += &explained.prefix(device);
        out += &full(&report, &size);
    }
    format!("{out}\n{}\n", words::writer(&explained.file, &explained.snapshot))
}

/// The answer for programs, as JSON: `plimsoll.explain/1`.
pub(super) fn as_json(explained: &Explained, shown: Shown) -> String {
    let plain = Shown { bytes: false, ..shown };
    let of_each = explained.devices.iter().map(|device| report(explained, device, plain).json());
    let value = json!({
        "schema": "plimsoll.explain/1",
        "file": explained.file,
        "written_by": explained.snapshot.written_by(),
        "verdict": devices::verdict_as_json(explained),
        "lines_of_several_devices": devices::parts_as_json(explained),
        "devices": of_each.collect::<Vec<_>>(),
    });
    format!("{value:#}")
}

/// Values for programs; the text has these facts in its sentences.
fn facts(explained: &Explained, device: &DeviceExplanation, verdict: &str) -> Vec<Section> {
    let timeline = &device.timeline;
    vec![
        Section::data("device", timeline.device),
        Section::data("verdict", verdict),
        Section::data("peak_allocated", values::moment(timeline.peak_allocated)),
        Section::data("peak_reserved", values::moment(timeline.peak_reserved)),
        Section::data("capacity", device.pressure.capacity.map(values::limit)),
        Section::data("events", timeline.quality.events),
        Section::data("conflicts", timeline.quality.conflicts()),
        Section::data("ring_overflowed", timeline.quality.is_cut),
        Section::data("replay", values::replay(device)),
        Section::data("unused_graph", values::unused_graph(explained, device)),
    ]
}

/// The tables: the owners of the memory, and how it was allocated.
fn tables(explained: &Explained, device: &DeviceExplanation, shown: Shown) -> Vec<Section> {
    let size = |bytes: u64| shown.size(bytes);
    let (snapshot, owners, when) = (&explained.snapshot, &device.owners, words::when(device));
    let mut categories = rows(&owners.by_category, owners.bytes, |key| {
        (words::category(snapshot, key.category).into_owned(), words::reason(key))
    });
    let blocks = owners.by_category.iter().map(|share| share.blocks).sum();
    let all = Share { key: (), bytes: owners.bytes, blocks, largest_bytes: 0 };
    categories.push(row(&all, owners.bytes, "total".to_owned(), "memory_allocated()".to_owned()));
    let lines = rows(&owners.by_line, owners.bytes, |key| {
        (words::purpose(snapshot, key.category).into_owned(), words::asker(snapshot, key))
    });
    let operators = rows(&owners.by_operator, owners.bytes, |key| {
        let name = key.map(|name| words::plain(name.of(snapshot)).into_owned());
        (name.unwrap_or_else(|| "no operator in the stack".to_owned()), String::new())
    });
    let all = categories.len();
    let rises = device.peaks.rises(explained.analysis(device));
    let owners = |heading: String, rows, most| Section::table("", Rank::Full, heading, table(rows, most));
    let mut sections = vec![
        device_memory(device, shown),
        Section::data("held", values::held(explained, device)),
        owners(format!("Live memory {when}, by category"), categories, all),
        owners("By line".to_owned(), lines, shown.rows),
        owners("By operator".to_owned(), operators, shown.rows),
        remaining::section(explained, device, shown),
        peaks::section(explained, device, &rises, shown),
        pins(explained, device, shown),
    ];
    sections.extend(growth(explained, device, &rises, shown));
    let tried = device.what_if.as_ref().map(|what_if| {
        let table = written(|out| whatif::table(out, what_if, size));
        let best = format!("{BOLD}{}{RESET}", words::best_setting(what_if, size));
        std::iter::once(best).chain(table)
    });
    sections.push(
        Section::lines("what_if", Rank::Full, tried.into_iter().flatten())
            .valued(device.what_if.as_ref().map(whatif::as_json)),
    );
    sections.push(doctor::section(explained, device));
    sections
}

/// The device's bytes: the total, then the parts of the total.
fn device_memory(device: &DeviceExplanation, shown: Shown) -> Section {
    let row = |row: LedgerRow| {
        let size = row.bytes.map_or_else(|| "unknown".to_owned(), |bytes| shown.size(bytes));
        let indent = match row.part.within() {
            None => "",
            Some(Part::Total) => "  ",
            Some(_) => "    ",
        };
        let name = format!("{indent}{}", row.part.name());
        Row::of([Cell::Figure(size), Cell::Text(name), Cell::text(row.part.pytorch())])
    };
    let rows: Vec<Row> = ledger::rows(&device.ledger).into_iter().map(row).collect();
    let columns = vec![
        Column::untitled("bytes", 12, ""),
        Column::untitled("part", 34, ""),
        Column::untitled("pytorch", 0, ""),
    ];
    let notes = ledger::outside(&device.ledger).into_iter().collect();
    let table = Table { notes, ..Table::of(columns, rows) };
    let heading = format!("Device memory {}", words::when(device));
    Section::table("ledger", Rank::Full, heading, table).valued(values::ledger(&device.ledger))
}

/// The lines that keep memory from step to step.
fn growth(explained: &Explained, device: &DeviceExplanation, rises: &[Rise], shown: Shown) -> Vec<Section> {
    let size = |bytes: u64| shown.size(bytes);
    let of = &device.leaks;
    let growth = of.whole.growth;
    let mut said = peaks::steps(explained, device, rises, shown);
    let patterns = words::patterns(&explained.snapshot, device);
    said.extend(patterns.iter().take(shown.rows).cloned());
    if patterns.len() > shown.rows {
        said.push(format!("{} more", patterns.len() - shown.rows));
    }
    let is_leaking = of.whole.verdict == Verdict::Leaking;
    if is_leaking {
        said.extend(leaks::lines(explained, device, shown.rows, size));
        said.push(format!("{:>12} in total since step {}", size(growth.bytes), growth.from + 1));
        said.push(words::NO_HOLDER.to_owned());
    }
    let section = Section::lines("leaks", Rank::Full, said)
        .headed("Growth by step")
        .noted(format!(": {}", words::steps(device, size)))
        .valued(leaks::as_json(explained, device));
    if is_leaking {
        return vec![section];
    }
    vec![section, leaks::kept_of_each(explained, device, shown.rows, size)]
}

/// The blocks that prevent cached memory from being released, and how much. If the amount is small, the section appears
/// only in the JSON.
fn pins(explained: &Explained, device: &DeviceExplanation, shown: Shown) -> Section {
    let DeviceExplanation { fragmentation, timeline, .. } = device;
    let value = holes::as_json(explained, device);
    let Holes { reserved_bytes, count, largest_bytes, cached } = fragmentation.all;
    if cached.pinned < reserved_bytes / 50 {
        return Section::data("fragmentation", value);
    }
    let size = |bytes: u64| shown.size(bytes);
    let over_time = Fragmentation::over_time(&explained.snapshot, timeline, MOMENTS);
    let largest: Vec<String> = over_time.iter().map(|(_, holes)| size(holes.largest_bytes)).collect();
    let mut said = vec![format!("the largest hole over time: {}", largest.join(", "))];
    let mut pins: Vec<&Pin> = fragmentation.pins.iter().collect();
    pins.sort_by_key(|pin| std::cmp::Reverse(pin.pinned_bytes));
    said.extend(pins.iter().take(shown.rows.min(5)).map(|pin| {
        let oldest = pin.blocks.first();
        let (place, age) = oldest.map_or_else(Default::default, |it| oldest_block(explained, timeline, it));
        let (pinned, held) = (size(pin.pinned_bytes), size(pin.held_bytes));
        let blocks = words::counted(pin.blocks.len() as u64, "block");
        format!("{pinned:>12}  by {held} in {blocks}{age}  {place}")
    }));
    Section::lines("fragmentation", Rank::Full, said)
        .headed("Cached and pinned")
        .noted(format!(
            ": {} in {}, the largest {}; empty_cache would return {}",
            size(cached.pinned),
            words::counted(count as u64, "hole"),
            size(largest_bytes),
            size(fragmentation.empty_cache_bytes.0)
        ))
        .valued(value)
}

/// The oldest block of a segment: its purpose, the line that requested it, and its age.
fn oldest_block(explained: &Explained, timeline: &Timeline, oldest: &PinningBlock) -> (String, String) {
    let stack = oldest.life.and_then(|life| timeline.lives[life.index()].stack);
    let place = words::place(&explained.snapshot, Place::of(stack, &explained.origins));
    let age = match oldest {
        PinningBlock { born: None, .. } => "from before the recording".to_owned(),
        PinningBlock { age_events: 0, .. } => "just allocated".to_owned(),
        PinningBlock { age_steps: 0, age_events, .. } => {
            format!("allocated {} earlier", words::counted(*age_events as u64, "event"))
        }
        PinningBlock { age_steps, .. } => {
            format!("allocated {} earlier", words::counted(*age_steps as u64, "step"))
        }
    };
    (
        format!("{}  {place}", words::purpose(&explained.snapshot, oldest.category)),
        format!(", the oldest {age}"),
    )
}

/// The rows of a table of shares, the largest first. `words` returns the name and the note of a key.
fn rows<K: Copy>(shares: &[Share<K>], of: u64, words: impl Fn(K) -> (String, String)) -> Vec<Row> {
    let of_share = |share: &Share<K>| {
        let (name, note) = words(share.key);
        row(share, of, name, note)
    };
    shares.iter().map(of_share).collect()
}

fn row<K>(share: &Share<K>, of: u64, name: String, note: String) -> Row {
    let figures = [Cell::Bytes(share.bytes), Cell::share(share.bytes, of), Cell::Count(share.blocks)];
    Row::of(figures.into_iter().chain([name, note].map(Cell::Text)))
}

fn table(rows: Vec<Row>, most: usize) -> Table {
    let columns = vec![
        Column::untitled("bytes", 12, ""),
        Column::untitled("percent", 5, ""),
        Column::untitled("blocks", 6, "blocks"),
        Column::untitled("name", 15, ""),
        Column::untitled("note", 0, ""),
    ];
    Table { most, ..Table::of(columns, rows) }
}

/// The lines of a table, which `write` writes as text.
fn written(write: impl FnOnce(&mut String)) -> Vec<String> {
    let mut out = String::new();
    write(&mut out);
    out.lines().map(str::to_owned).collect()
}
