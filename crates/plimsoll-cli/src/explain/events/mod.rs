//! `plimsoll explain --events`: the events around a moment, each with the memory level after it, the lifetime of
//! its block, and its stack.

mod json;
mod text;

use std::iter;

use clap::{Args, ValueEnum};
use plimsoll_trace::explain::{DeviceExplanation, ForwardLines, PassKind};
use plimsoll_trace::snapshot::{Event, EventIndex};
use plimsoll_trace::timeline::{Level, Moment};

use super::ExplainArgs;
use crate::exit::{Answer, Failure};
use crate::explained::Explained;
use crate::moment::{self, When};

/// Which events to print, and how much of each.
#[derive(Debug, Clone, Args)]
pub(super) struct EventsArgs {
    /// Instead of the report, print the events around a moment: peak, end, failure, an event's number or a time
    /// such as 2.5s [default: failure, or peak if nothing failed]
    #[arg(long, value_name = "MOMENT", value_parser = moment::parse, num_args = 0..=1, conflicts_with = "html")]
    events: Option<Option<When>>,
    /// Number of events before that moment
    #[arg(long, value_name = "N", default_value_t = 8, requires = "events")]
    before: usize,
    /// Number of events after that moment
    #[arg(long, value_name = "N", default_value_t = 4, requires = "events")]
    after: usize,
    /// Which frames of each stack to print
    #[arg(long, value_enum, value_name = "WHICH", default_value_t = Frames::Python, requires = "events")]
    frames: Frames,
}

/// Which frames of a stack are printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Frames {
    /// Python frames
    Python,
    /// Python and C++ frames
    All,
    /// No frames
    None,
}

/// The events around a moment of one device.
struct Window<'a> {
    device: &'a DeviceExplanation,
    /// The moment in words.
    moment: String,
    /// The event just before the moment; `None` if there is none.
    at: Option<EventIndex>,
    /// In the order of the recording.
    events: Vec<Row<'a>>,
    /// The time of the recording's first event, in microseconds since 1970.
    first_us: Option<u64>,
    /// The forward lines of requests that have no Python line.
    forward_lines: ForwardLines,
}

/// An event.
struct Row<'a> {
    index: EventIndex,
    event: &'a Event,
    /// The memory level before and after the event.
    levels: [Level; 2],
}

impl EventsArgs {
    /// Whether `--events` was given.
    pub(super) fn is_asked(&self) -> bool {
        self.events.is_some()
    }

    /// The events of each device.
    ///
    /// # Errors
    /// If the recording does not have this moment.
    pub(super) fn answer(&self, explained: &Explained, asked: &ExplainArgs) -> Result<Answer, Failure> {
        let mut windows = Vec::new();
        for device in &explained.devices {
            let of = (explained.file.as_str(), &explained.snapshot);
            let several = explained.devices.len() > 1;
            if let Some((at, moment)) = moment::find(self.events.flatten(), of, device, several)? {
                let mut window = self.window(explained, device, at, moment);
                if !asked.no_infer {
                    let requests = window.events.iter().map(|row| row.index);
                    window.forward_lines = device.forward_lines_of(explained.analysis(device), requests);
                }
                windows.push(window);
            }
        }
        if windows.is_empty() {
            return Err(moment::no_failure(&explained.file));
        }
        Ok(Answer::from(if asked.json {
            json::render(explained, &windows)
        } else {
            text::render(explained, &windows, asked.shown, self.frames)
        }))
    }

    fn window<'a>(
        &self,
        explained: &'a Explained,
        device: &'a DeviceExplanation,
        at: Option<EventIndex>,
        moment: String,
    ) -> Window<'a> {
        let trace = explained.snapshot.trace(device.timeline.device);
        // For the moment of the snapshot itself, the index is one past the last event.
        let at = at.filter(|at| at.index() < trace.len()).or_else(|| at.and(device.timeline.last()));
        let center = at.map_or(0, EventIndex::index);
        let from = center.saturating_sub(self.before);
        let until = center.saturating_add(self.after).saturating_add(1).min(trace.len());
        let start = Moment { after: None, level: device.timeline.start };
        let levels = iter::once(start).chain(device.timeline.curve(trace)).map(|moment| moment.level);
        let levels: Vec<Level> = levels.skip(from).take(until.saturating_sub(from) + 1).collect();
        let numbered = (from..until).zip(levels.windows(2));
        let events = numbered.filter_map(|(nth, levels)| {
            Some(Row { index: EventIndex::new(nth)?, event: trace.get(nth)?, levels: [levels[0], levels[1]] })
        });
        let first_us = trace.iter().find_map(|event| event.time_us.get());
        let forward_lines = ForwardLines::default();
        Window { device, moment, at, events: events.collect(), first_us, forward_lines }
    }
}

impl Window<'_> {
    /// Microseconds from the first event of the recording to this event.
    fn since_first(&self, event: &Event) -> Option<u64> {
        event.time_us.get().zip(self.first_us).map(|(time, first)| time.saturating_sub(first))
    }

    /// Microseconds between two events.
    fn between(&self, explained: &Explained, from: EventIndex, to: EventIndex) -> Option<u64> {
        let trace = explained.snapshot.trace(self.device.timeline.device);
        let time = |event: EventIndex| trace.get(event.index()).and_then(|event| event.time_us.get());
        time(from).zip(time(to)).map(|(from, to)| to.saturating_sub(from))
    }

    /// The name of the pass that an event belongs to.
    fn pass(&self, event: EventIndex) -> Option<&'static str> {
        self.device.passes.kind_at(event).map(|kind| match kind {
            PassKind::Forward => "forward",
            PassKind::Backward => "backward",
            PassKind::Optimizer => "optimizer step",
        })
    }
}
