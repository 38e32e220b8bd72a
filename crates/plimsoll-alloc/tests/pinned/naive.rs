//! The rules of pinned memory, implemented as simply as possible: [`Naive`]. No buckets and no queues per pool: one
//! list of blocks in the order in which they became free, and one list of events.

use plimsoll_alloc::{Addr, DeviceStream};

pub(crate) const PAGE_BYTES: u64 = 4096;

/// An allocator and its host in one.
pub(crate) struct Naive {
    pub(crate) round_threshold_bytes: u64,
    pub(crate) max_cached_bytes: u64,
    handed_out_bytes: u64,
    held: Vec<(Addr, u64, Vec<DeviceStream>)>,
    /// Pending frees, oldest first: (address, size, stream, done).
    pending: Vec<(Addr, u64, DeviceStream, bool)>,
    free: Vec<(Addr, u64)>,
}

impl Naive {
    pub(crate) fn new(round_threshold_bytes: u64, max_cached_bytes: u64) -> Self {
        let (held, pending, free) = (Vec::new(), Vec::new(), Vec::new());
        Self { round_threshold_bytes, max_cached_bytes, handed_out_bytes: 0, held, pending, free }
    }

    fn poll(&mut self) {
        while self.pending.first().is_some_and(|&(.., done)| done) {
            let (addr, bytes, ..) = self.pending.remove(0);
            if self.pending.iter().all(|&(other, ..)| other != addr) {
                self.settle(addr, bytes);
            }
        }
    }

    fn settle(&mut self, addr: Addr, bytes: u64) {
        if bytes <= self.max_cached_bytes {
            self.free.push((addr, bytes));
        }
    }

    pub(crate) fn alloc(&mut self, bytes: u64) -> Addr {
        self.poll();
        let rounds = bytes <= self.round_threshold_bytes && bytes <= self.max_cached_bytes;
        let bytes = if rounds { bytes.next_power_of_two() } else { bytes };
        let same_bucket = |size: u64| size.next_power_of_two() == bytes.next_power_of_two();
        let fits = self.free.iter().rposition(|&(_, size)| same_bucket(size) && size >= bytes);
        let (addr, bytes) = match fits {
            Some(nth) => self.free.remove(nth),
            None => {
                let addr = Addr(0x1000_0000_0000 + self.handed_out_bytes);
                self.handed_out_bytes += bytes.next_multiple_of(PAGE_BYTES);
                (addr, bytes)
            }
        };
        self.held.push((addr, bytes, Vec::new()));
        addr
    }

    pub(crate) fn use_on(&mut self, addr: Addr, on: DeviceStream) {
        let (.., streams) = self.held.iter_mut().find(|(held, ..)| *held == addr).unwrap();
        if !streams.contains(&on) {
            streams.push(on);
        }
    }

    pub(crate) fn free(&mut self, addr: Addr) {
        let nth = self.held.iter().position(|(held, ..)| *held == addr).unwrap();
        let (addr, bytes, streams) = self.held.remove(nth);
        if streams.is_empty() {
            self.settle(addr, bytes);
        }
        self.pending.extend(streams.into_iter().map(|on| (addr, bytes, on, false)));
    }

    pub(crate) fn finish(&mut self, on: DeviceStream) {
        if let Some(next) = self.pending.iter_mut().find(|(_, _, stream, done)| *stream == on && !done) {
            next.3 = true;
        }
    }

    pub(crate) fn empty_cache(&mut self) {
        self.poll();
        self.free.clear();
    }

    /// Active bytes, and total bytes.
    pub(crate) fn active_and_all_bytes(&self) -> (u64, u64) {
        let mut waiting: Vec<(Addr, u64)> =
            self.pending.iter().map(|&(addr, bytes, ..)| (addr, bytes)).collect();
        waiting.sort();
        waiting.dedup();
        let held: u64 = self.held.iter().map(|&(_, bytes, _)| bytes).sum();
        let active = held + waiting.iter().map(|&(_, bytes)| bytes).sum::<u64>();
        (active, active + self.free.iter().map(|&(_, bytes)| bytes).sum::<u64>())
    }
}
