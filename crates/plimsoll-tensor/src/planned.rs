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

use plimsoll_alloc::StreamId;

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
    /// Its position in the order of all requests and frees.
    pub(crate) begin: u64,
    /// When it was freed; `None` if it was not, or if another stream used it.
    pub(crate) end: Option<u64>,
    is_shared: bool,
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

    fn begin(&self, asked: Asked) -> usize {
        let mut requests = self.requests();
        requests.clock += 1;
        let begin = requests.clock;
        requests.all.push(Recorded { asked, begin, end: None, is_shared: false });
        requests.all.len() - 1
    }

    fn end(&self, index: usize) {
        let mut requests = self.requests();
        requests.clock += 1;
        let now = requests.clock;
        let own = &mut requests.all[index];
        own.end = Some(now).filter(|_| !own.is_shared);
    }

    /// The requests so far.
    pub(crate) fn all(&self) -> Vec<Recorded> {
        self.requests().all.clone()
    }
}

/// The memory of a plan.
pub(crate) trait Arena: Send + Sync {
    /// Work on this stream uses part of it.
    fn record_stream(&self, on: StreamId);
}

/// Addresses for the requests of a function.
pub(crate) struct Plan {
    /// Each request, and its address if it is planned.
    requests: Vec<(Asked, Option<u64>)>,
    /// Addresses in use, each with its end.
    live: Mutex<BTreeMap<u64, u64>>,
    arena: Box<dyn Arena>,
}

impl Plan {
    pub(crate) fn new(requests: Vec<(Asked, Option<u64>)>, arena: Box<dyn Arena>) -> Plan {
        Plan { requests, live: Mutex::default(), arena }
    }

    fn live(&self) -> MutexGuard<'_, BTreeMap<u64, u64>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks bytes as used. Returns false, and does nothing, if some of them already are.
    fn take(&self, address: u64, bytes: u64) -> bool {
        let (mut live, end) = (self.live(), address + bytes);
        let is_free = live.range(..end).next_back().is_none_or(|(_, &last)| last <= address);
        if is_free {
            live.insert(address, end);
        }
        is_free
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
    Planned { of: Arc<Plan>, address: u64, is_shared: Cell<bool> },
}

impl Lease {
    /// Records that another stream uses the memory, so it must not be given out again when it is freed.
    pub(crate) fn share(&self, on: StreamId) {
        match &self.0 {
            Holder::Recorded { of, index } => of.requests().all[*index].is_shared = true,
            Holder::Planned { of, is_shared, .. } => {
                is_shared.set(true);
                of.arena.record_stream(on);
            }
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        match &self.0 {
            Holder::Recorded { of, index } => of.end(*index),
            Holder::Planned { of, address, is_shared } => {
                if !is_shared.get() {
                    of.live().remove(address);
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
        Run { device, kind: Kind::Records(recording.clone()) }
    }

    pub(crate) fn serves(device: usize, plan: &Arc<Plan>) -> Run {
        Run { device, kind: Kind::Serves { plan: plan.clone(), served: Served::default() } }
    }

    fn source(&mut self, asked: Asked) -> Source {
        match &mut self.kind {
            Kind::Records(recording) => {
                let (of, index) = (recording.clone(), recording.begin(asked));
                Source::Recorded(Lease(Holder::Recorded { of, index }))
            }
            Kind::Serves { served: Served { differs: Some(_), .. }, .. } => Source::Allocator,
            Kind::Serves { plan, served } => {
                let Some((_, address)) = plan.requests.get(served.requests).filter(|it| it.0 == asked) else {
                    served.differs = Some(asked);
                    return Source::Allocator;
                };
                served.requests += 1;
                let Some(address) = *address else { return Source::Allocator };
                if !plan.take(address, asked.bytes) {
                    served.in_use += 1;
                    return Source::Allocator;
                }
                let holder = Holder::Planned { of: plan.clone(), address, is_shared: Cell::new(false) };
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

/// The source of memory for a request from this thread.
pub(crate) fn source(device: usize, asked: Asked) -> Source {
    if asked.bytes == 0 {
        return Source::Allocator;
    }
    ACTIVE.with_borrow_mut(|active| match active {
        Some(run) if run.device == device => run.source(asked),
        _ => Source::Allocator,
    })
}
