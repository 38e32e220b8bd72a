//! Memory requests that are recorded while a function runs, and later served from one arena: the part of the mechanism
//! below storages.
//!
//! A [`Lease`] belongs to the memory of one request and notes when it is freed. The addresses of a [`Plan`] are only valid if
//! requests come in the recorded order, with the recorded sizes, on the recorded stream. If a request differs, the plan
//! is not used for the rest of that run; if the bytes at an address are still in use, the address is not given out. In
//! both cases the allocator serves the request.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use plimsoll_alloc::{Category, StreamId, Tag};

/// A request for memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) op: &'static str,
    pub(crate) bytes: u64,
    pub(crate) stream: StreamId,
}

/// A recorded request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recorded {
    pub(crate) asked: Asked,
    /// The owner of the memory: the latest one.
    pub(crate) tag: Tag,
    /// Its position in the order of all requests and frees.
    pub(crate) begin: u64,
    /// When the memory was freed; `None` if it was not.
    pub(crate) end: Option<u64>,
    /// Whether another stream used the memory.
    pub(crate) is_shared: bool,
}

/// The requests of one run, in order.
#[derive(Debug, Default)]
pub(crate) struct Recording(Mutex<Requests>);

#[derive(Debug, Default)]
struct Requests {
    all: Vec<Recorded>,
    clock: u64,
}

impl Recording {
    fn requests(&self) -> MutexGuard<'_, Requests> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self, asked: Asked, tag: Tag) -> usize {
        let mut requests = self.requests();
        requests.clock += 1;
        let begin = requests.clock;
        requests.all.push(Recorded { asked, tag, begin, end: None, is_shared: false });
        requests.all.len() - 1
    }

    fn end(&self, index: usize) {
        let mut requests = self.requests();
        requests.clock += 1;
        requests.all[index].end = Some(requests.clock);
    }

    /// The requests so far.
    pub(crate) fn all(&self) -> Vec<Recorded> {
        self.requests().all.clone()
    }
}

/// The memory of an arena.
pub(crate) trait ArenaMemory: Send + Sync {
    fn address(&self) -> u64;

    /// Work on this stream uses part of it.
    fn record_stream(&self, on: StreamId);
}

/// Memory for plans whose runs come one after the other.
pub(crate) struct Arena {
    memory: Box<dyn ArenaMemory>,
    live: Mutex<Live>,
}

/// The bytes of an arena that are in use.
#[derive(Default)]
struct Live {
    /// Addresses, each with its end and the number of its lease.
    ranges: BTreeMap<u64, (u64, u64)>,
    leases: u64,
    /// Addresses, each with its end, of memory that captured graphs have left and the program uses now.
    left: Vec<(u64, u64)>,
}

impl Arena {
    pub(crate) fn new(memory: Box<dyn ArenaMemory>) -> Arena {
        Arena { memory, live: Mutex::default() }
    }

    fn live(&self) -> MutexGuard<'_, Live> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks bytes as used. Returns the number of their lease; `None`, and does nothing, if some of them already are.
    fn take(&self, address: u64, bytes: u64) -> Option<u64> {
        let (mut live, end) = (self.live(), address + bytes);
        let is_free = live.ranges.range(..end).next_back().is_none_or(|(_, &(last, _))| last <= address)
            && live.left.iter().all(|&(begin, last)| end <= begin || last <= address);
        is_free.then(|| {
            live.leases += 1;
            let lease = live.leases;
            live.ranges.insert(address, (end, lease));
            lease
        })
    }

    fn give_back(&self, address: u64, lease: u64) {
        let mut live = self.live();
        if live.ranges.get(&address).is_some_and(|(_, own)| *own == lease) {
            live.ranges.remove(&address);
        }
    }

    /// Says which of the memory that captured graphs have left is in use: address, bytes, and whether it is. Later runs overwrite
    /// the rest, although it has leases: the next replay of its graph writes it again.
    pub(crate) fn set_in_use(&self, left: impl Iterator<Item = (u64, u64, bool)>) {
        let mut live = self.live();
        live.left.clear();
        for (address, bytes, is_used) in left {
            match is_used {
                true => live.left.push((address, address + bytes)),
                false => drop(live.ranges.remove(&address)),
            }
        }
    }
}

/// Addresses for the requests of a function.
pub(crate) struct Plan {
    /// Each request, and its place in the arena if it is planned.
    requests: Arc<[(Asked, Option<u64>)]>,
    arena: Arc<Arena>,
}

impl Plan {
    pub(crate) fn new(requests: &Arc<[(Asked, Option<u64>)]>, arena: &Arc<Arena>) -> Arc<Plan> {
        Arc::new(Plan { requests: Arc::clone(requests), arena: Arc::clone(arena) })
    }
}

impl std::fmt::Debug for Arena {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Arena").field("live", &self.live().ranges.len()).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plan").field("requests", &self.requests.len()).finish_non_exhaustive()
    }
}

/// The memory of one request. Dropped when the memory is freed.
pub(crate) struct Lease(Holder);

enum Holder {
    Recorded { of: Arc<Recording>, index: usize },
    Planned { of: Arc<Plan>, address: u64, lease: u64, is_shared: Cell<bool> },
}

