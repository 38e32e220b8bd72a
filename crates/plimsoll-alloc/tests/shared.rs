//! The shared handle: many threads use one memory, and its lock survives a panic.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::thread;

use plimsoll_alloc::{
    Allocation, CallbackResult, Category, Config, DeviceMemory, Error, LabelId, PoolId, PoolKind, Redirect,
    Request, SimDriver, StreamId,
};

const MIB: u64 = 1 << 20;

fn device() -> DeviceMemory {
    DeviceMemory::new(Config::default(), SimDriver::with_capacity(256 * MIB))
}

#[test]
fn threads_share_one_memory() {
    let memory = device();
    thread::scope(|scope| {
        for thread in 0..4 {
            let memory = memory.clone();
            scope.spawn(move || {
                for round in 0..200 {
                    let category = Category::ALL[thread];
                    let x = memory.alloc(Request { category, ..Request::of(1 + round * 8191) }).unwrap();
                    memory.retag(&x, Category::Workspace, LabelId(1));
                    memory.free(x);
                }
            });
        }
    });
    memory.check().unwrap();
    assert_eq!(memory.memory_allocated(), 0);
    assert_eq!(memory.memory_stats()["allocation.all.allocated"], 800);
    assert_eq!(memory.by_category_at_peak().total(), memory.max_memory_allocated());
}

#[test]
fn the_handle_reports_what_the_core_reports() {
    let memory = device();
    let x = memory.alloc(Request { label: LabelId(3), ..Request::of(40 * MIB) }).unwrap();
    memory.free(x);
    let y = memory.alloc(Request { category: Category::Input, ..Request::of(5 * MIB) }).unwrap();
    assert_eq!((memory.memory_allocated(), memory.max_memory_allocated()), (5 * MIB, 40 * MIB));
    assert_eq!((memory.memory_reserved(), memory.max_memory_reserved()), (40 * MIB, 40 * MIB));
    assert_eq!(memory.owners_at_peak()[0].label, LabelId(3));
    assert_eq!((memory.by_category()[Category::Input], memory.owners().len()), (5 * MIB, 1));
    memory.reset_peak_memory_stats();
    assert_eq!((memory.max_memory_allocated(), memory.by_category_at_peak().total()), (5 * MIB, 5 * MIB));
    memory.reset_accumulated_memory_stats();
    assert_eq!(memory.memory_stats()["allocated_bytes.all.freed"], 0);
    memory.free(y);
    assert_eq!(memory.empty_cache(), Ok(40 * MIB));
    assert_eq!((memory.segments().len(), memory.memory_info().free_bytes), (0, 256 * MIB));
    assert!(memory.memory_summary("ours").contains("ours"));
    memory.check().unwrap();
}

#[test]
fn a_limit_holds_and_a_fraction_replaces_it() {
    let memory = device();
    memory.set_memory_limit(Some(10 * MIB));
    assert_eq!(memory.memory_limit(), Some(10 * MIB));
    assert!(matches!(memory.alloc(Request::of(12 * MIB)), Err(Error::OutOfMemory(_))));
    memory.set_memory_fraction(0.5).unwrap();
    assert_eq!(memory.memory_limit(), Some(128 * MIB));
    let x = memory.alloc(Request::of(12 * MIB)).unwrap();
    memory.set_memory_limit(None);
    assert_eq!(memory.memory_limit(), None);
    memory.free(x);
}

#[test]
fn a_panic_under_the_lock_does_not_make_the_next_call_panic() {
    let (memory, other) = (device(), device());
    let foreign = other.alloc(Request::of(1)).unwrap();
    let freed = catch_unwind(AssertUnwindSafe(|| memory.free(foreign)));
    assert!(freed.is_err(), "an allocation of another memory is a bug of the caller");
    let x = memory.alloc(Request::of(1)).unwrap();
    memory.free(x);
    memory.check().unwrap();
}

/// Callbacks run without the lock. One that frees into the same memory lets the request succeed.
#[test]
fn a_callback_that_frees_memory_lets_a_request_succeed() {
    let memory = DeviceMemory::new(Config::default(), SimDriver::with_capacity(64 * MIB));
    let kept: Arc<Mutex<Vec<Allocation>>> = Arc::default();
    let (theirs, handle) = (Arc::clone(&kept), memory.clone());
    memory.on_memory_wanted(|| CallbackResult::NothingFreed);
    memory.on_memory_wanted(move || match theirs.lock().unwrap().pop() {
        Some(allocation) => {
            handle.free(allocation);
            CallbackResult::Freed
        }
        None => CallbackResult::NothingFreed,
    });
    let x = memory.alloc(Request::of(60 * MIB)).unwrap();
    kept.lock().unwrap().push(x);
    let y = memory.alloc(Request::of(50 * MIB)).unwrap();
    assert_eq!(memory.memory_stats()["num_alloc_retries"], 0, "it was in the cache on the second look");
    assert!(memory.alloc(Request::of(50 * MIB)).is_err(), "the callback had nothing left to free");
    memory.free(y);
    memory.check().unwrap();
}

