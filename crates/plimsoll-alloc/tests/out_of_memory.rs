//! The out-of-memory error: its figures, PyTorch's text, and the conclusion. The figures are from specification 8.2.

use plimsoll_alloc::{Allocator, Conclusion, Config, Error, OutOfMemory, PoolId, Request, SimDriver};

use crate::trace::{MIB, device};

#[track_caller]
fn fail<D: plimsoll_alloc::Driver, O: plimsoll_alloc::Observer>(
    allocator: &mut Allocator<D, O>,
    bytes: u64,
) -> OutOfMemory {
    match allocator.malloc(Request::of(bytes)) {
        Err(Error::OutOfMemory(why)) => *why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn free_bytes_of_private_pools_are_counted_as_pytorch_counts_them() {
    let mut a = device(300 * MIB, "");
    let pool = PoolId(0, 1);
    a.create_pool(pool).unwrap();
    let in_pool = [40, 60].map(|mib| a.malloc(Request { pool, ..Request::of(mib * MIB) }).unwrap());
    let live = a.malloc(Request::of(100 * MIB)).unwrap();
    let [held, freed] = in_pool;
    a.free(freed);
    let why = fail(&mut a, 150 * MIB);
    assert_eq!(
        (why.allocated_bytes, why.private_cached_bytes, why.reserved_bytes),
        (140 * MIB, 60 * MIB, 200 * MIB)
    );
    let text = why.pytorch_text(0);
    assert!(
        text.starts_with(
            "CUDA out of memory. Tried to allocate 150.00 MiB. GPU 0 has a total capacity of 300.00 MiB of which \
             100.00 MiB is free. Of the allocated memory 200.00 MiB is allocated by PyTorch, with 60.00 MiB \
             allocated in private pools (e.g., CUDA Graphs), and 0 bytes is reserved by PyTorch but unallocated. \
             If reserved"
        ),
        "{text}"
    );
    assert_eq!(
        why.conclusion().to_string(),
        "enough memory is free, but not contiguous: 60.00 MiB is cached, of which 60.00 MiB in private pools; \
         expandable_segments:True may help"
    );
    a.free(held);
    a.free(live);
}

#[test]
fn the_conclusion_follows_from_the_figures() {
    let mut a = device(100 * MIB, "");
    a.set_memory_limit(Some(90 * MIB));
    let x = a.malloc(Request::of(60 * MIB)).unwrap();
    let why = fail(&mut a, 40 * MIB);
    assert_eq!(why.conclusion(), Conclusion::Capacity { missing_bytes: 10 * MIB, limited: true });
    assert!(why.pytorch_text(3).contains("90.00 MiB allowed; "));
    a.free(x);
    let keep = [(); 3].map(|()| a.malloc(Request::of(9 * MIB)).unwrap());
    let y = a.malloc(Request::of(30 * MIB)).unwrap();
    let why = fail(&mut a, 31 * MIB); // the limit leaves 30 MiB, and 3 are in the cache
    let Conclusion::Fragmentation { cached_bytes, can_expand: true, .. } = why.conclusion() else {
        panic!("{:?}", why.conclusion())
    };
    assert_eq!(cached_bytes, why.reserved_bytes - why.allocated_bytes);
    keep.into_iter().for_each(|block| a.free(block));
    a.free(y);
}

#[test]
fn memory_used_by_others_is_named() {
    /// A device on which others use 70 MiB.
    struct Shared(SimDriver);
    impl plimsoll_alloc::Driver for Shared {
        fn segment_alloc(&mut self, bytes: u64) -> Result<plimsoll_alloc::Addr, plimsoll_alloc::DriverError> {
            self.0.segment_alloc(bytes)
        }
        fn segment_free(&mut self, addr: plimsoll_alloc::Addr) -> Result<(), plimsoll_alloc::DriverError> {
            self.0.segment_free(addr)
        }
        fn memory(&self) -> plimsoll_alloc::MemoryInfo {
            plimsoll_alloc::MemoryInfo { total_bytes: 100 * MIB, ..self.0.memory() }
        }
    }
    let mut a = Allocator::new(Config::default(), Shared(SimDriver::with_capacity(30 * MIB)), ());
    let x = a.malloc(Request::of(20 * MIB)).unwrap();
    let why = fail(&mut a, 40 * MIB);
    assert_eq!(why.conclusion(), Conclusion::HeldByOthers { others_bytes: 70 * MIB });
    assert_eq!(
        why.conclusion().to_string(),
        "the missing memory is used outside this allocator, where 70.00 MiB are in use"
    );
    a.free(x);
}

/// The texts of PyTorch 2.15 for these requests, recorded on the oracle (shared/tools/oracle).
#[test]
fn the_hint_follows_the_options_as_pytorchs_does() {
    let mut a = device(1000 * MIB, "expandable_segments:True");
    let x = a.malloc(Request::of(60 * MIB)).unwrap();
    let why = OutOfMemory { device_free_bytes: 40 * MIB, ..fail(&mut a, 970 * MIB) };
    assert_eq!(
        why.pytorch_text(0),
        "CUDA out of memory. Tried to allocate 970.00 MiB. GPU 0 has a total capacity of 1000.00 MiB of which \
         40.00 MiB is free. Of the allocated memory 60.00 MiB is allocated by PyTorch, and 0 bytes is reserved by \
         PyTorch but unallocated. expandable_segments is enabled. If instead the process is running out of virtual \
         address space (VSZ), expandable segments may be over-reserving VA (each segment reserves ~9/8 of device \
         memory, times the number of streams); reduce it via PYTORCH_CUDA_ALLOC_CONF expandable_segments_reserve / \
         expandable_segments_reserve_by_class."
    );
    a.free(x);
    let mut a = device(1000 * MIB, "expandable_segments:True,expandable_segments_reserve:0.25");
    let why = fail(&mut a, 500 * MIB);
    assert_eq!(why.conclusion(), Conclusion::Reserve { reserve_bytes: 250 * MIB });
    assert!(
        why.pytorch_text(0).ends_with(
            " This allocation exceeds the expandable-segment reserve of 250.00 MiB for this stream, and a single \
             allocation cannot span expandable segments. Raise PYTORCH_CUDA_ALLOC_CONF expandable_segments_reserve \
             or expandable_segments_reserve_by_class (or unset it) so that a segment is at least 500.00 MiB."
        ),
        "{}",
        why.pytorch_text(0)
    );
}

#[test]
fn an_option_that_is_on_is_not_recommended() {
    let mut a = device(100 * MIB, "expandable_segments:True");
    let blocks = [(); 5].map(|()| a.malloc(Request::of(19 * MIB)).unwrap());
    let why = fail(&mut a, 30 * MIB);
    let said = format!("{} {} {}", why, why.conclusion(), why.pytorch_text(0));
    assert!(!said.contains("expandable_segments:True"), "{said}");
    blocks.into_iter().for_each(|block| a.free(block));
}