impl Lease {
    /// Records the new owner of the memory.
    pub(crate) fn retag(&self, tag: Tag) {
        if let Holder::Recorded { of, index } = &self.0 {
            of.requests().all[*index].tag = tag;
        }
    }

    /// Records that another stream uses the memory, so it must not be given out again when it is freed.
    pub(crate) fn share(&self, on: StreamId) {
        match &self.0 {
            Holder::Recorded { of, index } => of.requests().all[*index].is_shared = true,
            Holder::Planned { of, is_shared, .. } => {
                is_shared.set(true);
                of.arena.memory.record_stream(on);
            }
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        match &self.0 {
            Holder::Recorded { of, index } => of.end(*index),
            Holder::Planned { of, address, lease, is_shared } => {
                if !is_shared.get() {
                    of.arena.give_back(*address, *lease);
                }
            }
        }
    }
}

/// The source of a request's memory.
pub(crate) enum Source {
    /// The allocator.
    Allocator,
    /// The allocator; the lease is kept with the memory.
    Recorded(Lease),
    /// This address.
    Planned(Lease, u64),
}

/// What happens to this thread's requests on a device during a run of a function.
pub(crate) struct Run {
    device: usize,
    /// Whether this is about the requests of a capture, or about all others. Requests of the other kind go to the
    /// allocator.
    captures: bool,
    kind: Kind,
}

enum Kind {
    Records(Arc<Recording>),
    Serves { plan: Arc<Plan>, served: Served },
}

/// The result of a run that was served by a plan.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Served {
    /// The number of requests that followed the plan.
    pub(crate) requests: usize,
    /// The requests that the allocator served because their bytes were still in use.
    pub(crate) in_use: usize,
    /// The first request that differed.
    pub(crate) differs: Option<Asked>,
}

impl Run {
    pub(crate) fn records(device: usize, recording: &Arc<Recording>) -> Run {
        Run { device, captures: false, kind: Kind::Records(recording.clone()) }
    }

    pub(crate) fn serves(device: usize, plan: &Arc<Plan>) -> Run {
        Run { device, captures: false, kind: Kind::Serves { plan: plan.clone(), served: Served::default() } }
    }

    /// A run that is captured.
    pub(crate) fn serves_capture(device: usize, plan: &Arc<Plan>) -> Run {
        Run { captures: true, ..Run::serves(device, plan) }
    }

    fn source(&mut self, asked: Asked, tag: Tag) -> Source {
        match &mut self.kind {
            Kind::Records(recording) => {
                let (of, index) = (recording.clone(), recording.begin(asked, tag));
                Source::Recorded(Lease(Holder::Recorded { of, index }))
            }
            Kind::Serves { served: Served { differs: Some(_), .. }, .. } => Source::Allocator,
            Kind::Serves { plan, served } => {
                let Some((_, offset)) = plan.requests.get(served.requests).filter(|it| it.0 == asked) else {
                    served.differs = Some(asked);
                    return Source::Allocator;
                };
                served.requests += 1;
                let Some(offset) = *offset else { return Source::Allocator };
                let address = plan.arena.memory.address() + offset;
                let Some(lease) = plan.arena.take(address, asked.bytes) else {
                    served.in_use += 1;
                    return Source::Allocator;
                };
                let (of, is_shared) = (plan.clone(), Cell::new(false));
                let holder = Holder::Planned { of, address, lease, is_shared };
                Source::Planned(Lease(holder), address)
            }
        }
    }
}

thread_local! {
    static IS_ACTIVE: Cell<bool> = const { Cell::new(false) };
    static ACTIVE: RefCell<Option<Run>> = const { RefCell::new(None) };
}

/// Runs `f` with this thread's requests on a device recorded, or served by a plan. Returns its result and, with a plan,
/// what was served. Must not be called by a thread that is already in such a run.
pub(crate) fn during<T>(run: Run, f: impl FnOnce() -> T) -> (T, Served) {
    /// Ends the run, even if `f` panics.
    struct End;
    impl Drop for End {
        fn drop(&mut self) {
            IS_ACTIVE.set(false);
            drop(ACTIVE.take());
        }
    }
    assert!(!IS_ACTIVE.replace(true), "a traced run inside of another one");
    ACTIVE.set(Some(run));
    let end = End;
    let result = f();
    let served = ACTIVE.with_borrow(|active| match active {
        Some(Run { kind: Kind::Serves { served, .. }, .. }) => *served,
        _ => Served::default(),
    });
    drop(end);
    (result, served)
}

/// Whether this thread is in such a run.
#[inline]
pub(crate) fn is_active() -> bool {
    IS_ACTIVE.get()
}

/// The source of memory for a request from this thread, which may be in a capture.
pub(crate) fn source(device: usize, is_captured: bool, asked: Asked, tag: Tag) -> Source {
    // State of an optimizer stays, and is not requested again.
    if asked.bytes == 0 || tag.category == Category::OptimizerState {
        return Source::Allocator;
    }
    ACTIVE.with_borrow_mut(|active| match active {
        Some(run) if run.device == device && run.captures == is_captured => run.source(asked, tag),
        _ => Source::Allocator,
    })
}
