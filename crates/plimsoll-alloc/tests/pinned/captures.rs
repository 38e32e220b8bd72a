//! Pools of graph captures: invalid calls, and the removal of a pool. `oracle.rs` compares with PyTorch what happens to
//! blocks in a capture.

use plimsoll_alloc::{
    DeviceStream, During, PinnedAllocator, PinnedConfig, PinnedError, PinnedEvent, PinnedRequest,
    PinnedState, PoolError, PoolId, SimHost,
};

type Pinned = PinnedAllocator<SimHost, Vec<PinnedEvent>>;

const POOL: PoolId = PoolId(1, 0);
const CAPTURED: PinnedRequest = PinnedRequest { bytes: 1000, pool: POOL, during: During::Capture };

fn pinned() -> Pinned {
    PinnedAllocator::new(PinnedConfig::default(), SimHost::with_capacity(1 << 20), Vec::new())
}

fn refused<T>(why: PoolError) -> Result<T, PinnedError> {
    Err(PinnedError::Pool(why))
}

#[test]
fn a_pool_is_begun_ended_and_released_in_turn() {
    let mut pinned = pinned();
    assert_eq!(pinned.alloc(CAPTURED), refused(PoolError::Unknown(POOL)));
    assert_eq!(pinned.release_pool(POOL), refused(PoolError::Unknown(POOL)));
    assert_eq!(pinned.end_allocate_to_pool(POOL), refused(PoolError::NotRecording(POOL)));
    pinned.begin_allocate_to_pool(POOL).unwrap();
    assert_eq!(pinned.begin_allocate_to_pool(POOL), refused(PoolError::AlreadyRecording(POOL)));
    pinned.end_allocate_to_pool(POOL).unwrap();
    assert_eq!(pinned.alloc(CAPTURED), refused(PoolError::NotRecording(POOL)));
    pinned.release_pool(POOL).unwrap();
    assert_eq!(pinned.release_pool(POOL), refused(PoolError::Unused(POOL)));
    assert_eq!(pinned.begin_allocate_to_pool(POOL), refused(PoolError::Unused(POOL)));
    pinned.empty_cache().unwrap();
    assert_eq!(pinned.observer()[..], [PinnedEvent::PoolErased { pool: POOL }]);
    pinned.begin_allocate_to_pool(POOL).unwrap(); // a new pool
}

#[test]
fn the_default_pool_cannot_be_begun_or_released() {
    let mut pinned = pinned();
    let unknown = PoolError::Unknown(PoolId::DEFAULT);
    assert_eq!(pinned.begin_allocate_to_pool(PoolId::DEFAULT), refused(unknown));
    assert_eq!(pinned.release_pool(PoolId::DEFAULT), refused(unknown));
    pinned.check().unwrap();
}

#[test]
fn a_block_used_by_a_graph_is_never_freed_nor_is_its_pool() {
    let mut pinned = pinned();
    pinned.begin_allocate_to_pool(POOL).unwrap();
    let block = pinned.alloc(CAPTURED).unwrap();
    assert!(pinned.record_event(block.addr(), DeviceStream::default()));
    pinned.end_allocate_to_pool(POOL).unwrap();
    pinned.free(block).unwrap();
    pinned.release_pool(POOL).unwrap();
    assert_eq!(pinned.empty_cache(), Ok(0));
    assert_eq!(pinned.segments()[0].state, PinnedState::Retired);
    assert!(!pinned.observer().contains(&PinnedEvent::PoolErased { pool: POOL }));
    pinned.check().unwrap();
}

#[test]
fn an_unused_block_of_a_capture_is_used_again_in_its_pool_only() {
    let mut pinned = pinned();
    pinned.begin_allocate_to_pool(POOL).unwrap();
    let block = pinned.alloc(CAPTURED).unwrap();
    let addr = block.addr();
    pinned.free(block).unwrap();
    let other = pinned.alloc(PinnedRequest::of(1000)).unwrap();
    let again = pinned.alloc(CAPTURED).unwrap();
    assert_ne!(other.addr(), addr);
    assert_eq!(again.addr(), addr);
    pinned.free(other).unwrap();
    pinned.free(again).unwrap();
}