/// Beyond the limit, callbacks come first; `make_room` is called if they free nothing, and with what the request needs.
#[test]
fn room_is_made_at_the_limit_if_callbacks_free_nothing() {
    let memory = device();
    memory.set_memory_limit(Some(40 * MIB));
    let kept: Arc<Mutex<Vec<Allocation>>> = Arc::default();
    let (theirs, handle) = (Arc::clone(&kept), memory.clone());
    memory.on_memory_wanted(move || match theirs.lock().unwrap().pop() {
        Some(allocation) => {
            handle.free(allocation);
            CallbackResult::Freed
        }
        None => CallbackResult::NothingFreed,
    });
    let request = || Request::of(30 * MIB);
    let none = |_, _| panic!("no room is needed");
    let x = memory.alloc_within(request(), none).unwrap();
    kept.lock().unwrap().push(x);
    let mut y = Some(memory.alloc_within(request(), none).unwrap());
    let mut asked = None;
    let z = memory.alloc_within(request(), |bytes, kind| {
        asked = Some((bytes, kind));
        memory.free(y.take().unwrap());
        CallbackResult::Freed
    });
    assert_eq!(asked, Some((30 * MIB, PoolKind::Large)));
    assert_eq!(memory.memory_stats()["num_alloc_retries"], 0, "it was in the cache on the second look");
    let error = memory.alloc_within(request(), |_, _| CallbackResult::NothingFreed);
    assert!(error.is_err());
    memory.free(z.unwrap());
    memory.check().unwrap();
}

#[test]
fn an_out_of_memory_observer_may_query_the_memory() {
    let memory = device();
    let (seen, handle) = (Arc::new(Mutex::new(Vec::new())), memory.clone());
    let theirs = Arc::clone(&seen);
    memory.on_out_of_memory(move |why| {
        theirs.lock().unwrap().push((why.requested_bytes, handle.memory_reserved()));
    });
    assert!(memory.alloc(Request::of(300 * MIB)).is_err());
    assert_eq!(*seen.lock().unwrap(), [(300 * MIB, 0)]);
}

#[test]
fn a_pool_serves_the_thread_that_uses_it_and_the_newest_use_wins() {
    let memory = device();
    let (outer, inner) = (memory.new_pool().unwrap(), memory.new_pool().unwrap());
    assert_eq!((outer.id(), inner.id()), (PoolId(0, 1), PoolId(0, 2)));
    let in_outer = outer.use_here().unwrap();
    let in_inner = inner.use_here().unwrap();
    assert_eq!(memory.pool_use_count(inner.id()), Some(2));
    let x = memory.alloc(Request::of(1)).unwrap();
    drop(in_inner);
    let y = memory.alloc(Request::of(1)).unwrap();
    let z = thread::scope(|scope| scope.spawn(|| memory.alloc(Request::of(1)).unwrap()).join().unwrap());
    let named = memory.alloc(Request { pool: inner.id(), ..Request::of(1) }).unwrap();
    let pools: Vec<PoolId> = memory.segments().iter().map(|segment| segment.pool_id).collect();
    assert_eq!(pools, [inner.id(), outer.id(), PoolId::DEFAULT]);
    assert_eq!(named.addr().0, x.addr().0 + 512, "a request that names its pool is not sent elsewhere");
    assert_eq!((outer.segments().len(), outer.segments()[0].pool_id), (1, outer.id()));
    drop(in_outer);
    [x, y, z, named].into_iter().for_each(|block| memory.free(block));
    drop((outer, inner));
    assert_eq!(memory.memory_reserved(), 2 * MIB, "what the default pool has");
    memory.check().unwrap();
}

#[test]
fn the_requests_of_a_stream_or_all_requests_can_go_to_a_pool() {
    let memory = device();
    let pool = PoolId(1, 0);
    let pool_of = |stream: u64| {
        let x = memory.alloc(Request { stream: StreamId(stream), ..Request::of(1) }).unwrap();
        let segments = memory.segments();
        let holds = |segment: &&plimsoll_alloc::Segment| segment.addr == x.addr();
        let found = segments.iter().find(holds).map(|segment| segment.pool_id);
        memory.free(x);
        found
    };
    memory.begin_allocate_to_pool(pool, Redirect::Stream(StreamId(1))).unwrap();
    assert_eq!((pool_of(0), pool_of(1)), (Some(PoolId::DEFAULT), Some(pool)));
    memory.end_allocate_to_pool(pool).unwrap();
    memory.begin_allocate_to_pool(pool, Redirect::Everyone).unwrap();
    assert_eq!(pool_of(2), Some(pool));
    memory.end_allocate_to_pool(pool).unwrap();
    assert_eq!(pool_of(3), Some(PoolId::DEFAULT));
}
