//! The mixes of requests in the oracle's own bench: the same requests in the same order, drawn before the
//! clock starts. `meter.rs` and `callgrind.rs` measure them.

use plimsoll_alloc::{
    Allocation, Allocator, Callers, Config, DeviceMemory, Error, HistoryOptions, Ledger, Request, SimDriver,
    Stats,
};

use super::meter::{Cost, Meter};
use super::mt19937::Mt19937;

/// The device's memory; PyTorch's bench gets the same.
pub(super) const CAPACITY_BYTES: u64 = 200_000_000_000;
/// The maximum number of history entries, as in PyTorch's documentation. Without a maximum, the system's
/// page faults would also be measured.
pub(super) const HISTORY_ENTRIES: usize = 100_000;

/// All mixes, in the order in which they run.
pub(super) const MIXES: [Mix; 7] = [
    Mix { pattern: Pattern::Pair { bytes: 512 }, requests: 2_000_000 },
    Mix { pattern: Pattern::Pair { bytes: 65_536 }, requests: 2_000_000 },
    Mix { pattern: Pattern::Pair { bytes: 4 << 20 }, requests: 2_000_000 },
    Mix { pattern: Pattern::Random { name: "small", most_bytes: 1 << 20, live: 100 }, requests: 1_000_000 },
    Mix {
        pattern: Pattern::Random { name: "small", most_bytes: 1 << 20, live: 10_000 },
        requests: 1_000_000,
    },
    Mix {
        pattern: Pattern::Random { name: "mixed256", most_bytes: 256 << 20, live: 200 },
        requests: 1_000_000,
    },
    Mix { pattern: Pattern::Random { name: "mixed64", most_bytes: 64 << 20, live: 2000 }, requests: 500_000 },
];

/// A number of requests in one pattern.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Mix {
    pattern: Pattern,
    /// The number of pairs, or of frees followed by an allocation.
    pub(super) requests: u32,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Pattern {
    /// Allocates and frees blocks of one size, while one more block of that size stays live.
    Pair { bytes: u64 },
    /// Repeatedly picks a random slot, frees its block, and allocates a new one of log-uniform size.
    Random { name: &'static str, most_bytes: u64, live: u64 },
}

/// The allocator without a lock, with the same statistics. The difference is the cost of the handle.
pub(super) type Unshared = Allocator<SimDriver, (Stats, Ledger, plimsoll_alloc::History)>;

/// The target of a mix: the handle, or the allocator inside it.
trait Target {
    fn alloc(&mut self, request: Request) -> Result<Allocation, Error>;
    fn free(&mut self, allocation: Allocation);
    fn empty_cache(&mut self) -> Result<u64, Error>;
}

impl Target for &DeviceMemory {
    fn alloc(&mut self, request: Request) -> Result<Allocation, Error> {
        DeviceMemory::alloc(self, request)
    }

    fn free(&mut self, allocation: Allocation) {
        DeviceMemory::free(self, allocation);
    }

    fn empty_cache(&mut self) -> Result<u64, Error> {
        DeviceMemory::empty_cache(self)
    }
}

impl Target for Unshared {
    fn alloc(&mut self, request: Request) -> Result<Allocation, Error> {
        self.malloc(request)
    }

    fn free(&mut self, allocation: Allocation) {
        Allocator::free(self, allocation);
    }

    fn empty_cache(&mut self) -> Result<u64, Error> {
        Allocator::empty_cache(self)
    }
}

/// Whether history is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum History {
    Off,
    On,
}

impl std::str::FromStr for Mix {
    type Err = String;

    fn from_str(name: &str) -> Result<Mix, String> {
        let names = || MIXES.map(|mix| format!("`{}`", mix.name())).join(", ");
        MIXES.into_iter().find(|mix| mix.name() == name).ok_or_else(|| format!("the mixes are {}", names()))
    }
}

impl Mix {
    /// The name in the oracle's bench: `pair bytes=512`, `random name=small live=100`.
    pub(super) fn name(&self) -> String {
        match self.pattern {
            Pattern::Pair { bytes } => format!("pair bytes={bytes}"),
            Pattern::Random { name, live, .. } => format!("random name={name} live={live}"),
        }
    }

