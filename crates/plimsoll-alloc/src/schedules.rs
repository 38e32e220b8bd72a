//! Tests of the handles under every thread schedule. Small programs of two and three threads run in every order in
//! which they can take the lock, larger ones in many orders. After each run: no thread waits forever (shuttle reports a
//! deadlock), the state is consistent, and all memory can be released to the device.
//!
//! Why shuttle, and what it does not explore: Note [Which model checker] in `lock.rs`.

use std::sync::Arc;

use shuttle::scheduler::{DfsScheduler, PctScheduler, RandomScheduler, Scheduler};
use shuttle::sync::Mutex;
use shuttle::{Runner, thread};

use crate::{
    Allocation, CallbackResult, Config, DeviceMemory, DeviceStream, Error, PinnedConfig, PinnedMemory,
    PinnedRequest, PoolId, Request, SimDriver, SimHost, StreamId,
};

const MIB: u64 = 1 << 20;

/// Runs a program under every schedule. Returns the number of schedules.
fn every_schedule(program: fn()) -> usize {
    const MOST: usize = 1_000_000;
    let schedules = under(DfsScheduler::new(Some(MOST), false), program);
    assert!(schedules < MOST, "not all schedules were tried");
    schedules
}

/// Runs a program under random schedules: at each step either any thread, or the thread with the highest priority, with
/// up to three priority changes (PCT).
fn many_schedules(program: fn()) {
    under(RandomScheduler::new_from_seed(1, 300), program);
    under(PctScheduler::new_from_seed(2, 3, 300), program);
}

fn under(scheduler: impl Scheduler + 'static, program: fn()) -> usize {
    Runner::new(scheduler, shuttle::Config::default()).run(program)
}

fn device(capacity_bytes: u64) -> DeviceMemory {
    DeviceMemory::new(Config::default(), SimDriver::with_capacity(capacity_bytes))
}

/// The allocation, or `None` if out of memory.
fn alloc(memory: &DeviceMemory, bytes: u64, stream: u64) -> Option<Allocation> {
    match memory.alloc(Request { stream: StreamId(stream), ..Request::of(bytes) }) {
        Ok(allocation) => Some(allocation),
        Err(Error::OutOfMemory(_)) => None,
        Err(why) => panic!("{why}"),
    }
}

fn free(memory: &DeviceMemory, allocation: Option<Allocation>) {
    allocation.into_iter().for_each(|allocation| memory.free(allocation));
}

/// The invariants once all memory is freed.
fn assert_nothing_leaked(memory: &DeviceMemory) {
    memory.check().unwrap();
    assert_eq!(memory.memory_allocated(), 0);
    memory.empty_cache().unwrap();
    assert_eq!((memory.memory_reserved(), memory.segments()), (0, vec![]));
    memory.check().unwrap();
}

#[test]
fn two_threads_may_allocate_free_use_and_empty_in_any_order() {
    let schedules = every_schedule(|| {
        let memory = device(30 * MIB); // room for one of the two segments, so one must be released for the other
        let theirs = memory.clone();
        let other = thread::spawn(move || {
            let x = alloc(&theirs, 12 * MIB, 0);
            x.iter().for_each(|x| theirs.record_stream(x, StreamId(1)));
            free(&theirs, x);
        });
        let x = alloc(&memory, 20 * MIB, 1);
        memory.check().unwrap();
        memory.empty_cache().unwrap();
        free(&memory, x);
        other.join().unwrap();
        assert_nothing_leaked(&memory);
    });
    assert!(schedules >= 35, "{schedules} are fewer than the orders of three lock operations among four");
}

#[test]
fn two_threads_allocate_and_free_what_a_third_releases_to_the_device() {
    let schedules = every_schedule(|| {
        let memory = device(4 * MIB);
        let others = [0, 1].map(|stream| {
            let memory = memory.clone();
            thread::spawn(move || free(&memory, alloc(&memory, MIB, stream)))
        });
        memory.empty_cache().unwrap();
        others.into_iter().for_each(|other| other.join().unwrap());
        assert_nothing_leaked(&memory);
    });
    assert!(schedules >= 30, "{schedules} are fewer than the orders of two, two and one lock operations");
}

/// The lock is released while a callback runs: it may free into the same memory, and other threads may continue.
#[test]
fn a_callback_that_frees_never_waits_for_its_request() {
    every_schedule(|| {
        let memory = device(20 * MIB);
        let kept = Arc::new(Mutex::new(alloc(&memory, 15 * MIB, 0)));
        let (theirs, handle) = (Arc::clone(&kept), memory.clone());
        memory.on_memory_wanted(move || {
            let allocation = theirs.lock().unwrap().take();
            let callbacks =
                if allocation.is_some() { CallbackResult::Freed } else { CallbackResult::NothingFreed };
            free(&handle, allocation);
            callbacks
        });
        let other = {
            let memory = memory.clone();
            thread::spawn(move || {
                let x = alloc(&memory, 12 * MIB, 0);
                let served = x.is_some();
                free(&memory, x);
                served
            })
        };
        let x = alloc(&memory, 14 * MIB, 0);
        let served = x.is_some();
        free(&memory, x);
        assert!(other.join().unwrap() || served, "the memory that the callback freed serves at least one");
        assert!(kept.lock().unwrap().is_none(), "both needed memory, so the callback freed some");
        assert_nothing_leaked(&memory);
    });
}

