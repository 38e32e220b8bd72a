//! A program of the oracle's shell with PyTorch's results: [`Program`]. For each step, the recording has the current
//! statistics, the counters and a digest of every segment and block; for the end, it has every statistic, the segments
//! and the complete trace. `shared/tools/oracle/repl/README.md` describes the format.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use flate2::Crc;
use plimsoll_alloc::{
    Allocation, Allocator, BlockState, Config, Error, Event, PoolId, PoolKind, Request, Segment, Stats,
    StreamId,
};
use serde_json::Value;

use super::first_fit::FirstFit;
use super::report::{Answer, Choice, Difference, Divergence, Report};

/// The statistics of a step, in the order of its `cur`; then the counters, in the order of its `n`.
const CURRENT: [&str; 9] = [
    "allocation",
    "segment",
    "active",
    "inactive_split",
    "allocated_bytes",
    "reserved_bytes",
    "active_bytes",
    "inactive_split_bytes",
    "requested_bytes",
];
const COUNTERS: [&str; 5] =
    ["num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_device_alloc", "num_device_free"];

/// One line of the file of programs.
pub(crate) struct Program(Value);

impl Program {
    /// Reads one line.
    ///
    /// # Errors
    /// If the line is not JSON, or does not have a program's fields.
    pub(crate) fn parse(line: &str) -> Result<Self, String> {
        let program: Value = serde_json::from_str(line).map_err(|why| why.to_string())?;
        let is_program = program["steps"].is_array() && program["streams"].is_array();
        if is_program { Ok(Self(program)) } else { Err("not a program".to_owned()) }
    }

    /// The program's name: mode and seed.
    pub(crate) fn name(&self) -> String {
        format!("{} {}", self.0["mode"].as_str().unwrap_or("?"), self.0["seed"])
    }

    fn steps(&self) -> &[Value] {
        self.0["steps"].as_array().map_or(&[], Vec::as_slice)
    }

    /// Runs the steps up to the first difference, and compares the final state.
    pub(crate) fn replay(&self) -> Report {
        let mut run = Run::new(&self.0);
        for (nth, step) in self.steps().iter().enumerate() {
            let differences = run.step(step);
            if !differences.is_empty() {
                let divergence = self.explain(nth, differences, run.answer);
                return Report { rows: nth + 1, divergence: Some(divergence) };
            }
        }
        let (rows, asked, differences) = (self.steps().len(), "the end".to_owned(), run.end(&self.0));
        let divergence = Divergence { at: rows, asked, differences, choice: None };
        Report { rows, divergence: Some(divergence).filter(|divergence| !divergence.differences.is_empty()) }
    }

    /// Runs the steps before the first step that differs again, and lists the candidate blocks for that step.
    fn explain(&self, nth: usize, differences: Vec<Difference>, ours: Option<u64>) -> Divergence {
        let mut run = Run::new(&self.0);
        for step in &self.steps()[..nth] {
            run.step(step);
        }
        let op = &self.steps()[nth]["op"];
        let choice = run.request(op).and_then(|request| {
            let explanation = run.allocator.explain(request).ok()?;
            Some(Choice { explanation, theirs: Answer::Untold, ours: Answer::of(ours) })
        });
        Divergence { at: nth, asked: op.to_string(), differences, choice }
    }
}

struct Run {
    allocator: Allocator<FirstFit, (Stats, Vec<Event>)>,
    live: BTreeMap<String, Allocation>,
    streams: Vec<StreamId>,
    /// The pools to which requests go, newest last.
    recording: Vec<PoolId>,
    /// The last request's address.
    answer: Option<u64>,
}

impl Run {
    fn new(program: &Value) -> Self {
        let driver = FirstFit::new(program["total"].as_u64().unwrap_or(0));
        let ids = program["streams"].as_array().into_iter().flatten();
        Self {
            allocator: Allocator::new(Config::default(), driver, Default::default()),
            live: BTreeMap::new(),
            streams: ids.map(|id| StreamId(id.as_u64().unwrap_or(0))).collect(),
            recording: Vec::new(),
            answer: None,
        }
    }

