//! The handles under every schedule: small programs of two and three threads, in each order in which their
//! turns at the lock can come, and larger ones in many. After each: no thread waits for ever (shuttle fails
//! on that by itself), the state is sound, and all memory can go back to the device.
//!
//! Why shuttle, and what it does not see: Note [Which model checker] in `lock.rs`.

use std::sync::Arc;

use shuttle::scheduler::{DfsScheduler, PctScheduler, RandomScheduler, Scheduler};
use shuttle::sync::Mutex;
use shuttle::{Runner, thread};

use crate::{
    Allocation, Config, DeviceMemory, DeviceStream, Error, GivenBack, PinnedConfig, PinnedMemory,
    PinnedRequest, PoolId, Request, SimDriver, SimHost, StreamId,
};

const MIB: u64 = 1 << 20;

/// Runs a program under every schedule there is; how many there were.
fn every_schedule(program: fn()) -> usize {
    const MOST: usize = 1_000_000;
    let schedules = under(DfsScheduler::new(Some(MOST), false), program);
    assert!(schedules < MOST, "not all schedules were tried");
    schedules
}

/// Runs a program under schedules drawn at random: each step any thread, or the thread of the highest
/// priority, where up to three times a thread loses its own (PCT).
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

/// The allocation, or `None` where there was no room.
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

/// What must hold once nobody holds memory any more.
fn assert_nothing_leaked(memory: &DeviceMemory) {
    memory.check().unwrap();
    assert_eq!(memory.memory_allocated(), 0);
    memory.empty_cache().unwrap();
    assert_eq!((memory.memory_reserved(), memory.segments()), (0, vec![]));
    memory.check().unwrap();
}

#[test]
fn two_threads_may_ask_free_use_and_empty_in_any_order() {
    let schedules = every_schedule(|| {
        let memory = device(30 * MIB); // room for one of the two segments, or for both once one is released
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
    assert!(schedules >= 35, "{schedules} are fewer than the orders of three turns among four");
}

#[test]
fn two_threads_take_and_return_what_a_third_releases_to_the_device() {
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
    assert!(schedules >= 30, "{schedules} are fewer than the orders of two, two and one turn");
}

/// The lock is free while a callback runs: it may free into the same memory, and others may go on.
#[test]
fn a_callback_that_frees_never_waits_for_the_request_that_called_it() {
    every_schedule(|| {
        let memory = device(20 * MIB);
        let kept = Arc::new(Mutex::new(alloc(&memory, 15 * MIB, 0)));
        let (theirs, handle) = (Arc::clone(&kept), memory.clone());
        memory.on_memory_wanted(move || {
            let allocation = theirs.lock().unwrap().take();
            let given_back = if allocation.is_some() { GivenBack::Something } else { GivenBack::Nothing };
            free(&handle, allocation);
            given_back
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
        assert!(other.join().unwrap() || served, "what the callback gave back serves at least one");
        assert!(kept.lock().unwrap().is_none(), "both wanted memory, so the callback gave back");
        assert_nothing_leaked(&memory);
    });
}

/// The lock is free, too, while a failure is shown: whoever sees it may ask the memory that failed.
#[test]
fn an_observer_of_failures_may_call_back_while_others_ask() {
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
        assert!(alloc(&memory, 30 * MIB, 0).is_none(), "the device has no more than 20 MiB");
        other.join().unwrap();
        assert_eq!(*seen.lock().unwrap(), 1);
        assert_nothing_leaked(&memory);
    });
}

/// Where a block landed: the pool of the segment around it.
fn pool_of(memory: &DeviceMemory, allocation: &Allocation) -> PoolId {
    let mut segments = memory.segments();
    segments.retain(|segment| segment.addr <= allocation.addr());
    segments.last().expect("the segment around a block").pool_id
}

#[test]
fn a_guard_sends_only_its_own_threads_requests_to_its_pool() {
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
fn a_segment_made_with_the_lock_released_meets_whatever_others_do() {
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
fn two_guards_of_two_threads_do_not_meet() {
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

/// Longer programs than every schedule can be tried of, short of memory, with a callback that gives back
/// what the threads have put aside.
#[test]
fn longer_programs_end_sound_under_many_schedules() {
    many_schedules(|| {
        let memory = device(44 * MIB);
        let aside: Arc<Mutex<Vec<Allocation>>> = Arc::default();
        let (theirs, handle) = (Arc::clone(&aside), memory.clone());
        memory.on_memory_wanted(move || match theirs.lock().unwrap().pop() {
            Some(allocation) => {
                handle.free(allocation);
                GivenBack::Something
            }
            None => GivenBack::Nothing,
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
fn pinned_memory_may_be_asked_used_freed_and_emptied_in_any_order() {
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
