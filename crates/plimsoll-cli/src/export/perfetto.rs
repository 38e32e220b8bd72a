//! Trace events in JSON, for Perfetto and chrome://tracing: a process with counters for each device, and one for
//! the program with its scopes. Times are microseconds since the first event; a recording without times (before
//! PyTorch 2.1) has event numbers instead. The format is described in "Trace Event Format", in Chromium's
//! documents on tracing.

use std::io::{self, Write};

use plimsoll_alloc::Category;
use plimsoll_trace::explain::{DeviceExplanation, Origins, ShownCategory};
use plimsoll_trace::render::words;
use plimsoll_trace::snapshot::{Action, Event, EventIndex, LifeIndex, Snapshot};
use serde_json::{Value, json};

use super::scopes;

/// The ID of the program's process. Perfetto does not accept zero.
const PROGRAM: i64 = 1;

/// The process ID of a device.
fn process(device: i32) -> i64 {
    i64::from(device) + 2
}

/// Writes the complete recording of these devices.
pub(super) fn write(
    snapshot: &Snapshot,
    origins: &Origins,
    devices: &[DeviceExplanation],
    out: &mut dyn Write,
) -> io::Result<()> {
    let clock = Clock::of(snapshot);
    let mut events = Events { out, any: false };
    events.begin()?;
    events.process(PROGRAM, "program")?;
    let mut last = 0;
    for device in devices {
        let number = device.timeline.device;
        events.process(process(number), &format!("device {number}"))?;
        let times = clock.times(snapshot.trace(number));
        last = times.last().copied().unwrap_or(0).max(last);
        counters(&mut events, snapshot, origins, device, &times)?;
        failures(&mut events, snapshot, origins, number, &times)?;
    }
    for scope in scopes::of(snapshot, |time| clock.since_begin(time), last) {
        let (name, begin, end) = (snapshot.texts.get(scope.name), scope.begin, scope.end);
        events.event(&json!({
            "name": name, "ph": "X", "ts": begin, "dur": end - begin, "pid": PROGRAM, "tid": scope.lane + 1,
        }))?;
    }
    events.end(&clock)
}

/// Allocated bytes, in total and by category, and reserved bytes. Each is written when it changes, at most once
/// per microsecond.
fn counters(
    events: &mut Events<'_>,
    snapshot: &Snapshot,
    origins: &Origins,
    device: &DeviceExplanation,
    times: &[u64],
) -> io::Result<()> {
    let names = names(snapshot, origins);
    let pid = process(device.timeline.device);
    let trace = snapshot.trace(device.timeline.device);
    let mut changes = by_category(device, origins).into_iter().peekable();
    let mut categories = vec![0_u64; names.len()];
    while let Some((_, place, change)) = changes.next_if(|(at, ..)| at.is_none()) {
        categories[place] = categories[place].saturating_add_signed(change);
    }
    let start = device.timeline.start;
    let mut shown = vec![Some(start.allocated_bytes), Some(start.reserved_bytes)];
    shown.extend(categories.iter().map(|&bytes| Some(bytes)));
    let mut written: Vec<Option<u64>> = vec![None; shown.len()];
    write_changes(events, pid, times.first().copied().unwrap_or(0), &names, &shown, &mut written)?;
    for (nth, moment) in device.timeline.curve(trace).enumerate() {
        while let Some((_, place, change)) = changes.next_if(|(at, ..)| *at <= moment.after) {
            categories[place] = categories[place].saturating_add_signed(change);
            shown[2 + place] = Some(categories[place]);
        }
        shown[0] = Some(moment.level.allocated_bytes);
        shown[1] = Some(moment.level.reserved_bytes);
        if times.get(nth + 1) != Some(&times[nth]) {
            write_changes(events, pid, times[nth], &names, &shown, &mut written)?;
        }
    }
    Ok(())
}

/// Writes the counters that changed. Counters that were always zero are left out.
fn write_changes(
    events: &mut Events<'_>,
    pid: i64,
    time: u64,
    names: &[&str],
    now: &[Option<u64>],
    written: &mut [Option<u64>],
) -> io::Result<()> {
    for (place, (&now, written)) in now.iter().zip(written).enumerate() {
        if now == *written || (written.is_none() && now == Some(0) && place > 1) {
            continue;
        }
        *written = now;
        let name = match place {
            0 => "allocated",
            1 => "reserved",
            _ => names.get(place - 2).copied().unwrap_or("unknown"),
        };
        events
            .event(&json!({ "name": name, "ph": "C", "ts": time, "pid": pid, "args": { "bytes": now } }))?;
    }
    Ok(())
}

