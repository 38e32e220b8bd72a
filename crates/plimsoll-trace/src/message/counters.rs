//! The allocator's counters, as printed by `torch.cuda.memory_stats()` (JSON, or Python's `repr`) or
//! `torch.cuda.memory_summary()` (a table): [`Counters`].

use std::collections::BTreeMap;

use serde_json::Value;

use super::size::leading;
use super::text;

/// One counter: its current value and its peak.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counter {
    /// The current value.
    pub current_bytes: Option<u64>,
    /// The peak since the last reset.
    pub peak_bytes: Option<u64>,
}

/// The counters in a text. A counter that is not in the text is `None`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// The GPU's number; only the table of `memory_summary()` contains it.
    pub device: Option<u32>,
    /// Memory in tensors.
    pub allocated: Counter,
    /// Memory in tensors, plus freed memory that other streams still use.
    pub active: Counter,
    /// Memory that the allocator reserved.
    pub reserved: Counter,
    /// Free parts of segments that also contain allocated blocks.
    pub inactive_split: Counter,
    /// The number of requests that failed.
    pub failures: Option<u64>,
    /// The number of requests that were served only after the cache was released.
    pub retries: Option<u64>,
}

impl Counters {
    /// The counters in a text; `None` if it contains no counters.
    pub(super) fn read(text: &str) -> Option<Counters> {
        let found = table(text).or_else(|| numbers(text).map(|numbers| Self::of(&numbers)))?;
        let is_there = [found.allocated, found.reserved].iter().any(|it| *it != Counter::default());
        is_there.then_some(found)
    }

    fn of(numbers: &BTreeMap<String, u64>) -> Counters {
        let number = |name: &str| numbers.get(name).copied();
        let counter = |name: &str| Counter {
            current_bytes: number(&format!("{name}.all.current")),
            peak_bytes: number(&format!("{name}.all.peak")),
        };
        Counters {
            device: None,
            allocated: counter("allocated_bytes"),
            active: counter("active_bytes"),
            reserved: counter("reserved_bytes"),
            inactive_split: counter("inactive_split_bytes"),
            failures: number("num_ooms"),
            retries: number("num_alloc_retries"),
        }
    }
}

/// Finds `"allocated_bytes.all.peak": 5`, the forms of Python's `repr` (`'…': 5`, `('…', 5)`), and nested dicts in JSON.
fn numbers(text: &str) -> Option<BTreeMap<String, u64>> {
    if !text.contains("allocated_bytes") {
        return None;
    }
    let mut numbers = BTreeMap::new();
    let python = || serde_json::from_str(&text.replace('\'', "\"")).ok();
    if let Some(value) = serde_json::from_str::<Value>(text).ok().or_else(python) {
        flatten("", &value, &mut numbers);
    }
    if numbers.is_empty() {
        for name in NAMES {
            let ends = ["\"", "'"].into_iter().find_map(|quote| {
                let key = format!("{quote}{name}{quote}");
                text.find(&key).map(|at| &text[at + key.len()..])
            });
            let digits = ends.map(|rest| rest.trim_start_matches([':', ',', ' ']));
            let end = |rest: &str| rest.find(|char: char| !char.is_ascii_digit()).unwrap_or(rest.len());
            if let Some(number) = digits.and_then(|rest| rest[..end(rest)].parse().ok()) {
                numbers.insert(name.to_owned(), number);
            }
        }
    }
    (!numbers.is_empty()).then_some(numbers)
}

/// The names of the counters to read.
const NAMES: [&str; 10] = [
    "allocated_bytes.all.current",
    "allocated_bytes.all.peak",
    "active_bytes.all.current",
    "active_bytes.all.peak",
    "reserved_bytes.all.current",
    "reserved_bytes.all.peak",
    "inactive_split_bytes.all.current",
    "inactive_split_bytes.all.peak",
    "num_ooms",
    "num_alloc_retries",
];

/// Reads the keys of nested dicts, joined by dots. The dict with the counters may be nested in other dicts, as in a
/// logger's record.
fn flatten(path: &str, value: &Value, numbers: &mut BTreeMap<String, u64>) {
    match value {
        Value::Object(entries) => {
            for (key, value) in entries {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                flatten(&path, value, numbers);
            }
        }
        Value::Number(number) => {
            let known = NAMES.iter().find(|name| {
                path.strip_suffix(**name).is_some_and(|ahead| ahead.is_empty() || ahead.ends_with('.'))
            });
            if let Some((name, number)) = known.zip(number.as_u64()) {
                numbers.insert((*name).to_owned(), number);
            }
        }
        _ => {}
    }
}

/// Reads the table of `memory_summary()`; if there are several tables, the first.
fn table(text: &str) -> Option<Counters> {
    let title = "memory summary, device ID ";
    let start = text.find(title)?;
    let mut found = Counters {
        device: text::number(&text[start + title.len()..]).map(|(device, _)| device),
        ..Counters::default()
    };
    let rest = &text[start + title.len()..];
    let rest = &rest[..rest.find(title).unwrap_or(rest.len())];
    // In Python's `repr`, newlines are escaped. A launcher may write its prefix before each line.
    for line in rest.split("\\n").flat_map(str::lines) {
        if let Some(at) = line.find("OOMs:") {
            found.failures = text::number(line[at + 5..].trim_start()).map(|(count, _)| count.into());
        }
        if let Some(at) = line.find("retries:") {
            found.retries = text::number(line[at + 8..].trim_start()).map(|(count, _)| count.into());
        }
        let mut cells = line.split('|').skip(1).map(str::trim);
        let (Some(name), Some(current), Some(peak)) = (cells.next(), cells.next(), cells.next()) else {
            continue;
        };
        let bytes = |cell: &str| leading(cell).map(|(bytes, _)| bytes);
        let counter = Counter { current_bytes: bytes(current), peak_bytes: bytes(peak) };
        let place = match name {
            "Allocated memory" => &mut found.allocated,
            "Active memory" => &mut found.active,
            "GPU reserved memory" => &mut found.reserved,
            "Non-releasable memory" => &mut found.inactive_split,
            _ => continue,
        };
        if *place == Counter::default() {
            *place = counter;
        }
    }
    Some(found)
}
