//! Prints all GPUs of the table, or one of them: `cargo run -p plimsoll-gpu --example datasheet [NAME]`.

#![allow(clippy::print_stdout, reason = "a program for a terminal")]

use plimsoll_gpu::{GPUS, Gpu, named};

fn main() {
    match std::env::args().nth(1).map(|name| named(&name)) {
        Some(Ok(gpu)) => println!("{gpu:#?}"),
        Some(Err(why)) => println!("{why}"),
        None => GPUS.iter().for_each(line),
    }
}

fn line(gpu: &Gpu) {
    let gib = gpu.memory_bytes as f64 / f64::from(1 << 30);
    let gb_per_s = gpu.bandwidth.memory_bytes_per_s / 1_000_000_000;
    println!("{:<16} {gib:>6.1} GiB {gb_per_s:>6} GB/s  {}", gpu.name, gpu.card);
}
