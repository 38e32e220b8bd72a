//! An explanation as text: the verdict, then the owners of the memory.

use std::fmt::Write;

use plimsoll_trace::explain::leaks::{Place, Verdict};
use plimsoll_trace::explain::{
    DeviceExplanation, Fragmentation, Holes, Ledger, Part, Pin, PinningBlock, Share,
};
use plimsoll_trace::render::devices::decisive;
use plimsoll_trace::render::{failure, ledger, pressure, verdict, words};
use plimsoll_trace::timeline::Timeline;

use super::{advice, devices, peaks, remaining};
use crate::explained::Explained;
use crate::output::{BOLD, RESET};
use crate::shown::Shown;
use crate::{doctor, leaks, whatif};

/// How many moments of the recording have their largest hole shown.
const MOMENTS: usize = 8;

/// The whole answer.
pub(crate) fn render(explained: &Explained, shown: Shown) -> String {
    let page = Page { explained, shown };
    let mut out = String::new();
    let several = explained.devices.len() > 1;
    if several {
        devices::head(&mut out, explained, shown);
    }
    let decisive = decisive(&explained.devices).filter(|_| several);
    // Writing to a `String` cannot fail.
    for device in &explained.devices {
        if !out.is_empty() {
            out.push('\n');
        }
        let _ = write!(out, "{}{BOLD}", explained.prefix(device));
        if decisive.is_some_and(|one| std::ptr::eq(one, device)) {
            // Its verdict is the recording's, which is said in full.
            let _ = writeln!(out, "{}{RESET}", verdict::brief(device, |bytes| page.size(bytes)));
        } else {
            let _ = writeln!(out, "{}{RESET}", verdict::sentence(device, |bytes| page.size(bytes)));
            for line in
                failure::request(&explained.snapshot, &explained.origins, device, |bytes| page.size(bytes))
            {
                let _ = writeln!(out, "{line}");
            }
        }
        for line in pressure::lines(&explained.snapshot, &explained.origins, device, |bytes| page.size(bytes))
        {
            let _ = writeln!(out, "{line}");
        }
        advice::section(&mut out, explained, device, |bytes| page.size(bytes));
        page.device(&mut out, device);
    }
    let _ = writeln!(out, "\n{}", words::writer(&explained.file, &explained.snapshot));
    out
}

/// Everything about one device after the verdict.
pub(crate) fn tables(out: &mut String, explained: &Explained, device: &DeviceExplanation, shown: Shown) {
    Page { explained, shown }.device(out, device);
}

struct Page<'a> {
    explained: &'a Explained,
    shown: Shown,
}