    fn step(&mut self, step: &Value) -> Vec<Difference> {
        let failure = self.ask(&step["op"]).and_then(|()| self.check()).err();
        let failure =
            failure.map(|why| Difference { what: "failure".into(), theirs: "none".into(), ours: why });
        let mut differences: Vec<Difference> = failure.into_iter().collect();
        let stats = self.allocator.observer().0.memory_stats();
        let current = CURRENT.iter().map(|name| format!("{name}.all.current")).zip(numbers(&step["cur"]));
        let counters = COUNTERS.iter().map(|&name| name.to_owned()).zip(numbers(&step["n"]));
        let peaks = [("allocated_bytes", "peak_alloc"), ("reserved_bytes", "peak_res")];
        let peaks = peaks.map(|(name, key)| (format!("{name}.all.peak"), step[key].as_i64().unwrap_or(-1)));
        for (name, theirs) in current.chain(counters).chain(peaks) {
            differences.extend(Difference::between(&name, &theirs, &stats[&name]));
        }
        let listing = listing(&self.allocator.segments());
        let mut digest = Crc::new();
        digest.update(listing.as_bytes());
        let theirs = step["segcrc"].as_u64().unwrap_or(0);
        let digest = Difference::between("digest of the segments", &theirs, &u64::from(digest.sum()));
        differences.extend(
            digest.map(|digest| Difference { ours: format!("{} of {listing}", digest.ours), ..digest }),
        );
        differences
    }

    /// Compares the figures after the last step.
    fn end(&self, program: &Value) -> Vec<Difference> {
        let (stats, events) = self.allocator.observer();
        let mut differences = Vec::new();
        let ours: BTreeMap<String, i64> =
            stats.memory_stats().into_iter().map(|(k, v)| (short(&k), v)).collect();
        for (key, theirs) in program["final_stats"].as_object().into_iter().flatten() {
            let theirs = theirs.as_i64().unwrap_or(-1);
            differences.extend(Difference::between(key, &theirs, ours.get(key).unwrap_or(&i64::MIN)));
        }
        let theirs = program["final_stats"].as_object().map_or(0, serde_json::Map::len);
        differences.extend(Difference::between("number of statistics", &theirs, &ours.len()));
        let theirs = program["final_segments"].as_str().unwrap_or("?");
        differences.extend(Difference::between("segments", theirs, &*listing(&self.allocator.segments())));
        differences.extend(first_difference(program["trace"].as_str().unwrap_or("?"), &trace(events)));
        differences
    }

    fn check(&self) -> Result<(), String> {
        self.allocator.check().map_err(|broken| broken.to_string())?;
        let (stats, _) = self.allocator.observer();
        stats.check(&self.allocator.segments()).map_err(|broken| broken.to_string())
    }

    fn ask(&mut self, op: &Value) -> Result<(), String> {
        let text = |nth: usize| op[nth].as_str().unwrap_or("?");
        let number = |nth: usize| op[nth].as_u64().unwrap_or(0);
        let pool = PoolId(number(1), number(2));
        let done = match text(0) {
            "conf" => {
                let parsed = self.allocator.config().apply(text(1)).map_err(|why| why.to_string())?;
                self.allocator.set_config(parsed.config);
                Ok(())
            }
            "a" => return self.alloc(op),
            "f" => {
                if let Some(allocation) = self.live.remove(text(1)) {
                    self.allocator.free(allocation);
                }
                Ok(())
            }
            "rs" => {
                let stream = self.stream(&op[2])?;
                if let Some(allocation) = self.live.get(text(1)) {
                    self.allocator.record_stream(allocation, stream);
                }
                Ok(())
            }
            "busy" => {
                let stream = self.stream(&op[1])?;
                self.allocator.driver_mut().set_busy(stream, number(2) == 1);
                Ok(())
            }
            "empty" if pool == PoolId::DEFAULT => self.allocator.empty_cache().map(drop),
            "empty" => self.allocator.empty_pool(pool).map(drop),
            "frac" => self.allocator.set_memory_fraction(op[1].as_f64().unwrap_or(-1.0)),
            "limit" => {
                self.allocator.driver_mut().set_limit(number(1));
                Ok(())
            }
            "resetpeak" => {
                self.allocator.observer_mut().0.reset_peak();
                Ok(())
            }
            "resetacc" => {
                self.allocator.observer_mut().0.reset_accumulated();
                Ok(())
            }
            "pc" => self.allocator.create_pool(pool),
            "pb" => {
                self.recording.push(pool);
                self.allocator.begin_allocate_to_pool(pool)
            }
            "pe" => {
                self.recording.retain(|&at| at != pool);
                self.allocator.end_allocate_to_pool(pool)
            }
            "pr" => self.allocator.release_pool(pool),
            "pns" => {
                self.allocator.set_no_split(pool);
                Ok(())
            }
            "poom" | "poom0" => {
                self.allocator.set_use_on_oom(pool, text(0) == "poom");
                Ok(())
            }
            other => return Err(format!("unknown step: {other}")),
        };
        done.map_err(|why: Error| why.to_string())
    }

    /// A stream's handle by its index.
    fn stream(&self, index: &Value) -> Result<StreamId, String> {
        let index = index.as_u64().and_then(|index| usize::try_from(index).ok());
        let stream = index.and_then(|index| self.streams.get(index));
        stream.copied().ok_or_else(|| "no such stream in the program".to_owned())
    }

