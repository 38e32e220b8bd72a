//! Replays a few requests on a simulated device, and shows where PyTorch's allocator places them:
//! `cargo run -p plimsoll-alloc --example fragmentation`.

#![allow(clippy::print_stdout, reason = "a program for a terminal")]

use plimsoll_alloc::{Allocator, Bytes, Config, Error, Request, SimDriver, Stats};

fn main() -> Result<(), Error> {
    let mut allocator =
        Allocator::new(Config::default(), SimDriver::with_capacity(64 << 20), Stats::default());
    // Three blocks of one segment. The one in the middle is freed, and a request larger than the hole does not fit there.
    let first = allocator.malloc(Request::of(6 << 20))?;
    let middle = allocator.malloc(Request::of(6 << 20))?;
    let last = allocator.malloc(Request::of(6 << 20))?;
    allocator.free(middle);
    let large = allocator.malloc(Request::of(9 << 20))?;
    for (name, block) in [("first", &first), ("last", &last), ("large", &large)] {
        println!("{name:>6}: {} at {:?}", Bytes(block.bytes()), block.addr());
    }
    println!("reserved: {}", Bytes(allocator.reserved()));
    for block in [first, last, large] {
        allocator.free(block);
    }
    let peak = allocator.observer().memory_stats()["allocated_bytes.all.peak"];
    println!("peak of allocated bytes: {}", Bytes(peak as u64));
    Ok(())
}
