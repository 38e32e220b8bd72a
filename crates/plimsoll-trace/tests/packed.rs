//! The packed policy: it never reserves more than PyTorch's allocator does for the same requests.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use plimsoll_alloc::{
    Addr, Allocation, Allocator, Config, Driver, DriverError, Error, EventId, MemoryInfo, PackedAllocation,
    PackedAllocator, Request, SimDriver, Stats, StreamId,
};
use plimsoll_needs::needs;
use plimsoll_trace::conformance;

/// A simulated device whose events are pending while a recording says so.
struct Device {
    sim: SimDriver,
    is_pending: bool,
}

impl Driver for Device {
    fn segment_alloc(&mut self, bytes: u64) -> Result<Addr, DriverError> {
        self.sim.segment_alloc(bytes)
    }

    fn segment_free(&mut self, addr: Addr) -> Result<(), DriverError> {
        self.sim.segment_free(addr)
    }

    fn reserve(&mut self, bytes: u64) -> Result<Addr, DriverError> {
        self.sim.reserve(bytes)
    }

    fn release(&mut self, at: Addr, bytes: u64) -> Result<(), DriverError> {
        self.sim.release(at, bytes)
    }

    fn map(&mut self, at: Addr, page_bytes: u64, pages: u64) -> Result<(), DriverError> {
        self.sim.map(at, page_bytes, pages)
    }

    fn unmap(&mut self, at: Addr, page_bytes: u64, pages: u64, on: StreamId) -> Result<(), DriverError> {
        self.sim.unmap(at, page_bytes, pages, on)
    }

    fn alias(&mut self, at: Addr, page_bytes: u64, pages: &[Addr]) -> Result<(), DriverError> {
        self.sim.alias(at, page_bytes, pages)
    }

    fn unalias(&mut self, at: Addr, page_bytes: u64, pages: u64, on: StreamId) -> Result<(), DriverError> {
        self.sim.unalias(at, page_bytes, pages, on)
    }

    fn is_done(&mut self, _event: EventId) -> Result<bool, DriverError> {
        Ok(!self.is_pending)
    }

    fn memory(&self) -> MemoryInfo {
        self.sim.memory()
    }
}

/// An allocator that serves a stream of requests.
trait Policy {
    type Block;
    fn malloc(&mut self, request: Request) -> Result<Self::Block, Error>;
    fn free(&mut self, block: Self::Block);
    fn record_stream(&mut self, block: &Self::Block, stream: StreamId);
    fn empty_cache(&mut self);
    fn set_fraction(&mut self, fraction: f64);
    fn reserved(&self) -> u64;
    fn device(&mut self) -> &mut Device;
    fn check(&self);
}

impl Policy for Allocator<Device, Stats> {
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
    fn device(&mut self) -> &mut Device {
        self.driver_mut()
    }
    fn check(&self) {}
}

impl Policy for PackedAllocator<Device, Stats> {
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
    fn device(&mut self) -> &mut Device {
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
    /// Requests that PyTorch served in the recording, and that failed here.
    failures: usize,
}

/// Serves the recorded requests. A request that failed in the recording is freed at once if it is served.
fn serve<P: Policy>(text: &str, mut policy: P) -> Figures {
    let (mut live, mut figures) = (BTreeMap::new(), Figures::default());
    for line in text.lines().filter(|line| !line.starts_with('#') && !line.starts_with("op,")) {
        let fields: Vec<&str> = line.split(',').collect();
        let number = |field: usize| fields[field].parse::<u64>().unwrap_or(0);
        match fields[0] {
            "alloc" | "alloc_oom" => {
                let request = Request { stream: StreamId(number(3)), ..Request::of(number(2)) };
                match (policy.malloc(request), fields[0]) {
                    (Ok(block), "alloc") => drop(live.insert(number(1), block)),
                    (Ok(block), _) => policy.free(block),
                    (Err(_), "alloc") => figures.failures += 1,
                    (Err(_), _) => {}
                }
            }
            "free" => drop(live.remove(&number(1)).map(|block| policy.free(block))),
            "record_stream" => {
                if let Some(block) = live.get(&number(1)) {
                    policy.record_stream(block, StreamId(number(3)));
                }
            }
            "pending" => policy.device().is_pending = number(1) == 1,
            "empty_cache" => policy.empty_cache(),
            "set_fraction" => policy.set_fraction(fields[2].parse::<f64>().unwrap() / 100.0),
            "reset_peak" => {}
            other => panic!("unknown request {other}"),
        }
        policy.check();
        figures.peak_reserved_bytes = figures.peak_reserved_bytes.max(policy.reserved());
    }
    figures
}

/// The packed policy's figures for a stream, then PyTorch's: native, and with expandable segments.
fn compared(text: &str, capacity_bytes: u64) -> [Figures; 3] {
    let device = || Device { sim: SimDriver::with_capacity(capacity_bytes), is_pending: false };
    let torch = |settings| {
        let config = Config::parse(settings).unwrap().config;
        serve(text, Allocator::new(config, device(), Stats::default()))
    };
    let packed = serve(text, PackedAllocator::new(device(), Stats::default()));
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

fn check_all(folder: &Path) {
    let mut worse = Vec::new();
    for (name, text) in streams(folder) {
        let line = text.lines().find_map(|line| line.strip_prefix("#device_bytes,"));
        let capacity_bytes: u64 = line.unwrap().parse().unwrap();
        for capacity_bytes in [1 << 50, capacity_bytes] {
            let [packed, native, expandable] = compared(&text, capacity_bytes);
            let mib =
                |figures: Figures| format!("{} ({})", figures.peak_reserved_bytes >> 20, figures.failures);
            let row = format!(
                "{name:<32} packed {} native {} expandable {}",
                mib(packed),
                mib(native),
                mib(expandable)
            );
            println!("{row}");
            let least_bytes = native.peak_reserved_bytes.min(expandable.peak_reserved_bytes);
            let least_failures = native.failures.min(expandable.failures);
            if packed.failures > least_failures
                || packed.failures == 0 && packed.peak_reserved_bytes > least_bytes
            {
                worse.push(row);
            }
        }
    }
    assert!(worse.is_empty(), "{worse:#?}");
}

#[test]
fn the_kept_slice_of_the_corpus_never_needs_more_than_with_pytorch() {
    check_all(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus"));
}

#[needs(shared_conformance)]
#[test]
fn the_whole_corpus_never_needs_more_than_with_pytorch() {
    check_all(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/conformance"));
}
