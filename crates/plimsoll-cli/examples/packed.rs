//! Serves recorded requests on this machine's first GPU under three policies, and prints what each reserves, its device
//! calls and its time: `cargo run --release -p plimsoll-cli --example packed -- [--check] FILE…`.
//!
//! A file has rows `alloc,id,bytes,stream` and `free,id`, like `crates/plimsoll-trace/tests/packed/gpt2_varlen.csv.gz`.
//! All requests are served three times in a row; the third round shows the steady state. With `--check`, a round of the
//! packed policy follows that writes a number at both ends of each block and in each of its pages, and reads them
//! before the block is freed. A number that changed means that two blocks share memory.

#![allow(clippy::print_stdout, reason = "a program for a terminal")]

use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use plimsoll_alloc::{
    Addr, Allocation, Allocator, Config, Event, Observer, PackedAllocation, PackedAllocator, Request,
    StreamId,
};
use plimsoll_cuda::{CudaMemory, Gpu, Search};
use plimsoll_trace::conformance;

type Failure = Box<dyn Error>;

const PAGE_BYTES: u64 = 2 << 20;
const ROUNDS: usize = 3;

fn main() -> Result<(), Failure> {
    let mut files: Vec<String> = std::env::args().skip(1).collect();
    let is_checked = files.iter().any(|file| file == "--check");
    files.retain(|file| file != "--check");
    let gpu = Gpu::open(0, Search::from_env(), 0)?;
    println!("{}, {} bytes", gpu.facts().name, gpu.facts().total_bytes);
    for file in files {
        let ops = read(&conformance::read(Path::new(&file))?)?;
        println!("{file}: {} bytes in use at the peak", in_use_bytes(&ops));
        for settings in ["", "expandable_segments:True"] {
            let config = Config::parse(settings)?.config;
            let mut policy = Allocator::new(config, CudaMemory::new(gpu.clone()), Calls::default());
            rounds(if settings.is_empty() { "native" } else { settings }, &ops, &gpu, &mut policy)?;
        }
        let mut policy = PackedAllocator::new(CudaMemory::new(gpu.clone()), Calls::default());
        rounds("packed", &ops, &gpu, &mut policy)?;
        println!("  {:?}", policy.calls());
        if is_checked {
            let numbers = check(&ops, &gpu, &mut policy)?;
            println!("  checked: {numbers} numbers in blocks are as they were written");
        }
    }
    Ok(())
}

#[derive(Clone, Copy)]
enum Op {
    Alloc { id: u64, bytes: u64 },
    Free { id: u64 },
}

fn read(text: &str) -> Result<Vec<Op>, Failure> {
    let mut ops = Vec::new();
    for row in text.lines() {
        let fields: Vec<&str> = row.split(',').collect();
        match fields[..] {
            ["alloc", id, bytes, ..] => ops.push(Op::Alloc { id: id.parse()?, bytes: bytes.parse()? }),
            ["free", id, ..] => ops.push(Op::Free { id: id.parse()? }),
            _ => {}
        }
    }
    Ok(ops)
}

/// The maximum number of bytes in use at one time, with each request rounded to 512 bytes.
fn in_use_bytes(ops: &[Op]) -> u64 {
    let (mut live, mut now, mut peak) = (BTreeMap::new(), 0, 0);
    for op in ops {
        match *op {
            Op::Alloc { id, bytes } => now += *live.entry(id).or_insert(bytes.next_multiple_of(512)),
            Op::Free { id } => now -= live.remove(&id).unwrap_or(0),
        }
        peak = peak.max(now);
    }
    peak
}

/// Counts an allocator's device calls.
#[derive(Default)]
struct Calls(u64);

impl Observer for Calls {
    fn on(&mut self, event: &Event) {
        let is_call = matches!(
            event,
            Event::SegmentAlloc { .. }
                | Event::SegmentFree { .. }
                | Event::SegmentMap { .. }
                | Event::SegmentUnmap { .. }
        );
        self.0 += u64::from(is_call);
    }
}

trait Policy {
    type Block;
    fn malloc(&mut self, bytes: u64) -> Result<Self::Block, plimsoll_alloc::Error>;
    fn free(&mut self, block: Self::Block);
    fn reserved(&self) -> u64;
    fn device_calls(&self) -> u64;
}

