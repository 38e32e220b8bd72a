//! The packed policy: it never reserves more than PyTorch's allocator does for the same requests.
//!
//! `packed/` has three streams of real programs, without addresses, and the two programs with batches of variable
//! lengths (`docs/measurements/packed.md` says how they were recorded).

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use plimsoll_alloc::{
    Allocation, Allocator, Config, Driver, Error, PackedAllocation, PackedAllocator, Request, Stats, StreamId,
};
use plimsoll_needs::needs;
use plimsoll_trace::conformance;

use crate::busy::Busy;

/// An allocator that serves a stream of requests.
trait Policy {
    type Block;
    fn malloc(&mut self, request: Request) -> Result<Self::Block, Error>;
    fn free(&mut self, block: Self::Block);
    fn record_stream(&mut self, block: &Self::Block, stream: StreamId);
    fn empty_cache(&mut self);
    fn set_fraction(&mut self, fraction: f64);
    fn reserved(&self) -> u64;
    fn device(&mut self) -> &mut Busy;
    fn check(&self);
}

impl Policy for Allocator<Busy, Stats> {
    type Block = Allocation;
    fn malloc(&mut self, request: Request) -> Result<Allocation, Error> {
        Allocator::malloc(self, request)
    }
    fn free(&mut self, block: Allocation) {
        Allocator::free(self, block);
    }
    fn record_stream(&mut self, block: &Allocation, stream: StreamId) {
        Allocator::record_stream(self, block, stream);
    }
    fn empty_cache(&mut self) {
        Allocator::empty_cache(self).unwrap();
    }
    fn set_fraction(&mut self, fraction: f64) {
        self.set_memory_fraction(fraction).unwrap();
    }
    fn reserved(&self) -> u64 {
        Allocator::reserved(self)
    }
    fn device(&mut self) -> &mut Busy {
        self.driver_mut()
    }
    fn check(&self) {}
}

impl Policy for PackedAllocator<Busy, Stats> {
    type Block = PackedAllocation;
    fn malloc(&mut self, request: Request) -> Result<PackedAllocation, Error> {
        PackedAllocator::malloc(self, request)
    }
    fn free(&mut self, block: PackedAllocation) {
        PackedAllocator::free(self, block);
    }
    fn record_stream(&mut self, block: &PackedAllocation, stream: StreamId) {
        PackedAllocator::record_stream(self, block, stream);
    }
    fn empty_cache(&mut self) {
        PackedAllocator::empty_cache(self).unwrap();
    }
    fn set_fraction(&mut self, fraction: f64) {
        self.set_memory_fraction(fraction).unwrap();
    }
    fn reserved(&self) -> u64 {
        PackedAllocator::reserved(self)
    }
    fn device(&mut self) -> &mut Busy {
        self.driver_mut()
    }
    fn check(&self) {
        PackedAllocator::check(self).unwrap();
        let stats = self.observer();
        assert_eq!(stats.reserved_bytes().all.current as u64, self.reserved());
    }
}

/// The figures of one policy for one stream.
#[derive(Debug, Default, Clone, Copy)]
struct Figures {
    peak_reserved_bytes: u64,
    /// The most bytes in use at one time, with each request rounded to 512 bytes.
    in_use_bytes: u64,
    /// Requests that PyTorch served in the recording within its limit, and that failed here.
    failures: usize,
}

impl Figures {
    fn ratio(self) -> f64 {
        self.peak_reserved_bytes as f64 / self.in_use_bytes as f64
    }
}

/// Serves the recorded requests. A request that failed in the recording is freed at once if it is served. If a limit was
/// lowered below what PyTorch had reserved, its cache served requests beyond the limit; these may fail here.
/// In the end, all blocks are freed.
fn serve<P: Policy>(text: &str, policy: &mut P) -> Figures {
    let (mut live, mut figures, mut in_use_bytes) = (BTreeMap::new(), Figures::default(), 0);
    let mut limit_bytes = f64::INFINITY;
    for line in text.lines().filter(|line| !line.starts_with('#') && !line.starts_with("op,")) {
        let fields: Vec<&str> = line.split(',').collect();
        let number = |field: usize| fields[field].parse::<u64>().unwrap_or(0);
        match fields[0] {
            "alloc" | "alloc_oom" => {
                let request = Request { stream: StreamId(number(3)), ..Request::of(number(2)) };
                match (policy.malloc(request), fields[0]) {
                    (Ok(block), "alloc") => {
                        let bytes = number(2).next_multiple_of(512);
                        in_use_bytes += bytes;
                        live.insert(number(1), (block, bytes));
                    }
                    (Ok(block), _) => policy.free(block),
                    (Err(_), "alloc") => {
                        let recorded_bytes: f64 = fields[6].parse().unwrap();
                        figures.failures += usize::from(recorded_bytes <= limit_bytes);
                    }
                    (Err(_), _) => {}
                }
            }
            "free" => {
                if let Some((block, bytes)) = live.remove(&number(1)) {
                    in_use_bytes -= bytes;
                    policy.free(block);
                }
            }
            "record_stream" => {
                if let Some((block, _)) = live.get(&number(1)) {
                    policy.record_stream(block, StreamId(number(3)));
                }
            }
            "pending" => policy.device().is_busy = number(1) == 1,
            "empty_cache" => policy.empty_cache(),
            "set_fraction" => {
                let fraction = fields[2].parse::<f64>().unwrap() / 100.0;
                limit_bytes = fraction * policy.device().memory().total_bytes as f64;
                policy.set_fraction(fraction);
            }
            "reset_peak" => {}
            other => panic!("unknown request {other}"),
        }
        policy.check();
        figures.in_use_bytes = figures.in_use_bytes.max(in_use_bytes);
        figures.peak_reserved_bytes = figures.peak_reserved_bytes.max(policy.reserved());
    }
    live.into_values().for_each(|(block, _)| policy.free(block));
    figures
}

