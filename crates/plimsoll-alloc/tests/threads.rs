//! Many threads at once, then the same requests on one thread, in the order in which the threads took the lock. The
//! results must be the same. `src/schedules.rs` tries every order of small programs.

use std::collections::BTreeMap;
use std::thread;

use plimsoll_alloc::{
    Action, Addr, Allocation, Allocator, Callers, Category, Config, DeviceMemory, Entry, Error, History,
    HistoryOptions, LabelId, Ledger, Request, SimDriver, Stats, StreamId, Tag,
};

use crate::programs::{MIB, Random};

const THREADS: u32 = 8;
/// The requests of each thread; more in optimised builds.
const REQUESTS: u32 = if cfg!(debug_assertions) { 20_000 } else { 100_000 };

/// The request with this label. Everything about a request follows from its label, and so does the stream that
/// [uses](use_of) its block, so a history with labels identifies the requests.
fn request(label: u32) -> Request {
    let mut random = Random::new(u64::from(label));
    let stream = StreamId(random.below(3));
    let category = Category::ALL[random.below(8) as usize];
    Request { stream, category, label: LabelId(label), ..Request::of(random.bytes()) }
}

/// The other stream that uses the block of a request, if any.
fn use_of(label: u32) -> Option<StreamId> {
    let dice = Random::new(!u64::from(label)).below(12);
    (dice < 3).then_some(StreamId(dice))
}

/// One thread's work: it holds up to 16 blocks, and yields after each request.
fn work(memory: &DeviceMemory, thread: u32) {
    let mut random = Random::new(u64::from(thread));
    let mut live: Vec<Allocation> = Vec::new();
    for label in thread * REQUESTS..(thread + 1) * REQUESTS {
        if live.len() == 16 || (!live.is_empty() && random.below(2) == 0) {
            memory.free(live.swap_remove(random.below(live.len() as u64) as usize));
        }
        match memory.alloc(request(label)) {
            Ok(allocation) => {
                use_of(label).into_iter().for_each(|stream| memory.record_stream(&allocation, stream));
                live.push(allocation);
            }
            Err(Error::OutOfMemory(_)) => {}
            Err(why) => panic!("{why}"),
        }
        if random.below(8) == 0
            && let Some(newest) = live.last()
        {
            memory.retag(newest, Category::Workspace, LabelId(thread));
        }
        thread::yield_now();
    }
    live.into_iter().for_each(|allocation| memory.free(allocation));
}

/// Repeats the requests of a history in order, on one thread.
struct Replay {
    allocator: Allocator<SimDriver, (Stats, Ledger, History)>,
    live: BTreeMap<Addr, Allocation>,
}

impl Replay {
    fn turn(&mut self, entry: &Entry) {
        match entry.action {
            Action::Alloc => {
                let label = entry.tag.label.0;
                let allocation = self.allocator.malloc(request(label)).expect("it was served then");
                use_of(label)
                    .into_iter()
                    .for_each(|stream| self.allocator.record_stream(&allocation, stream));
                self.live.insert(allocation.addr(), allocation);
            }
            Action::Oom { .. } => {
                let refused = self.allocator.malloc(request(entry.tag.label.0));
                assert!(matches!(refused, Err(Error::OutOfMemory(_))), "{refused:?}, but not then");
            }
            Action::FreeRequested => {
                self.allocator.free(self.live.remove(&entry.addr).expect("a block lies where it lay"));
            }
            Action::Retag { .. } => {
                let Tag { category, label } = entry.tag;
                self.allocator.retag(&self.live[&entry.addr], category, label);
            }
            // Other actions follow from these.
            _ => {}
        }
    }
}

#[test]
fn threads_give_the_results_of_one_thread_in_the_same_order() {
    let device = || SimDriver::with_capacity(160 * MIB);
    let memory = DeviceMemory::new(Config::default(), device());
    memory.record_history(HistoryOptions::default(), Callers::AsGiven, Box::new(|| 0));
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let memory = &memory;
            scope.spawn(move || work(memory, thread));
        }
    });
    memory.check().unwrap();
    let then = memory.history();
    let requests = then.iter().filter(|entry| entry.action == Action::Alloc);
    let by_thread: Vec<u32> = requests.map(|entry| entry.tag.label.0 / REQUESTS).collect();
    let changes = by_thread.windows(2).filter(|pair| pair[0] != pair[1]).count();
    assert!(changes > by_thread.len() / 10, "the threads took turns, {changes} of {}", by_thread.len());

    let mut history = History::default();
    history.record(HistoryOptions::default(), Box::new(|| 0));
    let observer = (Stats::default(), Ledger::default(), history);
    let allocator = Allocator::new(Config::default(), device(), observer);
    let mut replay = Replay { allocator, live: BTreeMap::new() };
    then.iter().for_each(|entry| replay.turn(entry));

    assert!(replay.live.is_empty());
    let (stats, ledger, history) = replay.allocator.observer();
    for (nth, (now, then)) in history.entries().zip(&then).enumerate() {
        assert_eq!(now, then, "entry {nth}");
    }
    assert_eq!(history.entries().count(), then.len());
    let theirs = memory.memory_stats();
    assert_eq!(stats.memory_stats(), theirs);
    assert_eq!(replay.allocator.segments(), memory.segments());
    assert_eq!((ledger.owners(), ledger.by_category_at_peak()), (vec![], memory.by_category_at_peak()));
    let often = |key: &str| theirs[key] > i64::from(REQUESTS / 100);
    assert!(often("num_ooms") && often("num_alloc_retries") && often("segment.all.freed"), "{theirs:?}");
}

/// Threads on separate streams affect each other only through the peaks, so any order gives the same sums.
#[test]
fn threads_on_separate_streams_give_the_sums_of_sequential_runs() {
    let device = || DeviceMemory::new(Config::default(), SimDriver::with_capacity(1 << 50));
    let work = |memory: &DeviceMemory, thread: u32| {
        let mut live = Vec::new();
        for label in thread * REQUESTS..(thread + 1) * REQUESTS {
            let stream = StreamId(u64::from(thread));
            live.push(memory.alloc(Request { stream, ..request(label) }).unwrap());
            if live.len() > 16 {
                memory.free(live.swap_remove(label as usize % 16));
            }
        }
        live.into_iter().skip(4).for_each(|allocation| memory.free(allocation));
    };
    let (together, in_turn) = (device(), device());
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let memory = &together;
            scope.spawn(move || work(memory, thread));
        }
    });
    (0..THREADS).for_each(|thread| work(&in_turn, thread));
    together.check().unwrap();
    let sums = |memory: &DeviceMemory| {
        let mut stats = memory.memory_stats();
        stats.retain(|key, _| !key.ends_with(".peak"));
        (stats, memory.by_category(), memory.memory_reserved())
    };
    assert_eq!(sums(&together), sums(&in_turn));
    let held = together.owners().iter().map(|owner| owner.bytes).sum::<u64>();
    assert!(held > 0 && held == together.memory_allocated());
}
