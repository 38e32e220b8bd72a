//! A private pool with its own segment allocator: PyTorch's results, recorded by `oracle/segment_allocator.py`.

use std::sync::{Arc, Mutex};

use plimsoll_alloc::{
    Addr, Allocation, BlockState, Conclusion, DriverError, Error, PoolError, PoolId, Request,
    SegmentAllocator, StreamId,
};

use crate::trace::{MIB, Traced, assert_sound, device};

const POOL: PoolId = PoolId(0, 1);

/// Returns ascending addresses as long as it has room, and records its calls.
#[derive(Debug)]
struct Shelf(Mutex<State>);

#[derive(Debug)]
struct State {
    next: u64,
    room_bytes: u64,
    calls: Vec<String>,
}

impl Shelf {
    fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(State { next: 0x1000_0000_0000, room_bytes: 1 << 40, calls: Vec::new() })))
    }

    fn calls(&self) -> String {
        std::mem::take(&mut self.0.lock().unwrap().calls).join(" ")
    }

    fn set_room(&self, bytes: u64) {
        self.0.lock().unwrap().room_bytes = bytes;
    }
}

impl SegmentAllocator for Shelf {
    fn segment_alloc(&self, bytes: u64, on: StreamId) -> Result<Addr, DriverError> {
        let mut state = self.0.lock().unwrap();
        if bytes > state.room_bytes {
            state.calls.push(format!("+{bytes} refused"));
            return Err(DriverError::OutOfMemory);
        }
        state.room_bytes -= bytes;
        state.next += bytes;
        state.calls.push(format!("+{bytes}@{}", on.0));
        Ok(Addr(state.next - bytes))
    }

    fn segment_free(&self, _at: Addr, bytes: u64, on: StreamId) -> Result<(), DriverError> {
        let mut state = self.0.lock().unwrap();
        state.room_bytes += bytes;
        state.calls.push(format!("-{bytes}@{}", on.0));
        Ok(())
    }
}

fn alloc(a: &mut Traced, pool: PoolId, bytes: u64, stream: u64) -> Allocation {
    a.malloc(Request { pool, stream: StreamId(stream), ..Request::of(bytes) }).unwrap()
}

/// allocated and reserved bytes; retries, ooms, device_alloc, device_free.
fn stats(a: &Traced) -> [i64; 6] {
    assert_sound(a);
    let stats = &a.observer().0;
    let (allocated, reserved) = (stats.allocated_bytes().all.current, stats.reserved_bytes().all.current);
    [
        allocated,
        reserved,
        stats.num_alloc_retries,
        stats.num_ooms,
        stats.num_device_alloc,
        stats.num_device_free,
    ]
}

fn blocks(a: &Traced) -> Vec<String> {
    let segments = a.segments();
    let of_pool = segments.iter().filter(|segment| segment.pool_id == POOL);
    let row = |segment: &plimsoll_alloc::Segment| {
        assert!(!segment.is_expandable);
        let blocks = segment.blocks.iter().map(|block| {
            format!("{}{}", block.bytes, if block.state == BlockState::Active { "H" } else { "" })
        });
        blocks.collect::<Vec<_>>().join(" ")
    };
    of_pool.map(row).collect()
}

