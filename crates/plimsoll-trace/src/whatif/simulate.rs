//! Runs a program on our allocator with PyTorch's policy, or on the packed allocator, with a simulated device:
//! [`simulate`], [`simulate_packed`].

use plimsoll_alloc::{
    Allocator, Config, Error, Event, Observer, PackedAllocator, PoolId, Request, SimDriver, StreamId,
};

use super::policy::Policy;
use super::program::{Program, Step};
use super::{Outcome, PackedPolicy};
use crate::snapshot::{EventIndex, PoolIndex};
use crate::still_needed::StillNeeded;

/// The size of an unlimited device. Address space is reserved in proportion to the size, so the size must be finite.
const BOUNDLESS_BYTES: u64 = 1 << 50;

/// After this many requests that the recording served and this setting does not, the rest of the program is left out:
/// each of them searches the whole cache.
const MOST_FAILURES: usize = 1_000;

/// Accumulates the figures of one row.
#[derive(Default)]
pub(super) struct Tally {
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
enum Kept<P: Policy<Tally>> {
    Nothing,
    Held(P::Held),
    Waiting(P::Waiting),
}

struct Run<'a, P: Policy<Tally>> {
    program: &'a Program,
    allocator: P,
    kept: Vec<Kept<P>>,
    waiting: usize,
}

/// Runs the program. If a request fails, the program continues without the block, up to [`MOST_FAILURES`].
pub(super) fn simulate(program: &Program, config: &Config, capacity_bytes: Option<u64>) -> Outcome {
    let mut run = Run::new(program, torch(program, config, capacity_bytes));
    for step in &program.steps {
        run.step(step);
        if run.has_failed_often() {
            break;
        }
    }
    std::mem::take(&mut run.allocator.tally().outcome)
}

/// Runs the program under the packed policy. `fraction` limits the fraction of the device that it may use. `last_step`
/// is the last event before the last step, and the last event in that step.
pub(super) fn simulate_packed(
    program: &Program,
    fraction: f64,
    capacity_bytes: Option<u64>,
    last_step: Option<(EventIndex, EventIndex)>,
    rest: Option<&StillNeeded>,
) -> PackedPolicy {
    let mut run = Run::new(program, packed(fraction, capacity_bytes));
    let mut last_step_calls = last_step.map(|_| 0);
    // Other events belong to the step of the request before them.
    let mut now = None;
    for step in &program.steps {
        let before = run.allocator.calls().total();
        run.step(step);
        if let Step::Alloc { at: Some(at), .. } = step {
            now = Some(*at);
        }
        if let (Some(calls), Some((begin, end)), Some(at)) = (&mut last_step_calls, last_step, now)
            && (begin < at && at <= end)
        {
            *calls += run.allocator.calls().total() - before;
        }
        if run.has_failed_often() {
            break;
        }
    }
    let calls = run.allocator.calls();
    let mut outcome = std::mem::take(&mut run.allocator.tally().outcome);
    outcome.maps += calls.stitches as usize;
    outcome.unmaps += calls.unstitches as usize;
    let rest = rest.filter(|_| !outcome.serves.is_empty() && !outcome.runs_out());
    outcome.serves_rest =
        rest.map(|rest| serves_rest_on(program, packed(fraction, capacity_bytes), capacity_bytes, rest));
    PackedPolicy { outcome, last_step_calls }
}

fn device(capacity_bytes: Option<u64>) -> SimDriver {
    SimDriver::with_capacity(capacity_bytes.unwrap_or(BOUNDLESS_BYTES))
}

fn torch(program: &Program, config: &Config, capacity_bytes: Option<u64>) -> Allocator<SimDriver, Tally> {
    let mut allocator = Allocator::new(config.clone(), device(capacity_bytes), Tally::default());
    for &pool in program.pools.iter().filter(|&&pool| pool != PoolId::DEFAULT) {
        allocator.create_pool(pool).expect("a pool with a name of its own");
    }
    allocator
}

fn packed(fraction: f64, capacity_bytes: Option<u64>) -> PackedAllocator<SimDriver, Tally> {
    let mut allocator = PackedAllocator::new(device(capacity_bytes), Tally::default());
    // A fraction of `None` means no limit, as in a configuration.
    let _ = allocator.set_memory_fraction(fraction);
    allocator
}

/// Whether the setting serves the last request that failed in the recording, and then everything that was still needed,
/// all live at the same time. If the individual sizes are unknown, their sum must fit in addition to the allocated
/// memory.
pub(super) fn serves_rest(
    program: &Program,
    config: &Config,
    capacity_bytes: Option<u64>,
    rest: &StillNeeded,
) -> bool {
    serves_rest_on(program, torch(program, config, capacity_bytes), capacity_bytes, rest)
}

fn serves_rest_on(
    program: &Program,
    allocator: impl Policy<Tally>,
    capacity_bytes: Option<u64>,
    rest: &StillNeeded,
) -> bool {
    let is_failed = |step: &Step| matches!(step, Step::Failed { .. });
    let Some(last) = program.steps.iter().rposition(is_failed) else { return false };
    let Step::Failed { pool, bytes, stream } = program.steps[last] else { return false };
    let mut run = Run::new(program, allocator);
    program.steps[..last].iter().for_each(|step| run.step(step));
    let requests = std::iter::once(bytes).chain(rest.requests.iter().copied());
    // The served blocks are never freed, because the simulated device ends with this function.
    let is_served = requests.map(|bytes| run.ask(pool, bytes, stream)).all(|served| served.is_some());
    let unlisted = if rest.requests.is_empty() { rest.bytes } else { 0 };
    let needed = run.allocator.tally().allocated_bytes.saturating_add(unlisted);
    is_served && capacity_bytes.is_none_or(|capacity| needed <= capacity)
}

impl<'a, P: Policy<Tally>> Run<'a, P> {
    fn new(program: &'a Program, allocator: P) -> Self {
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
            Step::EmptyCache => self.allocator.empty_cache(),
            Step::Failed { pool, bytes, stream } => {
                let served = self.ask(pool, bytes, stream);
                self.allocator.tally().outcome.serves.push(served.is_some());
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

    /// Requests memory. If that fails, waits for the blocks that are waiting for a stream, as PyTorch does, and
    /// retries.
    #[inline]
    fn ask(&mut self, pool: Option<PoolIndex>, bytes: u64, stream: StreamId) -> Option<P::Held> {
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

    fn has_failed_often(&mut self) -> bool {
        self.allocator.tally().outcome.new_failures >= MOST_FAILURES
    }

    #[cold]
    fn note_failure(&mut self, at: Option<EventIndex>) {
        let outcome = &mut self.allocator.tally().outcome;
        outcome.new_failures += 1;
        outcome.first_new_failure = outcome.first_new_failure.or(at);
    }
}