    /// The same mix with at most `most` requests.
    pub(super) fn at_most(self, most: u32) -> Mix {
        Mix { requests: self.requests.min(most), ..self }
    }

    /// A device with enough memory for any mix.
    pub(super) fn device() -> DeviceMemory {
        DeviceMemory::new(Config::default(), SimDriver::with_capacity(CAPACITY_BYTES))
    }

    /// The same device, with an allocator that has no lock.
    pub(super) fn unshared() -> Unshared {
        let observer = (Stats::default(), Ledger::default(), plimsoll_alloc::History::default());
        Allocator::new(Config::default(), SimDriver::with_capacity(CAPACITY_BYTES), observer)
    }

    /// The cost of a request of the mix without a lock and with the history off.
    pub(super) fn cost_without_lock(&self, meter: &mut Meter, memory: &mut Unshared) -> Result<Cost, Error> {
        self.run(meter, memory)
    }

    /// Runs the mix twice on a new device. Returns the cost of a request in the second run.
    pub(super) fn cost(
        &self,
        meter: &mut Meter,
        memory: &DeviceMemory,
        history: History,
    ) -> Result<Cost, Error> {
        if history == History::On {
            let options = HistoryOptions { max_entries: HISTORY_ENTRIES, skip: Vec::new() };
            let start = quanta::Instant::now();
            let clock = move || start.elapsed().as_micros() as u64;
            memory.record_history(options, Callers::AsGiven, Box::new(clock));
        }
        let cost = self.run(meter, &mut &*memory);
        memory.stop_history();
        cost
    }

    fn run<T: Target>(&self, meter: &mut Meter, memory: &mut T) -> Result<Cost, Error> {
        match self.pattern {
            Pattern::Pair { bytes } => self.pairs(meter, memory, bytes),
            Pattern::Random { most_bytes, live, .. } => {
                self.random(meter, memory, live, &self.draw(most_bytes, live))
            }
        }
    }

    fn pairs<T: Target>(&self, meter: &mut Meter, memory: &mut T, bytes: u64) -> Result<Cost, Error> {
        let keep = memory.alloc(Request::of(bytes))?;
        let cost = meter.second(self.requests, || {
            for _ in 0..self.requests {
                let allocation = memory.alloc(Request::of(bytes))?;
                memory.free(allocation);
            }
            Ok(())
        });
        memory.free(keep);
        cost
    }

    fn random<T: Target>(
        &self,
        meter: &mut Meter,
        memory: &mut T,
        live: u64,
        requests: &[(usize, u64)],
    ) -> Result<Cost, Error> {
        let mut slots: Vec<Option<Allocation>> = (0..live).map(|_| None).collect();
        let cost = meter.second(self.requests, || {
            for &(slot, bytes) in requests {
                if let Some(old) = slots[slot].take() {
                    memory.free(old);
                }
                slots[slot] = Some(memory.alloc(Request::of(bytes))?);
            }
            Ok(())
        });
        slots.into_iter().flatten().for_each(|old| memory.free(old));
        memory.empty_cache()?;
        cost
    }

    /// The slot and the size of each request.
    fn draw(&self, most_bytes: u64, live: u64) -> Vec<(usize, u64)> {
        const LEAST_BYTES: f64 = 512.0;
        let mut random = Mt19937::new(1);
        let range = most_bytes as f64 / LEAST_BYTES;
        let mut draw = || {
            let slot = (random.next() % live) as usize;
            let unit = (random.next() >> 11) as f64 / (1_u64 << 53) as f64;
            (slot, (LEAST_BYTES * range.powf(unit)) as u64)
        };
        (0..self.requests).map(|_| draw()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mix_is_found_by_its_name() {
        assert!(MIXES.into_iter().all(|mix| mix.name().parse() == Ok(mix)));
        let unknown = "pair bytes=1".parse::<Mix>().expect_err("no such mix");
        assert!(
            unknown.contains("`pair bytes=512`, ") && unknown.contains("`random name=mixed64 live=2000`")
        );
    }
}
