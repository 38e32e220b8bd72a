//! Events as text: a line with the event and the memory level after it, a line for the block, then the stack.

use std::fmt::Write;

use plimsoll_trace::explain::BackwardBlock;
use plimsoll_trace::render::words;
use plimsoll_trace::snapshot::{Action, EventIndex, Frame, StackId};
use plimsoll_trace::timeline::Life;

use super::{Frames, Row, Window};
use crate::explained::Explained;
use crate::output::{BOLD, RESET};
use crate::shown::Shown;

/// The complete answer.
pub(super) fn render(explained: &Explained, windows: &[Window<'_>], shown: Shown, frames: Frames) -> String {
    let mut out = String::new();
    for window in windows {
        if !out.is_empty() {
            out.push('\n');
        }
        Text { explained, window, shown, frames }.window(&mut out);
    }
    out
}

struct Text<'a> {
    explained: &'a Explained,
    window: &'a Window<'a>,
    shown: Shown,
    frames: Frames,
}

impl Text<'_> {
    fn size(&self, bytes: u64) -> String {
        self.shown.size(bytes)
    }

    fn window(&self, out: &mut String) {
        let Window { device, moment, events, .. } = self.window;
        let prefix = self.explained.prefix(device);
        let all = device.timeline.quality.events;
        // Writing to a `String` cannot fail.
        let (Some(first), Some(last)) = (events.first(), events.last()) else {
            let _ = writeln!(out, "{prefix}{BOLD}no events were recorded{RESET}");
            return;
        };
        let (first, last) = (first.index.index(), last.index.index());
        let _ = writeln!(
            out,
            "{prefix}{BOLD}events {first} to {last} of {all}{RESET}; > marks the moment: {moment}"
        );
        for row in events {
            self.row(out, row);
        }
    }

    fn row(&self, out: &mut String, row: &Row<'_>) {
        let Row { index, event, levels: [before, after] } = *row;
        let mark = if self.window.at == Some(index) { ">" } else { " " };
        let time = self.window.since_first(event);
        let time = time.map_or_else(String::new, |us| format!("  +{:.6} s", us as f64 / 1e6));
        let (action, size) = (event.action.name(), self.size(event.size));
        let reserved = i128::from(after.reserved_bytes) - i128::from(before.reserved_bytes);
        let reserved =
            if reserved == 0 { String::new() } else { format!(" ({})", self.shown.change(reserved)) };
        let _ = writeln!(
            out,
            "\n{mark} {BOLD}event {}{RESET}{time}  {BOLD}{action} {size}{RESET}  allocated {}, reserved {}{reserved}",
            index.index(),
            self.size(after.allocated_bytes),
            self.size(after.reserved_bytes)
        );
        let about = self.about(row);
        if !about.is_empty() {
            let _ = writeln!(out, "    {}", about.join(", "));
        }
        if let Some(lifetime) = self.lifetime(row) {
            let _ = writeln!(out, "    {lifetime}");
        }
        self.stack(out, event.stack);
    }

    /// The block's address, its purpose, and the line that requested it.
    fn about(&self, row: &Row<'_>) -> Vec<String> {
        let device = self.window.device;
        let snapshot = &self.explained.snapshot;
        let mut about = Vec::new();
        // For the event that records that a snapshot was taken, PyTorch stores no address.
        let addr = row.event.addr().filter(|_| row.event.action != Action::Snapshot);
        about.extend(addr.map(|addr| format!("{:#x}", addr.0)));
        about.extend(row.event.device_free().map(|bytes| format!("{} free on the device", self.size(bytes))));
        if row.event.stream.0 != 0 {
            about.push(format!("stream {:#x}", row.event.stream.0));
        }
        if let Some(index) = device.timeline.life_of(row.index) {
            let life = &device.timeline.lives[index.index()];
            let (category, why) = device.purposes.shown(index, life, &self.explained.origins);
            let name = words::purpose(snapshot, category);
            about.push(match category.name(snapshot) {
                Some(_) => format!("{name} ({})", why.confidence()),
                None => "of unknown category".to_owned(),
            });
        }
        let origin = self.explained.origins.get(row.event.stack);
        let forward = origin.forward.or(self.window.forward_lines.get(Some(row.index)));
        let forward = forward.filter(|_| origin.line.is_none());
        if let Some(forward) = forward {
            about.push(words::backward(
                snapshot,
                BackwardBlock { operator: origin.operator, forward: Some(forward) },
            ));
        } else if let Some(operator) = origin.operator {
            about.push(words::plain(operator.of(snapshot)).into_owned());
        }
        about.extend(self.window.pass(row.index).map(|pass| format!("in the {pass}{}", pass_noun(pass))));
        about
    }

    /// When the block was allocated and freed.
    fn lifetime(&self, row: &Row<'_>) -> Option<String> {
        let timeline = &self.window.device.timeline;
        let life = &timeline.lives[timeline.life_of(row.index)?.index()];
        Some(match row.event.action {
            Action::Alloc => format!("its block of {} is {}", self.size(life.bytes), self.end(life)),
            _ => format!("its block of {} was {}", self.size(life.bytes), self.begin(life, row.index)),
        })
    }

    fn end(&self, life: &Life) -> String {
        match (life.born, life.freed) {
            (Some(born), Some(freed)) if self.is_recorded(freed) => {
                format!("freed by event {}, {}", freed.index(), self.distance(born, freed, "later"))
            }
            (_, Some(_)) => "freed by the end; the free was not recorded".to_owned(),
            (_, None) => "live at the end".to_owned(),
        }
    }

    fn begin(&self, life: &Life, now: EventIndex) -> String {
        match life.born {
            Some(born) => {
                format!("allocated by event {}, {}", born.index(), self.distance(born, now, "before"))
            }
            None => "allocated before the recording".to_owned(),
        }
    }

    fn is_recorded(&self, event: EventIndex) -> bool {
        event.index() < self.window.device.timeline.quality.events
    }

    /// The number of events and the time between two events.
    fn distance(&self, from: EventIndex, to: EventIndex, word: &str) -> String {
        let events = words::counted((to.index() - from.index().min(to.index())) as u64, "event");
        let time = self.window.between(self.explained, from, to);
        let time = time.map_or_else(String::new, |us| format!(" and {:.3} ms", us as f64 / 1e3));
        format!("{events}{time} {word}")
    }

    /// The frames, innermost first. Omitted frames are counted at the end.
    fn stack(&self, out: &mut String, stack: Option<StackId>) {
        if self.frames == Frames::None {
            return;
        }
        let Some(stack) = stack.filter(|&stack| stack != StackId::EMPTY) else {
            let _ = writeln!(out, "      no stack");
            return;
        };
        let mut left_out = 0;
        for frame in self.explained.snapshot.stacks.frames(stack) {
            if self.frames == Frames::All || self.is_python(frame) {
                let texts = &self.explained.snapshot.texts;
                let [file, name] = [frame.filename, frame.name].map(|id| words::plain(texts.get(id)));
                let _ = writeln!(out, "      {file}:{} {name}", frame.line);
            } else {
                left_out += 1;
            }
        }
        if left_out > 0 {
            let frames = words::counted(left_out, "frame");
            let _ = writeln!(out, "      and {frames} in C++: --frames all prints them");
        }
    }

    fn is_python(&self, frame: &Frame) -> bool {
        words::is_python(self.explained.snapshot.texts.get(frame.filename))
    }
}

/// The noun that follows a pass's name: `pass` or `step`.
fn pass_noun(pass: &str) -> &'static str {
    if pass.ends_with("step") { "" } else { " pass" }
}