/// The names of all categories: built-in, unknown and user-defined.
fn names<'a>(snapshot: &'a Snapshot, origins: &Origins) -> Vec<&'a str> {
    let ours = Category::ALL.iter().map(|category| category.plural());
    let own = origins.categories().iter().map(|&name| snapshot.texts.get(name));
    ours.chain(["unknown"]).chain(own).collect()
}

/// The allocation and the free of each block: the event after which it happens, the index of its category,
/// and the bytes.
fn by_category(device: &DeviceExplanation, origins: &Origins) -> Vec<(Option<EventIndex>, usize, i64)> {
    let mut changes = Vec::with_capacity(2 * device.timeline.lives.len());
    for (index, life) in (0..).map_while(LifeIndex::new).zip(&device.timeline.lives) {
        let unknown = Category::ALL.len();
        let place = match device.purposes.shown(index, life, origins).0 {
            ShownCategory::Purpose(category) => {
                Category::ALL.iter().position(|&one| Some(one) == category).unwrap_or(unknown)
            }
            ShownCategory::Custom(name) => {
                let own = origins.categories().iter().position(|&one| one == name);
                own.map_or(unknown, |own| unknown + 1 + own)
            }
        };
        let bytes = i64::try_from(life.bytes).unwrap_or(i64::MAX);
        changes.push((life.born, place, bytes));
        if life.freed.is_some() {
            changes.push((life.freed, place, -bytes));
        }
    }
    changes.sort_by_key(|&(at, ..)| at);
    changes
}

fn failures(
    events: &mut Events<'_>,
    snapshot: &Snapshot,
    origins: &Origins,
    device: i32,
    times: &[u64],
) -> io::Result<()> {
    let failed = snapshot.trace(device).iter().zip(times).filter(|(event, _)| event.action == Action::Oom);
    for (event, time) in failed {
        let line = origins.get(event.stack).line.map(|frame| words::line(snapshot, frame));
        events.event(&json!({
            "name": "out of memory", "ph": "i", "s": "p", "ts": time, "pid": process(device), "tid": 0,
            "args": { "asked_bytes": event.size, "device_free_bytes": event.device_free(), "line": line },
        }))?;
    }
    Ok(())
}

/// Times relative to the first time of the recording.
struct Clock {
    /// Microseconds since 1970; `None` if there are no times.
    begin_us: Option<u64>,
}

impl Clock {
    fn of(snapshot: &Snapshot) -> Clock {
        let events = snapshot.traces.iter().flatten().map(|event| event.time_us);
        let scopes = snapshot.annotations.iter().map(|scope| scope.time_us);
        Clock { begin_us: events.chain(scopes).filter_map(|time| time.get()).min() }
    }

    fn since_begin(&self, time: u64) -> u64 {
        time.saturating_sub(self.begin_us.unwrap_or(time))
    }

    /// A time for each event, never before that of the previous event.
    fn times(&self, trace: &[Event]) -> Vec<u64> {
        let mut last = 0;
        let time = |(nth, event): (u64, &Event)| {
            let time = match self.begin_us {
                Some(_) => event.time_us.get().map(|time| self.since_begin(time)),
                None => Some(nth),
            };
            last = time.unwrap_or(last).max(last);
            last
        };
        (0..).zip(trace).map(time).collect()
    }
}

/// The list of events, one per line.
struct Events<'a> {
    out: &'a mut dyn Write,
    any: bool,
}

impl Events<'_> {
    fn begin(&mut self) -> io::Result<()> {
        write!(self.out, "{{\"displayTimeUnit\":\"ms\",\"traceEvents\":[")
    }

    fn event(&mut self, event: &Value) -> io::Result<()> {
        write!(self.out, "{}\n{event}", if self.any { "," } else { "" })?;
        self.any = true;
        Ok(())
    }

    fn process(&mut self, pid: i64, name: &str) -> io::Result<()> {
        self.event(&json!({ "name": "process_name", "ph": "M", "pid": pid, "args": { "name": name } }))
    }

    fn end(&mut self, clock: &Clock) -> io::Result<()> {
        let about = match clock.begin_us {
            Some(begin_us) => json!({ "clock": "microseconds", "begin_unix_us": begin_us }),
            None => json!({ "clock": "event numbers" }),
        };
        writeln!(self.out, "\n],\"otherData\":{about}}}")
    }
}