/// The packed policy's figures for a stream, then PyTorch's: native, and with expandable segments.
fn compared(text: &str, capacity_bytes: u64) -> [Figures; 3] {
    let device = || Busy::with_capacity(capacity_bytes);
    let torch = |settings| {
        let config = Config::parse(settings).unwrap().config;
        serve(text, &mut Allocator::new(config, device(), Stats::default()))
    };
    let packed = serve(text, &mut PackedAllocator::new(device(), Stats::default()));
    [packed, torch(""), torch("expandable_segments:True")]
}

fn streams(folder: &Path) -> Vec<(String, String)> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> =
        entries.filter(|path| path.to_string_lossy().ends_with(".csv.gz")).collect();
    files.sort();
    let name = |file: &Path| file.file_name().unwrap().to_string_lossy().into_owned();
    files.iter().map(|file| (name(file), conformance::read(file).unwrap())).collect()
}

/// On a device that is large enough, the packed policy reserves the least. On the recorded device, where a full device
/// shows in failed requests, it fails the fewest.
fn check_all(folder: &Path) -> usize {
    let streams = streams(folder);
    for (name, text) in &streams {
        let line = text.lines().find_map(|line| line.strip_prefix("#device_bytes,"));
        let capacity_bytes: u64 = line.unwrap().parse().unwrap();
        let [packed, native, expandable] = compared(text, 1 << 50);
        let of = |figures: Figures| format!("{:.3}", figures.ratio());
        println!("{name}: {} native, {} expandable, {} packed", of(native), of(expandable), of(packed));
        assert_eq!([packed.failures, native.failures, expandable.failures], [0, 0, 0], "{name}");
        let least_bytes = native.peak_reserved_bytes.min(expandable.peak_reserved_bytes);
        assert!(packed.peak_reserved_bytes <= least_bytes, "{name}: {packed:?}");
        let [packed, native, expandable] = compared(text, capacity_bytes);
        assert!(packed.failures <= native.failures.min(expandable.failures), "{name}: {packed:?}");
    }
    streams.len()
}

#[test]
fn the_kept_slice_of_the_corpus_never_needs_more_than_with_pytorch() {
    assert_eq!(check_all(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus")), 16);
}

#[needs(shared_conformance)]
#[test]
fn the_whole_corpus_never_needs_more_than_with_pytorch() {
    assert!(check_all(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/conformance")) >= 32);
}

#[test]
fn real_programs_reserve_at_most_three_percent_more_than_they_use() {
    let streams = streams(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/packed"));
    let rows = streams.iter().map(|(name, text)| {
        let [packed, native, expandable] = compared(text, 1 << 50);
        assert!(packed.ratio() <= 1.03, "{name}: {packed:?}");
        let name = name.trim_end_matches(".csv.gz");
        format!("{name} {:.3} {:.3} {:.3}", native.ratio(), expandable.ratio(), packed.ratio())
    });
    // Native, with expandable segments, packed.
    let expected =
        ["gpt2_fixed 1.125 1.099 1.006", "gpt2_varlen 1.328 1.098 1.004", "llama_lora 1.260 1.094 1.010"];
    assert_eq!(rows.collect::<Vec<_>>(), expected);
}

#[test]
fn a_program_that_runs_again_makes_no_device_calls_after_a_few_rounds() {
    for (name, text) in streams(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/packed")) {
        let device = Busy::with_capacity(1 << 50);
        let mut policy = PackedAllocator::new(device, Stats::default());
        let rounds = [0; 3].map(|_| {
            let before = policy.calls().total();
            serve(&text, &mut policy);
            policy.calls().total() - before
        });
        assert_eq!(rounds[2], 0, "{name}: device calls of each round: {rounds:?}");
    }
}
