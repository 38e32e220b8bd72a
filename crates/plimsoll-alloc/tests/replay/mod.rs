//! Replays a corpus file: each row is asked of our allocator and everything it shows is compared.

mod corpus;
mod recorded;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use plimsoll_alloc::{Allocation, Allocator, Error, Request, Stats, StreamId};

pub(crate) use corpus::{COLUMNS, Corpus, Op, Row};
pub(crate) use recorded::Recorded;

/// A corpus file on its way through our allocator.
pub(crate) struct Replay {
    allocator: Allocator<Recorded, Stats>,
    live: BTreeMap<u64, Allocation>,
}

impl Replay {
    pub(crate) fn new(corpus: &Corpus) -> Self {
        let driver = Recorded::new(corpus.device_bytes);
        Self {
            allocator: Allocator::new(corpus.config.clone(), driver, Stats::default()),
            live: BTreeMap::new(),
        }
    }

    /// Asks one row. The error says what differs: in the answer, the statistics, the device calls, or the
    /// soundness of the state.
    pub(crate) fn step(&mut self, row: &Row) -> Result<(), String> {
        self.allocator.driver_mut().expect(&row.calls);
        self.ask(row.op)?;
        self.compare(row)?;
        let left = self.allocator.driver().not_made();
        if !left.is_empty() {
            return Err(format!("device calls expected, not made: {left:?}"));
        }
        self.allocator.check().map_err(|broken| broken.to_string())?;
        self.allocator.observer().check(&self.allocator.segments()).map_err(|broken| broken.to_string())
    }

    fn ask(&mut self, op: Op) -> Result<(), String> {
        match op {
            Op::Alloc { id, bytes, stream, addr } => self.alloc(id, bytes, stream, addr)?,
            Op::Free { id } => self.allocator.free(self.live.remove(&id).ok_or("a free of nothing")?),
            Op::EmptyCache => {
                self.allocator.empty_cache().map_err(|why| why.to_string())?;
            }
            Op::ResetPeak => self.allocator.observer_mut().reset_peak(),
            Op::SetFraction { percent } => {
                self.allocator.set_memory_fraction(percent / 100.0).map_err(|why| why.to_string())?;
            }
        }
        Ok(())
    }

    fn alloc(&mut self, id: u64, bytes: u64, stream: u64, expected: Option<u64>) -> Result<(), String> {
        let got = match self.allocator.malloc(Request { stream: StreamId(stream), ..Request::of(bytes) }) {
            Ok(allocation) => {
                let addr = allocation.addr().0;
                self.live.insert(id, allocation);
                Some(addr)
            }
            Err(Error::OutOfMemory(_)) => None,
            Err(why) => return Err(why.to_string()),
        };
        if got == expected {
            return Ok(());
        }
        let show = |addr: Option<u64>| addr.map_or("out of memory".to_owned(), |addr| format!("{addr:x}"));
        Err(format!("address: expected {}, got {}", show(expected), show(got)))
    }

    /// The statistics of a row, with every column that differs.
    fn compare(&self, row: &Row) -> Result<(), String> {
        let got = columns(self.allocator.observer());
        if got == row.statistics {
            return Ok(());
        }
        let mut message = String::new();
        for ((column, expected), got) in COLUMNS.iter().zip(row.statistics).zip(got) {
            let mark = if expected == got { "" } else { "  <-- differs" };
            writeln!(message, "{column:>22}: expected {expected}, got {got}{mark}").unwrap();
        }
        Err(message)
    }
}

/// Our statistics in the order of [`COLUMNS`].
fn columns(stats: &Stats) -> [i64; 15] {
    [
        stats.allocated_bytes().all.current,
        stats.reserved_bytes().all.current,
        stats.active_bytes().all.current,
        stats.inactive_split_bytes().all.current,
        stats.requested_bytes().all.current,
        stats.allocation().all.current,
        stats.segment().all.current,
        stats.active().all.current,
        stats.inactive_split().all.current,
        stats.num_alloc_retries,
        stats.num_ooms,
        stats.num_device_alloc,
        stats.num_device_free,
        stats.allocated_bytes().all.peak,
        stats.reserved_bytes().all.peak,
    ]
}
