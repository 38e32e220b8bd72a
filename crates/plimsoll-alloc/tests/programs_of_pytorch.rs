//! Programs with all that PyTorch's allocator showed: after each step a digest of every segment and block,
//! at the end every statistic and the whole trace. Read from `shared/conformance` beside the repository,
//! where there is one. Only the programs that need nothing which this allocator does not do are replayed:
//! the modes `def` (default options) and `ls` (large segment size), 50 programs on five streams.

#![allow(clippy::unwrap_used, reason = "a test's helper may unwrap, as a test may")]

mod first_fit;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader};
use std::path::Path;

use first_fit::FirstFit;
use flate2::Crc;
use flate2::read::GzDecoder;
use plimsoll_alloc::{
    Allocation, Allocator, BlockState, Config, Event, PoolKind, Request, Segment, Stats, StreamId,
};
use serde_json::Value;

#[test]
fn every_program_shows_what_pytorch_showed() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/conformance");
    let Ok(file) = std::fs::File::open(folder.join("programs-2.15.0.jsonl.gz")) else {
        eprintln!("skipped: no programs beside the repository (in {})", folder.display());
        return;
    };
    let mut replayed = 0;
    for line in BufReader::new(GzDecoder::new(file)).lines() {
        let program: Value = serde_json::from_str(&line.unwrap()).unwrap();
        if ["def", "ls"].contains(&program["mode"].as_str().unwrap()) {
            replay(&program);
            replayed += 1;
        }
    }
    assert_eq!(replayed, 50);
}

/// A program under way. Options come with its first step.
struct Run {
    allocator: Allocator<FirstFit, (Stats, Vec<Event>)>,
    live: BTreeMap<String, Allocation>,
    streams: Vec<StreamId>,
}

fn replay(program: &Value) {
    let name = format!("{} {}", program["mode"], program["seed"]);
    let steps = program["steps"].as_array().unwrap();
    let driver = FirstFit::new(program["total"].as_u64().unwrap());
    let streams = program["streams"].as_array().unwrap().iter().map(|id| StreamId(id.as_u64().unwrap()));
    let allocator = Allocator::new(config(&steps[0]["op"]), driver, Default::default());
    let mut run = Run { allocator, live: BTreeMap::new(), streams: streams.collect() };
    for (nth, step) in steps.iter().enumerate().skip(1) {
        run.step(&step["op"]);
        run.allocator.check().unwrap_or_else(|broken| panic!("{name}, step {nth}: {broken}"));
        let mut digest = Crc::new();
        digest.update(listing(&run.allocator.segments()).as_bytes());
        assert_eq!(u64::from(digest.sum()), step["segcrc"], "{name}, step {nth}, {}: segments", step["op"]);
        let stats = run.allocator.observer().0.memory_stats();
        assert_eq!(
            stats["allocated_bytes.all.peak"], step["peak_alloc"],
            "{name}, step {nth}: {}",
            step["op"]
        );
    }
    let (stats, events) = run.allocator.observer();
    for (key, ours) in stats.memory_stats() {
        assert_eq!(ours, program["final_stats"][&key], "{name}: {key}");
    }
    assert_eq!(listing(&run.allocator.segments()), program["final_segments"], "{name}: segments");
    assert_eq!(trace(events), program["trace"], "{name}: trace");
}

fn config(op: &Value) -> Config {
    match op[1].as_str().unwrap().strip_prefix("large_segment_size_mb:") {
        Some(mb) => Config::default().with_large_segment_bytes(mb.parse::<u64>().unwrap() << 20).unwrap(),
        None => Config::default(),
    }
}

impl Run {
    fn step(&mut self, op: &Value) {
        let (stats, _) = self.allocator.observer_mut();
        match op[0].as_str().unwrap() {
            "a" => {
                let stream = self.streams[op[3].as_u64().unwrap() as usize];
                let request = Request { stream, ..Request::of(op[2].as_u64().unwrap()) };
                if let Ok(allocation) = self.allocator.malloc(request) {
                    let before = self.live.insert(op[1].as_str().unwrap().to_owned(), allocation);
                    assert_eq!(before, None, "names are used once");
                }
            }
            "f" => {
                if let Some(allocation) = self.live.remove(op[1].as_str().unwrap()) {
                    self.allocator.free(allocation);
                }
            }
            "empty" => assert!(self.allocator.empty_cache().is_ok()),
            "frac" => self.allocator.set_memory_fraction(op[1].as_f64().unwrap()).unwrap(),
            "limit" => self.allocator.driver_mut().set_limit(op[1].as_u64().unwrap()),
            "resetpeak" => stats.reset_peak(),
            "resetacc" => stats.reset_accumulated(),
            "busy" => {} // a stream's events are not ready: nothing here waits for one
            other => panic!("a step that this allocator does not have: {other}"),
        }
    }
}

/// Segments and blocks in the words of the oracle's `sg`.
fn listing(segments: &[Segment]) -> String {
    let mut text = String::new();
    for Segment { addr, bytes, stream, pool, blocks } in segments {
        let is_large = u8::from(*pool == PoolKind::Large);
        write!(text, "[{:x} {bytes} {is_large} 0 0_0 {:x}:", addr.0, stream.0).unwrap();
        for block in blocks {
            let active = u8::from(block.state == BlockState::Active);
            write!(text, " {}/{}/{active}{active}", block.bytes, block.requested_bytes).unwrap();
        }
        text.push(']');
    }
    text
}

/// Events in the words of the oracle's `tr`. PyTorch traces neither a synchronisation nor a retry.
fn trace(events: &[Event]) -> String {
    let mut text = String::new();
    for event in events {
        let (action, addr, bytes, stream) = match *event {
            Event::Alloc { block, .. } => ("alloc", block.addr.0, block.requested_bytes, block.stream),
            Event::Free { block } => ("free_requested", block.addr.0, block.requested_bytes, block.stream),
            Event::FreeCompleted { block, .. } => {
                ("free_completed", block.addr.0, block.requested_bytes, block.stream)
            }
            Event::SegmentAlloc { addr, bytes, stream, .. } => ("segment_alloc", addr.0, bytes, stream),
            Event::SegmentFree { addr, bytes, stream, .. } => ("segment_free", addr.0, bytes, stream),
            Event::OutOfMemory { device_free_bytes, rounded_bytes, stream, .. } => {
                ("oom", device_free_bytes, rounded_bytes, stream)
            }
            Event::SyncAllStreams | Event::Retry { .. } | Event::Retag { .. } => continue,
        };
        write!(text, "{action} {addr:x} {bytes} {:x} 0_0;", stream.0).unwrap();
    }
    text
}