    /// The request of a step, if the step is a request.
    fn request(&self, op: &Value) -> Option<Request> {
        (op[0] == "a").then(|| {
            let stream = self.stream(&op[3]).unwrap_or_default();
            let pool = self.recording.last().copied().unwrap_or_default();
            Request { stream, pool, ..Request::of(op[2].as_u64().unwrap_or(0)) }
        })
    }

    fn alloc(&mut self, op: &Value) -> Result<(), String> {
        let (Some(request), Some(name)) = (self.request(op), op[1].as_str()) else {
            return Err("not a request".to_owned());
        };
        self.answer = None;
        match self.allocator.malloc(request) {
            Ok(allocation) => {
                self.answer = Some(allocation.addr().0);
                self.live.insert(name.to_owned(), allocation);
                Ok(())
            }
            Err(Error::OutOfMemory(_) | Error::Rejected { .. }) => Ok(()),
            Err(why) => Err(why.to_string()),
        }
    }
}

fn numbers(list: &Value) -> impl Iterator<Item = i64> + '_ {
    list.as_array().into_iter().flatten().map(|number| number.as_i64().unwrap_or(-1))
}

/// The short name of a statistic in the oracle's shell: `rbpp.…` for `reserved_bytes_by_private_pools.…`; other names
/// are the same.
fn short(key: &str) -> String {
    match key.strip_prefix("reserved_bytes_by_private_pools.") {
        Some(rest) => format!("rbpp.{rest}"),
        None => key.to_owned(),
    }
}

/// Segments and blocks in the format of the oracle's `sg`.
fn listing(segments: &[Segment]) -> String {
    let mut text = String::new();
    for segment in segments {
        let Segment { addr, bytes, stream, pool, pool_id, is_expandable, blocks } = segment;
        let (is_large, is_expandable) = (u8::from(*pool == PoolKind::Large), u8::from(*is_expandable));
        let _ = write!(text, "[{:x} {bytes} {is_large} {is_expandable} {pool_id} {:x}:", addr.0, stream.0);
        for block in blocks {
            let state = match block.state {
                BlockState::Active => "11",
                BlockState::Pending => "01",
                BlockState::Cached => "00",
            };
            let _ = write!(text, " {}/{}/{state}", block.bytes, block.requested_bytes);
        }
        text.push(']');
    }
    text
}

/// Events in the format of the oracle's `tr`. PyTorch traces neither a synchronisation nor a retry.
fn trace(events: &[Event]) -> String {
    let mut text = String::new();
    for event in events {
        let (action, addr, bytes, stream, pool) = match *event {
            Event::Alloc { block, .. } => {
                ("alloc", block.addr.0, block.requested_bytes, block.stream, block.pool_id)
            }
            Event::Free { block, .. } => {
                ("free_requested", block.addr.0, block.requested_bytes, block.stream, block.pool_id)
            }
            Event::FreeCompleted { block, .. } => {
                ("free_completed", block.addr.0, block.requested_bytes, block.stream, block.pool_id)
            }
            Event::SegmentAlloc { memory, .. } => {
                ("segment_alloc", memory.addr.0, memory.bytes, memory.stream, memory.pool_id)
            }
            Event::SegmentFree { memory, .. } => {
                ("segment_free", memory.addr.0, memory.bytes, memory.stream, memory.pool_id)
            }
            Event::SegmentMap { memory, .. } => {
                ("segment_map", memory.addr.0, memory.bytes, memory.stream, memory.pool_id)
            }
            Event::SegmentUnmap { memory } => {
                ("segment_unmap", memory.addr.0, memory.bytes, memory.stream, memory.pool_id)
            }
            Event::OutOfMemory { device_free_bytes, rounded_bytes, stream, pool_id, .. } => {
                ("oom", device_free_bytes, rounded_bytes, stream, pool_id)
            }
            Event::SyncAllStreams
            | Event::Retry { .. }
            | Event::Retag { .. }
            | Event::Rejected { .. }
            | Event::Snapshot { .. }
            | Event::StepMark { .. } => continue,
        };
        let _ = write!(text, "{action} {addr:x} {bytes} {:x} {pool};", stream.0);
    }
    text
}

/// The first entry in which two traces differ.
fn first_difference(theirs: &str, ours: &str) -> Option<Difference> {
    if theirs == ours {
        return None;
    }
    let (theirs, ours): (Vec<&str>, Vec<&str>) = (theirs.split(';').collect(), ours.split(';').collect());
    let nth = theirs.iter().zip(&ours).take_while(|(theirs, ours)| theirs == ours).count();
    let entry = |trace: &[&str]| (*trace.get(nth).unwrap_or(&"nothing")).to_owned();
    Some(Difference { what: format!("entry {nth} of the trace"), theirs: entry(&theirs), ours: entry(&ours) })
}
