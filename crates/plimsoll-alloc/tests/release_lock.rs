//! `release_lock_on_cudamalloc`: what other threads can do while the device allocates a segment.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use plimsoll_alloc::{
    Addr, Config, DeviceMemory, Driver, DriverError, Error, MemoryInfo, PoolId, Request, SegmentAllocator,
    SimDriver, StreamId,
};

const MIB: u64 = 1 << 20;
const POOL: PoolId = PoolId(0, 1);

/// Signals that the allocation of a large segment has begun, and blocks it until the test opens the gate.
#[derive(Debug)]
struct Gate {
    begun: Sender<()>,
    go: Receiver<()>,
}

impl Gate {
    fn pass(&self, bytes: u64) {
        if bytes > 20 * MIB {
            self.begun.send(()).unwrap();
            self.go.recv().unwrap();
        }
    }
}

/// A device that is slow to allocate large segments.
struct Slow(SimDriver, Gate);

impl Driver for Slow {
    fn segment_alloc(&mut self, bytes: u64) -> Result<Addr, DriverError> {
        self.1.pass(bytes);
        self.0.segment_alloc(bytes)
    }

    fn segment_free(&mut self, addr: Addr) -> Result<(), DriverError> {
        self.0.segment_free(addr)
    }

    fn memory(&self) -> MemoryInfo {
        self.0.memory()
    }
}

/// A pool's own allocator that has one segment and is slow.
#[derive(Debug)]
struct SlowPool(Addr, Mutex<Gate>);

impl SegmentAllocator for SlowPool {
    fn segment_alloc(&self, bytes: u64, _on: StreamId) -> Result<Addr, DriverError> {
        self.1.lock().unwrap().pass(bytes);
        Ok(self.0)
    }

    fn segment_free(&self, _at: Addr, _bytes: u64, _on: StreamId) -> Result<(), DriverError> {
        Ok(())
    }
}

/// A gate, the signal that a thread has reached it, and the signal that opens it.
fn gate() -> (Gate, Receiver<()>, Sender<()>) {
    let (begun, is_begun) = channel();
    let (let_go, go) = channel();
    (Gate { begun, go }, is_begun, let_go)
}

fn memory(options: &str, capacity_bytes: u64) -> (DeviceMemory, Receiver<()>, Sender<()>) {
    let (gate, is_begun, let_go) = gate();
    let driver = Slow(SimDriver::with_capacity(capacity_bytes), gate);
    (DeviceMemory::new(Config::parse(options).unwrap().config, driver), is_begun, let_go)
}

const ON: &str = "release_lock_on_cudamalloc:True";

/// Whether the cache serves requests and frees of others while a thread waits for a segment.
fn others_go_on(options: &str) -> bool {
    let (memory, is_begun, let_go) = memory(options, 256 * MIB);
    let small = memory.alloc(Request::of(3 * MIB)).unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| memory.alloc(Request::of(60 * MIB)));
        is_begun.recv().unwrap();
        let (done, is_done) = channel();
        let memory = &memory;
        let other = scope.spawn(move || {
            let other = memory.alloc(Request::of(5 * MIB)).unwrap();
            memory.free(other);
            memory.free(small);
            done.send(()).unwrap();
        });
        let went_on = is_done.recv_timeout(Duration::from_secs(1)).is_ok();
        let_go.send(()).unwrap();
        other.join().unwrap();
        let large = waiting.join().unwrap().unwrap();
        assert_eq!((memory.memory_reserved(), memory.memory_allocated()), (80 * MIB, 60 * MIB));
        memory.check().unwrap();
        memory.free(large);
        went_on
    })
}

#[test]
fn with_the_option_other_threads_use_the_cache_while_a_segment_is_allocated() {
    assert!(others_go_on(ON));
    assert!(!others_go_on(""), "PyTorch's default: all wait");
}

/// As in PyTorch, the limit is checked before the lock is released, so two requests can exceed it together.
#[test]
fn concurrent_requests_do_not_count_each_other_against_the_limit() {
    let (memory, _, _) = memory(ON, 256 * MIB);
    memory.set_memory_limit(Some(100 * MIB));
    let pools = [(POOL, 60 * MIB), (PoolId(0, 2), 70 * MIB)].map(|(pool, bytes)| {
        let (gate, is_begun, let_go) = gate();
        let slow = SlowPool(Addr(pool.1 << 32), Mutex::new(gate));
        memory.create_pool_with_allocator(pool, Arc::new(slow)).unwrap();
        (Request { pool, ..Request::of(bytes) }, is_begun, let_go)
    });
    thread::scope(|scope| {
        let memory = &memory;
        let waiting = pools.map(|(request, is_begun, let_go)| {
            let block = scope.spawn(move || memory.alloc(request));
            is_begun.recv().unwrap();
            (block, let_go)
        });
        for (block, let_go) in waiting {
            let_go.send(()).unwrap();
            memory.free(block.join().unwrap().unwrap());
        }
    });
    assert_eq!((memory.memory_reserved(), memory.memory_limit()), (130 * MIB, Some(100 * MIB)));
    memory.check().unwrap();
}

#[test]
fn a_cache_miss_takes_the_same_steps_with_and_without_the_lock() {
    let run = |options| {
        let (memory, is_begun, let_go) = memory(options, 100 * MIB);
        (0..10).for_each(|_| let_go.send(()).unwrap());
        let x = memory.alloc(Request::of(60 * MIB)).unwrap();
        memory.free(x);
        let y = memory.alloc(Request::of(90 * MIB)).unwrap();
        let refused = memory.alloc(Request::of(30 * MIB));
        assert!(matches!(refused, Err(Error::OutOfMemory(_))));
        memory.free(y);
        memory.check().unwrap();
        (memory.memory_stats(), memory.segments(), is_begun.try_iter().count())
    };
    assert_eq!(run(ON), run(""));
}

#[test]
fn a_pool_is_kept_while_a_segment_is_allocated_for_it() {
    let (memory, _, _) = memory(ON, 256 * MIB);
    let (gate, is_begun, let_go) = gate();
    memory.create_pool_with_allocator(POOL, Arc::new(SlowPool(Addr(1 << 32), Mutex::new(gate)))).unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| memory.alloc(Request { pool: POOL, ..Request::of(60 * MIB) }));
        is_begun.recv().unwrap();
        memory.release_pool(POOL).unwrap();
        assert_eq!((memory.empty_pool(POOL), memory.pool_use_count(POOL)), (Ok(0), Some(0)));
        assert_eq!(memory.empty_cache(), Ok(0));
        let_go.send(()).unwrap();
        let block = waiting.join().unwrap().unwrap();
        assert_eq!(memory.segments()[0].pool_id, POOL);
        memory.free(block);
    });
    assert_eq!((memory.empty_pool(POOL), memory.pool_use_count(POOL)), (Ok(60 * MIB), None));
    memory.check().unwrap();
}
