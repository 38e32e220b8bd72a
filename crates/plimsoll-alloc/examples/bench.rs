//! What a request costs, in the mixes of PyTorch's bench: same requests, same order, same lines on stdout,
//! so that two outputs can be read side by side. Requests are drawn before the clock starts; each mix runs
//! twice and the second run counts.
//!
//! `cargo run --release -p plimsoll-alloc --example bench [MIX…]`: without a name, all mixes. A name is
//! `pair` or `random`, or one with its number (`pair/512`, `random/10000`), to count instructions of.

#![allow(clippy::print_stdout, reason = "a bench prints what it found")]

use std::time::Instant;

use plimsoll_alloc::{Allocation, Config, DeviceMemory, Error, Request, SimDriver};

const CAPACITY_BYTES: u64 = 200_000_000_000;
const PAIRS: u32 = 2_000_000;
const PAIR_BYTES: [u64; 3] = [512, 65_536, 4 << 20];
const MIXES: [Mix; 4] = [
    Mix { name: "small", most_bytes: 1 << 20, live: 100, requests: 1_000_000 },
    Mix { name: "small", most_bytes: 1 << 20, live: 10_000, requests: 1_000_000 },
    Mix { name: "mixed256", most_bytes: 256 << 20, live: 200, requests: 1_000_000 },
    Mix { name: "mixed64", most_bytes: 64 << 20, live: 2000, requests: 500_000 },
];

fn main() -> Result<(), Error> {
    let names: Vec<String> = std::env::args().skip(1).collect();
    let asked = |kind: &str, number: u64| {
        names.is_empty() || names.iter().any(|name| *name == kind || *name == format!("{kind}/{number}"))
    };
    let memory = DeviceMemory::new(Config::default(), SimDriver::with_capacity(CAPACITY_BYTES));
    for bytes in PAIR_BYTES.into_iter().filter(|&bytes| asked("pair", bytes)) {
        println!("pair bytes={bytes} ns={:.1}", pair_ns(&memory, bytes)?);
    }
    for mix in MIXES.iter().filter(|mix| asked("random", mix.live)) {
        println!("random name={} live={} ns={:.1}", mix.name, mix.live, mix.ns(&memory)?);
    }
    Ok(())
}

/// Allocates and frees blocks of one size, with one more of it kept alive.
fn pair_ns(memory: &DeviceMemory, bytes: u64) -> Result<f64, Error> {
    let keep = memory.alloc(Request::of(bytes))?;
    let mut ns = 0.0;
    for _ in 0..2 {
        let start = Instant::now();
        for _ in 0..PAIRS {
            memory.free(memory.alloc(Request::of(bytes))?);
        }
        ns = start.elapsed().as_nanos() as f64 / f64::from(PAIRS);
    }
    memory.free(keep);
    Ok(ns)
}

/// Again and again: a random slot, whose block is freed, and a new one of log-uniform size.
struct Mix {
    name: &'static str,
    most_bytes: u64,
    live: u64,
    requests: u32,
}

impl Mix {
    const LEAST_BYTES: f64 = 512.0;

    fn ns(&self, memory: &DeviceMemory) -> Result<f64, Error> {
        let requests = self.draw();
        let mut slots: Vec<Option<Allocation>> = (0..self.live).map(|_| None).collect();
        let mut ns = 0.0;
        for _ in 0..2 {
            let start = Instant::now();
            for &(slot, bytes) in &requests {
                if let Some(old) = slots[slot].take() {
                    memory.free(old);
                }
                slots[slot] = Some(memory.alloc(Request::of(bytes))?);
            }
            ns = start.elapsed().as_nanos() as f64 / f64::from(self.requests);
        }
        for old in slots.into_iter().flatten() {
            memory.free(old);
        }
        memory.empty_cache()?;
        Ok(ns)
    }

    /// The slot and the size of each request.
    fn draw(&self) -> Vec<(usize, u64)> {
        let mut random = Mt19937::new(1);
        let range = self.most_bytes as f64 / Self::LEAST_BYTES;
        let mut draw = || {
            let slot = (random.next() % self.live) as usize;
            let unit = (random.next() >> 11) as f64 / (1_u64 << 53) as f64;
            (slot, (Self::LEAST_BYTES * range.powf(unit)) as u64)
        };
        (0..self.requests).map(|_| draw()).collect()
    }
}

/// C++'s `std::mt19937_64`, so that both benches draw the same numbers.
struct Mt19937 {
    state: [u64; Self::WORDS],
    at: usize,
}

impl Mt19937 {
    const WORDS: usize = 312;

    fn new(seed: u64) -> Self {
        let mut state = [seed; Self::WORDS];
        for i in 1..Self::WORDS {
            let before = state[i - 1] ^ (state[i - 1] >> 62);
            state[i] = before.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(i as u64);
        }
        Self { state, at: 0 }
    }

    /// The next number. One word is renewed each time, just before it is read.
    fn next(&mut self) -> u64 {
        let word = |offset| self.state[(self.at + offset) % Self::WORDS];
        let joined = (word(0) & !0x7fff_ffff) | (word(1) & 0x7fff_ffff);
        let twist = if joined & 1 == 1 { 0xb502_6f5a_a966_19e9 } else { 0 };
        let renewed = word(156) ^ (joined >> 1) ^ twist;
        self.state[self.at] = renewed;
        self.at = (self.at + 1) % Self::WORDS;
        let x = renewed ^ ((renewed >> 29) & 0x5555_5555_5555_5555);
        let x = x ^ ((x << 17) & 0x71d6_7fff_eda6_0000);
        let x = x ^ ((x << 37) & 0xfff7_eee0_0000_0000);
        x ^ (x >> 43)
    }
}
