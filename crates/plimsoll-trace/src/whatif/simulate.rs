//! Runs a program on our allocator with a simulated device: [`simulate`].

use plimsoll_alloc::{
    Allocation, Allocator, Config, Error, Event, Observer, PoolId, Request, SimDriver, StreamId, Waiting,
};

use super::Outcome;
use super::program::{Program, Step};
use crate::snapshot::{EventIndex, PoolIndex};
use crate::still_needed::StillNeeded;

/// The size of an unlimited device. Address space is reserved in proportion to it, so it is finite.
const BOUNDLESS_BYTES: u64 = 1 << 50;

/// Accumulates the figures of one row.
#[derive(Default)]
struct Tally {
    allocated_bytes: u64,
    reserved_bytes: u64,
    outcome: Outcome,
}

impl Observer for Tally {
    #[inline]
    fn on(&mut self, event: &Event) {
        match event {
            Event::Alloc { block, .. } => {
                self.allocated_bytes += block.bytes;
                self.outcome.peak_allocated_bytes =
                    self.outcome.peak_allocated_bytes.max(self.allocated_bytes);
            }
            Event::Free { block, .. } => self.allocated_bytes -= block.bytes,
            Event::SegmentAlloc { memory, .. } => {
                self.outcome.segment_allocs += 1;
                self.reserve(memory.bytes);
            }
            Event::SegmentMap { memory, .. } => {
                self.outcome.maps += 1;
                self.reserve(memory.bytes);
            }
            Event::SegmentFree { memory, .. } => {
                self.outcome.segment_frees += 1;
                self.reserved_bytes -= memory.bytes;
            }
            Event::SegmentUnmap { memory } => {
                self.outcome.unmaps += 1;
                self.reserved_bytes -= memory.bytes;
            }
            Event::Retry { .. } => self.outcome.retries += 1,
            _ => {}
        }
    }
}

impl Tally {
    fn reserve(&mut self, bytes: u64) {
        self.reserved_bytes += bytes;
        self.outcome.peak_reserved_bytes = self.outcome.peak_reserved_bytes.max(self.reserved_bytes);
    }
}

/// The contents of a slot.
enum Kept {
    Nothing,
    Held(Allocation),
    Waiting(Waiting),
}

struct Run<'a> {
    program: &'a Program,
    allocator: Allocator<SimDriver, Tally>,
    kept: Vec<Kept>,
    waiting: usize,
}

/// Runs the program. If a request fails, the program continues without it.
pub(super) fn simulate(program: &Program, config: &Config, capacity_bytes: Option<u64>) -> Outcome {
    let mut run = Run::new(program, config, capacity_bytes);
    for step in &program.steps {
        run.step(step);
    }
    std::mem::take(&mut run.allocator.observer_mut().outcome)
}

/// Whether the setting serves the last request that failed in the recording, and then everything that was still needed,
/// all live at the same time. If the sizes of the rest are unknown, their sum must fit in addition to what is
/// allocated.
pub(super) fn serves_rest(
    program: &Program,
    config: &Config,
    capacity_bytes: Option<u64>,
    rest: &StillNeeded,
) -> bool {
    let is_failed = |step: &Step| matches!(step, Step::Failed { .. });
    let Some(last) = program.steps.iter().rposition(is_failed) else { return false };
    let Step::Failed { pool, bytes, stream } = program.steps[last] else { return false };
    let mut run = Run::new(program, config, capacity_bytes);
    program.steps[..last].iter().for_each(|step| run.step(step));
    let requests = std::iter::once(bytes).chain(rest.requests.iter().copied());
    // The served blocks are never freed, because the simulated device ends with this function.
    let is_served = requests.map(|bytes| run.ask(pool, bytes, stream)).all(|served| served.is_some());
    let unlisted = if rest.requests.is_empty() { rest.bytes } else { 0 };
    let needed = run.allocator.observer_mut().allocated_bytes.saturating_add(unlisted);
    is_served && capacity_bytes.is_none_or(|capacity| needed <= capacity)
}

impl<'a> Run<'a> {
    fn new(program: &'a Program, config: &Config, capacity_bytes: Option<u64>) -> Self {
        let driver = SimDriver::with_capacity(capacity_bytes.unwrap_or(BOUNDLESS_BYTES));
        let mut allocator = Allocator::new(config.clone(), driver, Tally::default());
        for &pool in program.pools.iter().filter(|&&pool| pool != PoolId::DEFAULT) {
            allocator.create_pool(pool).expect("a pool with a name of its own");
        }
        let kept = (0..program.places).map(|_| Kept::Nothing).collect();
        Self { program, allocator, kept, waiting: 0 }
    }

    #[inline]
    fn step(&mut self, step: &Step) {
        match *step {
            Step::Alloc { place, pool, bytes, stream, at } => match self.ask(pool, bytes, stream) {
                Some(allocation) => self.kept[place as usize] = Kept::Held(allocation),
                None => self.note_failure(at),
            },
            Step::Free(place) | Step::Complete(place) => self.let_go(place as usize),
            Step::FreeLater(place) => {
                let kept = &mut self.kept[place as usize];
                if let Kept::Held(allocation) = std::mem::replace(kept, Kept::Nothing)
                    && let Some(waiting) = self.allocator.free_later(allocation)
                {
                    *kept = Kept::Waiting(waiting);
                    self.waiting += 1;
                }
            }
            // The simulated device never fails to free a segment.
            Step::EmptyCache => drop(self.allocator.empty_cache()),
            Step::Failed { pool, bytes, stream } => {
                let served = self.ask(pool, bytes, stream);
                self.allocator.observer_mut().outcome.serves.push(served.is_some());
                if let Some(allocation) = served {
                    self.allocator.free(allocation);
                }
            }
        }
    }

    #[inline]
    fn let_go(&mut self, place: usize) {
        match std::mem::replace(&mut self.kept[place], Kept::Nothing) {
            Kept::Nothing => {}
            Kept::Held(allocation) => self.allocator.free(allocation),
            Kept::Waiting(waiting) => {
                self.waiting -= 1;
                self.allocator.complete(waiting);
            }
        }
    }

    /// Requests memory. If that fails, first waits for the blocks that wait for a stream, as PyTorch does, and retries.
    #[inline]
    fn ask(&mut self, pool: Option<PoolIndex>, bytes: u64, stream: StreamId) -> Option<Allocation> {
        let pool = pool.map_or(PoolId::DEFAULT, |pool| self.program.pools[pool.index()]);
        let request = Request { stream, pool, ..Request::of(bytes) };
        match self.allocator.malloc(request) {
            Ok(allocation) => Some(allocation),
            Err(Error::OutOfMemory(_)) if self.waiting > 0 => {
                for place in 0..self.kept.len() {
                    if matches!(self.kept[place], Kept::Waiting(_)) {
                        self.let_go(place);
                    }
                }
                self.allocator.malloc(request).ok()
            }
            Err(_) => None,
        }
    }

    #[cold]
    fn note_failure(&mut self, at: Option<EventIndex>) {
        let outcome = &mut self.allocator.observer_mut().outcome;
        outcome.new_failures += 1;
        outcome.first_new_failure = outcome.first_new_failure.or(at);
    }
}