impl Policy for Allocator<CudaMemory, Calls> {
    type Block = Allocation;
    fn malloc(&mut self, bytes: u64) -> Result<Allocation, plimsoll_alloc::Error> {
        Self::malloc(self, Request::of(bytes))
    }
    fn free(&mut self, block: Allocation) {
        Self::free(self, block);
    }
    fn reserved(&self) -> u64 {
        Self::reserved(self)
    }
    fn device_calls(&self) -> u64 {
        self.observer().0
    }
}

impl Policy for PackedAllocator<CudaMemory, Calls> {
    type Block = PackedAllocation;
    fn malloc(&mut self, bytes: u64) -> Result<PackedAllocation, plimsoll_alloc::Error> {
        Self::malloc(self, Request::of(bytes))
    }
    fn free(&mut self, block: PackedAllocation) {
        Self::free(self, block);
    }
    fn reserved(&self) -> u64 {
        Self::reserved(self)
    }
    fn device_calls(&self) -> u64 {
        self.calls().total()
    }
}

fn rounds<P: Policy>(name: &str, ops: &[Op], gpu: &Arc<Gpu>, policy: &mut P) -> Result<(), Failure> {
    let (free_before, _) = gpu.memory_info()?;
    let (mut peak, mut rows) = (0, Vec::new());
    for _ in 0..ROUNDS {
        let (calls, mut spent, mut live) = (policy.device_calls(), Duration::ZERO, BTreeMap::new());
        for op in ops {
            let began = Instant::now();
            match *op {
                Op::Alloc { id, bytes } => drop(live.insert(id, policy.malloc(bytes)?)),
                Op::Free { id } => drop(live.remove(&id).map(|block| policy.free(block))),
            }
            spent += began.elapsed();
            peak = peak.max(policy.reserved());
        }
        live.into_values().for_each(|block| policy.free(block));
        rows.push(format!("{} calls, {:.1} ms", policy.device_calls() - calls, spent.as_secs_f64() * 1e3));
    }
    let (free_after, _) = gpu.memory_info()?;
    let ratio = peak as f64 / in_use_bytes(ops) as f64;
    let taken = free_before.saturating_sub(free_after);
    println!(
        "  {name}: {peak} bytes reserved, {ratio:.4} x in use; the device has {taken} bytes less; {}",
        rows.join("; ")
    );
    Ok(())
}

/// One more round, in which each block keeps numbers. Returns how many were read back.
fn check(
    ops: &[Op],
    gpu: &Arc<Gpu>,
    policy: &mut PackedAllocator<CudaMemory, Calls>,
) -> Result<u64, Failure> {
    let (mut live, mut numbers, on) = (BTreeMap::new(), 0, StreamId(0));
    for op in ops {
        match *op {
            Op::Alloc { id, bytes } => {
                let block = policy.malloc(Request::of(bytes))?;
                for at in places(block.addr(), block.bytes()) {
                    gpu.write(at, &(id ^ at).to_le_bytes(), on)?;
                }
                live.insert(id, block);
            }
            Op::Free { id } => {
                let Some(block) = live.remove(&id) else { continue };
                for at in places(block.addr(), block.bytes()) {
                    let mut found = Vec::new();
                    gpu.read(at, 8, &mut found, on)?;
                    if found != (id ^ at).to_le_bytes() {
                        return Err(format!(
                            "block {id} of {bytes} bytes changed at {at:#x}",
                            bytes = block.bytes()
                        )
                        .into());
                    }
                    numbers += 1;
                }
                policy.free(block);
            }
        }
    }
    live.into_values().for_each(|block| policy.free(block));
    Ok(numbers)
}

/// Both ends of a block, and the start of each page in it.
fn places(addr: Addr, bytes: u64) -> impl Iterator<Item = u64> {
    let (first, last) = (addr.0, (addr.0 + bytes).saturating_sub(8));
    let pages = (first.next_multiple_of(PAGE_BYTES)..last).step_by(PAGE_BYTES as usize);
    let ends = [first, last].into_iter().filter(move |_| bytes > 0);
    ends.chain(pages.filter(move |&at| at > first))
}
