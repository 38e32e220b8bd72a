//! Replays a corpus file through our allocator: [`replay`].

use std::collections::BTreeMap;

use plimsoll_alloc::{Allocation, Allocator, Error, Request, Stats, StreamId};

use super::corpus::{COLUMNS, Corpus, Op, Row};
use super::recorded::Recorded;
use super::report::{Answer, Choice, Difference, Divergence, Report};

/// Replays row by row, up to the first row whose result, statistics or device calls differ, or after which the state is
/// inconsistent.
pub(crate) fn replay(corpus: &Corpus) -> Report {
    let mut run = Run::new(corpus);
    for (nth, row) in corpus.rows.iter().enumerate() {
        if let Err(differences) = run.step(row) {
            let divergence = explain(corpus, nth, differences, run.answer);
            return Report { rows: nth + 1, divergence: Some(divergence) };
        }
    }
    Report { rows: corpus.rows.len(), divergence: None }
}

/// Replays up to the row that differs, and lists the candidate blocks.
fn explain(corpus: &Corpus, nth: usize, differences: Vec<Difference>, ours: Option<u64>) -> Divergence {
    let mut run = Run::new(corpus);
    for row in &corpus.rows[..nth] {
        run.step(row).unwrap_or_else(|_| panic!("line {} was the same the first time", row.line));
    }
    let row = &corpus.rows[nth];
    let choice = match row.op {
        Op::Alloc { bytes, stream, addr, .. } => {
            let request = Request { stream: StreamId(stream), ..Request::of(bytes) };
            let explanation = run.allocator.explain(request).ok();
            explanation.map(|explanation| Choice {
                explanation,
                theirs: Answer::of(addr),
                ours: Answer::of(ours),
            })
        }
        _ => None,
    };
    Divergence { at: row.line, asked: row.text.clone(), differences, choice }
}

struct Run {
    allocator: Allocator<Recorded, Stats>,
    live: BTreeMap<u64, Allocation>,
    /// The last request's address.
    answer: Option<u64>,
}

impl Run {
    fn new(corpus: &Corpus) -> Self {
        let driver = Recorded::new(corpus.device_bytes);
        let stats = Stats::new(&corpus.config);
        let allocator = Allocator::new(corpus.config.clone(), driver, stats);
        Self { allocator, live: BTreeMap::new(), answer: None }
    }

    fn step(&mut self, row: &Row) -> Result<(), Vec<Difference>> {
        self.allocator.driver_mut().expect(&row.calls);
        let failure = self.ask(row.op).err();
        let failure =
            failure.map(|why| Difference { what: "failure".into(), theirs: "none".into(), ours: why });
        let mut differences: Vec<Difference> = failure.into_iter().collect();
        if let Op::Alloc { addr, .. } = row.op {
            differences.extend(Difference::between("address", &shown(addr), &shown(self.answer)));
        }
        let columns = COLUMNS.iter().zip(row.statistics).zip(columns(self.allocator.observer()));
        differences
            .extend(columns.filter_map(|((name, theirs), ours)| Difference::between(name, &theirs, &ours)));
        let left = self.allocator.driver().not_made();
        differences.extend(Difference::between("device calls not made", "[]", &*format!("{left:x?}")));
        if differences.is_empty() { Ok(()) } else { Err(differences) }
    }

    fn ask(&mut self, op: Op) -> Result<(), String> {
        match op {
            Op::Alloc { id, bytes, stream, .. } => self.alloc(id, bytes, StreamId(stream))?,
            Op::Free { id } => {
                self.allocator.free(self.live.remove(&id).ok_or("a free of a block that is not live")?);
            }
            Op::RecordStream { id, stream } => {
                let allocation = self.live.get(&id).ok_or("a use of a block that is not live")?;
                self.allocator.record_stream(allocation, StreamId(stream));
            }
            Op::Pending { on } => self.allocator.driver_mut().pending = on,
            Op::EmptyCache => {
                self.allocator.empty_cache().map_err(|why| why.to_string())?;
            }
            Op::ResetPeak => self.allocator.observer_mut().reset_peak(),
            Op::SetFraction { percent } => {
                self.allocator.set_memory_fraction(percent / 100.0).map_err(|why| why.to_string())?;
            }
        }
        self.check()
    }

    fn alloc(&mut self, id: u64, bytes: u64, stream: StreamId) -> Result<(), String> {
        self.answer = None;
        match self.allocator.malloc(Request { stream, ..Request::of(bytes) }) {
            Ok(allocation) => {
                self.answer = Some(allocation.addr().0);
                self.live.insert(id, allocation);
                Ok(())
            }
            Err(Error::OutOfMemory(_) | Error::Rejected { .. }) => Ok(()),
            Err(why) => Err(why.to_string()),
        }
    }

    fn check(&self) -> Result<(), String> {
        self.allocator.check().map_err(|broken| broken.to_string())?;
        self.allocator.observer().check(&self.allocator.segments()).map_err(|broken| broken.to_string())
    }
}

fn shown(addr: Option<u64>) -> String {
    addr.map_or_else(|| "out of memory".to_owned(), |addr| format!("{addr:#x}"))
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