#[test]
fn a_pools_own_allocator_is_called_as_in_pytorch() {
    let mut a = device(80 << 30, "");
    let shelf = Shelf::new();
    a.create_pool_with_allocator(POOL, shelf.clone()).unwrap();
    let x = alloc(&mut a, POOL, 3 * MIB, 0);
    assert_eq!((shelf.calls().as_str(), stats(&a)), ("+20971520@0", [3_145_728, 20_971_520, 0, 0, 1, 0]));
    let y = alloc(&mut a, POOL, 100, 0);
    assert_eq!((shelf.calls().as_str(), stats(&a)), ("+2097152@0", [3_146_240, 23_068_672, 0, 0, 2, 0]));
    let z = alloc(&mut a, POOL, 11 * MIB, 1);
    assert_eq!((shelf.calls().as_str(), stats(&a)), ("+12582912@1", [15_729_152, 35_651_584, 0, 0, 3, 0]));
    a.set_config(a.config().clone().with_expandable_segments(true));
    let w = alloc(&mut a, POOL, 30 * MIB, 0);
    assert_eq!((shelf.calls().as_str(), stats(&a)), ("+31457280@0", [47_186_432, 67_108_864, 0, 0, 4, 0]));
    a.set_config(a.config().clone().with_expandable_segments(false));
    shelf.set_room(19 * MIB);
    let v = alloc(&mut a, POOL, 17 * MIB, 0);
    assert_eq!((shelf.calls().as_str(), stats(&a)), ("", [65_012_224, 67_108_864, 0, 0, 4, 0]));
    assert_eq!(blocks(&a), ["3145728H 17825792H", "512H 2096640", "12582912H", "31457280H"]);

    let Err(Error::OutOfMemory(why)) = a.malloc(Request { pool: POOL, ..Request::of(20 * MIB) }) else {
        panic!("it fits?")
    };
    assert_eq!(shelf.calls(), "+20971520 refused +20971520 refused");
    assert_eq!(stats(&a), [65_012_224, 67_108_864, 1, 1, 4, 0]);
    assert_eq!(why.conclusion(), Conclusion::SegmentAllocator);
    assert_eq!(
        why.pytorch_text(0),
        "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 80.00 GiB of which 80.00 GiB is \
         free. Of the allocated memory 64.00 MiB is allocated by PyTorch, with 2.00 MiB allocated in private pools \
         (e.g., CUDA Graphs), and 0 bytes is reserved by PyTorch but unallocated. If reserved but unallocated memory is \
         large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation \
         for Memory Management  (https://docs.pytorch.org/docs/stable/notes/cuda.html\
         #optimizing-memory-usage-with-pytorch-cuda-alloc-conf) The custom allocator backing this MemPool returned \
         nullptr. Check preceding allocator warnings or logs for the underlying cause. This can indicate an \
         allocator-specific error or memory constraint, even when device-wide free memory is available."
    );

    let d = alloc(&mut a, PoolId::DEFAULT, 3 * MIB, 0);
    assert_eq!((shelf.calls().as_str(), stats(&a)), ("", [68_157_952, 88_080_384, 1, 1, 5, 0]));
    [x, y, z, w, v].into_iter().for_each(|block| a.free(block));
    assert_eq!(a.empty_cache(), Ok(0), "the pool is in use");
    assert_eq!(blocks(&a), ["20971520", "2097152", "12582912", "31457280"]);

    a.set_memory_fraction(0.001).unwrap();
    shelf.set_room(1 << 40);
    let Err(Error::OutOfMemory(why)) = a.malloc(Request { pool: POOL, ..Request::of(200 * MIB) }) else {
        panic!("it fits?")
    };
    assert_eq!((shelf.calls().as_str(), stats(&a)), ("", [3_145_728, 88_080_384, 2, 2, 5, 0]));
    assert!(!why.pytorch_text(0).contains("custom allocator"), "it was not asked");
    a.set_memory_fraction(1.0).unwrap();

    a.release_pool(POOL).unwrap();
    assert_eq!(a.empty_pool(POOL), Ok(64 * MIB));
    assert_eq!(shelf.calls(), "-2097152@0 -20971520@0 -31457280@0 -12582912@1");
    assert_eq!(stats(&a), [3_145_728, 20_971_520, 2, 2, 5, 4]);
    a.free(d);
}

#[test]
fn a_pool_gets_its_allocator_at_creation_and_keeps_it_alive() {
    let mut a = device(1024 * MIB, "");
    a.create_pool(POOL).unwrap();
    let shelf = Shelf::new();
    assert_eq!(
        a.create_pool_with_allocator(POOL, shelf.clone()),
        Err(PoolError::Exists(POOL).into()),
        "PyTorch asserts"
    );
    a.release_pool(POOL).unwrap();
    a.empty_pool(POOL).unwrap();
    a.create_pool_with_allocator(POOL, shelf.clone()).unwrap();
    a.create_pool(POOL).unwrap();
    let weak = Arc::downgrade(&shelf);
    drop(shelf);
    let x = alloc(&mut a, POOL, 1, 0);
    a.free(x);
    a.release_pool(POOL).unwrap();
    a.release_pool(POOL).unwrap();
    assert_eq!(a.empty_pool(POOL), Ok(2 * MIB));
    assert!(weak.upgrade().is_none(), "the pool is gone, and its allocator with it");
    a.create_pool(POOL).unwrap();
    let x = alloc(&mut a, POOL, 1, 0);
    assert_eq!(a.memory_info().free_bytes, 1022 * MIB, "a new pool of the name asks the device");
    a.free(x);
}

#[test]
fn a_failing_allocator_is_reported_and_segments_it_cannot_free_stay_cached() {
    /// Allocates one segment, and fails to free it.
    #[derive(Debug)]
    struct Stubborn(Mutex<bool>);
    impl SegmentAllocator for Stubborn {
        fn segment_alloc(&self, _bytes: u64, _on: StreamId) -> Result<Addr, DriverError> {
            match std::mem::replace(&mut *self.0.lock().unwrap(), true) {
                false => Ok(Addr(512)),
                true => Err(DriverError::Failed("no".into())),
            }
        }
        fn segment_free(&self, _at: Addr, _bytes: u64, _on: StreamId) -> Result<(), DriverError> {
            Err(DriverError::Failed("mine now".into()))
        }
    }
    let mut a = device(1024 * MIB, "");
    a.create_pool_with_allocator(POOL, Arc::new(Stubborn(Mutex::new(false)))).unwrap();
    let x = alloc(&mut a, POOL, 1, 0);
    let no = Err(DriverError::Failed("no".into()).into());
    assert_eq!(a.malloc(Request { pool: POOL, ..Request::of(3 * MIB) }), no);
    a.free(x);
    a.release_pool(POOL).unwrap();
    assert_eq!(a.empty_pool(POOL), Err(DriverError::Failed("mine now".into()).into()));
    assert_eq!(stats(&a)[1], 2 * MIB as i64);
}