impl Page<'_> {
    fn size(&self, bytes: u64) -> String {
        self.shown.size(bytes)
    }

    fn device(&self, out: &mut String, device: &DeviceExplanation) {
        let owners = &device.owners;
        let when = words::when(device);
        self.ledger(out, &device.ledger, when);
        let _ = writeln!(out, "\n{BOLD}Live memory {when}, by category{RESET}");
        for share in &owners.by_category {
            let name = words::category(&self.explained.snapshot, share.key.category);
            self.row(out, &name, share, owners.bytes, &words::reason(share.key));
        }
        let all =
            Share { key: (), bytes: owners.bytes, blocks: blocks(&owners.by_category), largest_bytes: 0 };
        self.row(out, "total", &all, owners.bytes, "memory_allocated()");
        let _ = writeln!(out, "\n{BOLD}By line{RESET}");
        self.table(out, &owners.by_line, owners.bytes, |key| {
            let line = words::asker(&self.explained.snapshot, key);
            (line, words::purpose(&self.explained.snapshot, key.category).into_owned())
        });
        let _ = writeln!(out, "\n{BOLD}By operator{RESET}");
        self.table(out, &owners.by_operator, owners.bytes, |key| {
            let name = key.map(|name| words::plain(name.of(&self.explained.snapshot)).into_owned());
            (String::new(), name.unwrap_or_else(|| "no operator in the stack".to_owned()))
        });
        remaining::section(out, self.explained, device, self.shown);
        peaks::phases(out, self.explained, device, self.shown);
        self.pins(out, device);
        self.leaks(out, device);
        if let Some(what_if) = &device.what_if {
            let _ =
                writeln!(out, "\n{BOLD}{}{RESET}", words::best_setting(what_if, |bytes| self.size(bytes)));
            whatif::table(out, what_if, |bytes| self.size(bytes));
        }
        doctor::section(out, self.explained, device);
    }

    /// Which lines keep memory from step to step.
    fn leaks(&self, out: &mut String, device: &DeviceExplanation) {
        let of = &device.leaks;
        let growth = of.whole.growth;
        let _ = writeln!(
            out,
            "\n{BOLD}Growth by step{RESET}: {}",
            words::steps(device, |bytes| self.size(bytes))
        );
        peaks::steps(out, self.explained, device, self.shown);
        let patterns = words::patterns(&self.explained.snapshot, device);
        for pattern in patterns.iter().take(self.shown.rows) {
            let _ = writeln!(out, "  {pattern}");
        }
        if patterns.len() > self.shown.rows {
            let _ = writeln!(out, "  {} more", patterns.len() - self.shown.rows);
        }
        if of.whole.verdict != Verdict::Leaking {
            leaks::kept_of_each(out, self.explained, device, self.shown.rows, |bytes| self.size(bytes));
            return;
        }
        leaks::lines(out, self.explained, device, self.shown.rows, |bytes| self.size(bytes));
        let _ = writeln!(out, "  {:>12} in total since step {}", self.size(growth.bytes), growth.from + 1);
        let _ = writeln!(out, "  {}", words::NO_HOLDER);
    }

    /// The blocks that keep cached memory from being released, and how much, if it is enough to matter.
    fn pins(&self, out: &mut String, DeviceExplanation { fragmentation, timeline, .. }: &DeviceExplanation) {
        let Holes { reserved_bytes, count, largest_bytes, cached } = fragmentation.all;
        if cached.pinned < reserved_bytes / 50 {
            return;
        }
        let _ = writeln!(
            out,
            "\n{BOLD}Cached and pinned{RESET}: {} in {}, the largest {}; empty_cache would return {}",
            self.size(cached.pinned),
            words::counted(count as u64, "hole"),
            self.size(largest_bytes),
            self.size(fragmentation.empty_cache_bytes.0)
        );
        let over_time = Fragmentation::over_time(&self.explained.snapshot, timeline, MOMENTS);
        let largest: Vec<String> =
            over_time.iter().map(|(_, holes)| self.size(holes.largest_bytes)).collect();
        let _ = writeln!(out, "  the largest hole over the recording: {}", largest.join(", "));
        let mut pins: Vec<&Pin> = fragmentation.pins.iter().collect();
        pins.sort_by_key(|pin| std::cmp::Reverse(pin.pinned_bytes));
        for pin in pins.iter().take(self.shown.rows.min(5)) {
            let (place, age) =
                pin.blocks.first().map_or_else(Default::default, |oldest| self.oldest(timeline, oldest));
            let (pinned, held) = (self.size(pin.pinned_bytes), self.size(pin.held_bytes));
            let blocks = words::counted(pin.blocks.len() as u64, "block");
            let row = format!("  {pinned:>12}  by {held} in {blocks}{age}  {place}");
            let _ = writeln!(out, "{}", row.trim_end());
        }
    }

    /// The oldest block of a segment: its purpose, the line that requested it, and its age.
    fn oldest(&self, timeline: &Timeline, oldest: &PinningBlock) -> (String, String) {
        let stack = oldest.life.and_then(|life| timeline.lives[life.index()].stack);
        let place = words::place(&self.explained.snapshot, Place::of(stack, &self.explained.origins));
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
            format!("{}  {place}", words::purpose(&self.explained.snapshot, oldest.category)),
            format!(", the oldest {age}"),
        )
    }

    /// Where the device's bytes are: a sum, then its parts.
    fn ledger(&self, out: &mut String, ledger: &Ledger, when: &str) {
        let _ = writeln!(out, "\n{BOLD}Device memory {when}{RESET}");
        for row in ledger::rows(ledger) {
            let size = row.bytes.map_or_else(|| "unknown".to_owned(), |bytes| self.size(bytes));
            let indent = match row.part.within() {
                None => "",
                Some(Part::Total) => "  ",
                Some(_) => "    ",
            };
            let name = format!("{indent}{}", row.part.name());
            let _ = writeln!(out, "  {size:>12}  {name:<34}  {}", row.part.pytorch());
        }
        if let Some(sentence) = ledger::outside(ledger) {
            let _ = writeln!(out, "  {sentence}");
        }
    }

    /// The largest rows, and one for the rest.
    fn table<K: Copy>(
        &self,
        out: &mut String,
        shares: &[Share<K>],
        of: u64,
        name: impl Fn(K) -> (String, String),
    ) {
        let (listed, rest) = shares.split_at(shares.len().min(self.shown.rows));
        for share in listed {
            let (name, note) = name(share.key);
            self.row(out, &note, share, of, &name);
        }
        if !rest.is_empty() {
            let bytes = rest.iter().map(|share| share.bytes).sum();
            let rest_row = Share { key: (), bytes, blocks: blocks(rest), largest_bytes: 0 };
            self.row(out, &format!("{} more", rest.len()), &rest_row, of, "");
        }
    }

    fn row<K>(&self, out: &mut String, name: &str, share: &Share<K>, of: u64, note: &str) {
        let percent = if of == 0 { 0.0 } else { 100.0 * share.bytes as f64 / of as f64 };
        let (size, blocks) = (self.size(share.bytes), share.blocks);
        let noun = if blocks == 1 { "block " } else { "blocks" };
        let line = format!("  {size:>12} {percent:>6.1} % {blocks:>7} {noun}  {name:<15}  {note}");
        let _ = writeln!(out, "{}", line.trim_end());
    }
}

fn blocks<K>(shares: &[Share<K>]) -> u64 {
    shares.iter().map(|share| share.blocks).sum()
}