/// The lock is released while observers are notified of a failure: they may query the memory that failed.
#[test]
fn an_out_of_memory_observer_may_call_the_allocator_while_others_allocate() {
    every_schedule(|| {
        let memory = device(20 * MIB);
        let seen = Arc::new(Mutex::new(0));
        let (theirs, handle) = (Arc::clone(&seen), memory.clone());
        memory.on_out_of_memory(move |why| {
            assert_eq!(why.requested_bytes, 30 * MIB);
            handle.check().unwrap();
            free(&handle, alloc(&handle, 1, 0));
            *theirs.lock().unwrap() += 1;
        });
        let other = {
            let memory = memory.clone();
            thread::spawn(move || free(&memory, alloc(&memory, 12 * MIB, 0)))
        };
        assert!(alloc(&memory, 30 * MIB, 0).is_none(), "the device has only 20 MiB");
        other.join().unwrap();
        assert_eq!(*seen.lock().unwrap(), 1);
        assert_nothing_leaked(&memory);
    });
}

/// The pool of the segment that contains a block.
fn pool_of(memory: &DeviceMemory, allocation: &Allocation) -> PoolId {
    let mut segments = memory.segments();
    segments.retain(|segment| segment.addr <= allocation.addr());
    segments.last().expect("the segment around a block").pool_id
}

#[test]
fn a_guard_redirects_only_its_own_threads_requests() {
    every_schedule(|| {
        let memory = device(64 * MIB);
        let theirs = memory.clone();
        let other = thread::spawn(move || {
            let pool = theirs.new_pool().unwrap();
            let guard = pool.use_here().unwrap();
            let x = alloc(&theirs, 1, 0).expect("room");
            assert_eq!(pool_of(&theirs, &x), pool.id());
            drop(guard);
            theirs.free(x);
        });
        let x = alloc(&memory, 1, 0).expect("room");
        assert_eq!(pool_of(&memory, &x), PoolId::DEFAULT);
        memory.free(x);
        other.join().unwrap();
        assert_nothing_leaked(&memory);
    });
}

#[test]
fn a_segment_allocated_with_the_lock_released_is_safe_under_every_schedule() {
    many_schedules(|| {
        let config = Config::default().with_release_lock_on_cudamalloc(true);
        let memory = DeviceMemory::new(config, SimDriver::with_capacity(64 * MIB));
        let threads = [3 * MIB, 30 * MIB].map(|bytes| {
            let memory = memory.clone();
            thread::spawn(move || {
                for _ in 0..2 {
                    let x = alloc(&memory, bytes, 0);
                    memory.check().unwrap();
                    free(&memory, x);
                    memory.empty_cache().unwrap();
                }
            })
        });
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_nothing_leaked(&memory);
    });
}

#[test]
fn guards_of_two_threads_do_not_interfere() {
    many_schedules(|| {
        let memory = device(128 * MIB);
        let threads = [0, 1, 2].map(|_| {
            let memory = memory.clone();
            thread::spawn(move || {
                let pool = memory.new_pool().unwrap();
                for bytes in [1, 3 * MIB] {
                    let guard = pool.use_here().unwrap();
                    let inside = alloc(&memory, bytes, 0).expect("room");
                    drop(guard);
                    let outside = alloc(&memory, 1, 0).expect("room");
                    assert_eq!(pool_of(&memory, &inside), pool.id());
                    assert_eq!(pool_of(&memory, &outside), PoolId::DEFAULT);
                    memory.free(inside);
                    memory.free(outside);
                }
            })
        });
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_nothing_leaked(&memory);
    });
}

/// Programs that are too long to try every schedule. Memory is short, and a callback frees what the threads have set aside.
#[test]
fn longer_programs_stay_consistent_under_many_schedules() {
    many_schedules(|| {
        let memory = device(44 * MIB);
        let aside: Arc<Mutex<Vec<Allocation>>> = Arc::default();
        let (theirs, handle) = (Arc::clone(&aside), memory.clone());
        memory.on_memory_wanted(move || match theirs.lock().unwrap().pop() {
            Some(allocation) => {
                handle.free(allocation);
                CallbackResult::Freed
            }
            None => CallbackResult::NothingFreed,
        });
        let threads = [0, 1, 2].map(|thread: u64| {
            let (memory, aside) = (memory.clone(), Arc::clone(&aside));
            thread::spawn(move || {
                for round in 0..8 {
                    let x = alloc(&memory, (1 + (thread + round) % 5) * 3 * MIB, round % 2);
                    x.iter().for_each(|x| memory.record_stream(x, StreamId(thread)));
                    match x {
                        Some(x) if round % 3 == 0 => aside.lock().unwrap().push(x),
                        x => free(&memory, x),
                    }
                    if round == 4 {
                        memory.empty_cache().unwrap();
                    }
                    memory.check().unwrap();
                }
            })
        });
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        aside.lock().unwrap().drain(..).for_each(|x| memory.free(x));
        assert_nothing_leaked(&memory);
    });
}

#[test]
fn pinned_memory_may_be_allocated_used_freed_and_emptied_in_any_order() {
    every_schedule(|| {
        let memory = PinnedMemory::new(PinnedConfig::default(), SimHost::with_capacity(1 << 20));
        let theirs = memory.clone();
        let other = thread::spawn(move || {
            let x = theirs.alloc(PinnedRequest::of(5000)).unwrap();
            assert!(theirs.record_event(x.addr(), DeviceStream::default()));
            theirs.free(x).unwrap();
        });
        let x = memory.alloc(PinnedRequest::of(5000)).unwrap();
        memory.check().unwrap();
        memory.free(x).unwrap();
        memory.empty_cache().unwrap();
        other.join().unwrap();
        memory.empty_cache().unwrap();
        memory.check().unwrap();
        assert_eq!(memory.segments(), vec![]);
    });
}
