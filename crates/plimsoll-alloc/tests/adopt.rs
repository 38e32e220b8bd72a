//! Imported state: an allocator that adopts the segments of another continues exactly as the other does.

use plimsoll_alloc::{
    Addr, Adoption, Allocation, Allocator, BlockState, Config, DeviceRange, Piece, PieceState, PoolId,
    PoolKind, Request, Segment, SimDriver, StreamId,
};

type World = Allocator<SimDriver, ()>;

fn world(config: &Config) -> World {
    Allocator::new(config.clone(), SimDriver::with_capacity(1 << 40), ())
}

/// Pseudo-random: returns a number below `sides`, the same on every machine.
fn roll(state: &mut u64, sides: u64) -> u64 {
    *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    (*state >> 33) % sides
}

fn memory(segment: &Segment) -> DeviceRange {
    let &Segment { addr, bytes, stream, pool, pool_id, .. } = segment;
    DeviceRange { addr, bytes, stream, pool, pool_id }
}

/// Adopts a snapshot of another allocator's segments. Returns the allocations in address order.
fn adopt(world: &mut World, segments: &[Segment]) -> Vec<Allocation> {
    let mut held = Vec::new();
    for segment in segments {
        let piece = |block: &plimsoll_alloc::SegmentBlock| {
            let state = match block.state {
                BlockState::Cached => PieceState::Cached,
                _ => PieceState::Held { requested_bytes: block.requested_bytes },
            };
            Piece { bytes: block.bytes, state }
        };
        let pieces: Vec<Piece> = segment.blocks.iter().map(piece).collect();
        let page_bytes = None;
        let adoption = Adoption { memory: memory(segment), page_bytes, pieces: &pieces };
        held.extend(world.adopt(&adoption).expect("an allocator's own segment"));
        assert_eq!(world.check(), Ok(()));
    }
    held
}

#[test]
fn an_allocator_that_adopts_the_state_of_another_behaves_as_the_other() {
    for seed in 0..100 {
        let mut dice = seed;
        let config = Config::default();
        let mut first = world(&config);
        let mut held: Vec<Allocation> = Vec::new();
        for _ in 0..200 {
            if roll(&mut dice, 3) > 0 || held.is_empty() {
                let magnitude = 9 + roll(&mut dice, 15);
                let bytes = 1 + roll(&mut dice, 1 << magnitude);
                let stream = StreamId(roll(&mut dice, 2));
                held.push(first.malloc(Request { stream, ..Request::of(bytes) }).expect("room"));
            } else {
                let nth = roll(&mut dice, held.len() as u64) as usize;
                first.free(held.swap_remove(nth));
            }
        }
        let mut second = world(&config);
        let mut adopted = adopt(&mut second, &first.segments());
        held.sort_by_key(Allocation::addr);
        assert_eq!(held.len(), adopted.len());
        assert_eq!((first.segments().len(), first.reserved()), (second.segments().len(), second.reserved()));
        for _ in 0..100 {
            if roll(&mut dice, 2) == 0 && !held.is_empty() {
                let nth = roll(&mut dice, held.len() as u64) as usize;
                assert_eq!(held[nth].addr(), adopted[nth].addr(), "seed {seed}");
                first.free(held.swap_remove(nth));
                second.free(adopted.swap_remove(nth));
            } else {
                let magnitude = 9 + roll(&mut dice, 13);
                let bytes = 1 + roll(&mut dice, 1 << magnitude);
                let Ok(plimsoll_alloc::CacheLookup::Hit(theirs)) = first.start(Request::of(bytes)) else {
                    continue;
                };
                let Ok(plimsoll_alloc::CacheLookup::Hit(ours)) = second.start(Request::of(bytes)) else {
                    panic!("seed {seed}: {bytes} bytes are in the cache")
                };
                assert_eq!((theirs.addr(), theirs.bytes()), (ours.addr(), ours.bytes()), "seed {seed}");
                held.push(theirs);
                adopted.push(ours);
            }
            assert_eq!(second.check(), Ok(()), "seed {seed}");
        }
    }
}

#[test]
fn pages_are_adopted_and_disowned() {
    const PAGE: u64 = 20 << 20;
    let (addr, stream, pool, pool_id) = (Addr(PAGE), StreamId(0), PoolKind::Large, PoolId::DEFAULT);
    let range = DeviceRange { addr, bytes: 10 * PAGE, stream, pool, pool_id };
    let mut world = world(&Config::default().with_expandable_segments(true));
    let pieces = [Piece { bytes: 10 * PAGE, state: PieceState::Unmapped }];
    assert_eq!(world.adopt(&Adoption { memory: range, page_bytes: Some(PAGE), pieces: &pieces }), Ok(vec![]));
    let pages =
        |first: u64, pages: u64| DeviceRange { addr: Addr((1 + first) * PAGE), bytes: pages * PAGE, ..range };
    let runs = |world: &World| {
        assert_eq!(world.check(), Ok(()));
        let segments = world.segments();
        segments.iter().map(|it| (it.addr.0 / PAGE - 1, it.bytes / PAGE)).collect::<Vec<_>>()
    };
    assert_eq!(world.adopt_pages(&pages(2, 3)), Ok(()));
    assert_eq!(world.adopt_pages(&pages(6, 4)), Ok(()));
    assert_eq!(runs(&world), [(2, 3), (6, 4)]);
    assert!(world.adopt_pages(&pages(4, 2)).is_err(), "one of them is mapped");
    assert_eq!(world.adopt_pages(&pages(5, 1)), Ok(()));
    assert_eq!(runs(&world), [(2, 8)]);
    let held = world.malloc(Request::of(30 << 20)).expect("it is cached");
    assert_eq!((held.addr(), world.reserved()), (Addr(3 * PAGE), 8 * PAGE));
    assert!(world.disown(&pages(3, 1)).is_err(), "half of it is held");
    assert_eq!(world.disown(&pages(5, 2)), Ok(()));
    assert_eq!((runs(&world), world.reserved()), (vec![(2, 3), (7, 3)], 6 * PAGE));
    assert!(world.disown(&DeviceRange { bytes: PAGE / 2, ..pages(8, 0) }).is_err(), "no whole page");
    world.free(held);
}

#[test]
fn a_block_freed_later_is_not_reused_until_its_free_completes() {
    let mut world = world(&Config::default());
    let x = world.malloc(Request::of(3 << 20)).expect("room");
    let at = x.addr();
    let waiting = world.free_later(x).expect("it held a block");
    assert_eq!(world.check(), Ok(()));
    let y = world.malloc(Request::of(3 << 20)).expect("room");
    assert_ne!(y.addr(), at);
    world.complete(waiting);
    assert_eq!(world.check(), Ok(()));
    let z = world.malloc(Request::of(3 << 20)).expect("room");
    assert_eq!(z.addr(), at);
    world.free(y);
    world.free(z);
}

#[test]
fn an_impossible_layout_is_refused_and_changes_nothing() {
    let mut world = world(&Config::default());
    let held = PieceState::Held { requested_bytes: 100 };
    let mut check = |addr, bytes, page_bytes, pieces: &[(u64, PieceState)], why: &str| {
        let (stream, pool) = (StreamId(0), if bytes == 20 << 20 { PoolKind::Large } else { PoolKind::Small });
        let memory = DeviceRange { addr: Addr(addr), bytes, stream, pool, pool_id: PoolId::DEFAULT };
        let pieces: Vec<Piece> = pieces.iter().map(|&(bytes, state)| Piece { bytes, state }).collect();
        let refused = world.adopt(&Adoption { memory, page_bytes, pieces: &pieces }).expect_err(why);
        assert_eq!((refused.why, world.reserved(), world.check()), (why, 0, Ok(())));
    };
    let cached = PieceState::Cached;
    check(0, 2 << 20, None, &[(2 << 20, cached)], "no segment can start at this address");
    check(512, u64::MAX, None, &[(u64::MAX, cached)], "no segment can start at this address");
    check(512, 2 << 20, None, &[(1 << 20, cached)], "the pieces do not add up to the segment's size");
    check(512, 4 << 20, None, &[(4 << 20, cached)], "a small segment must have 2 MiB");
    check(
        512,
        2 << 20,
        None,
        &[(100, held), ((2 << 20) - 100, cached)],
        "block sizes must be multiples of 512 bytes",
    );
    check(
        512,
        2 << 20,
        None,
        &[(1 << 20, cached), (1 << 20, cached)],
        "two neighbouring free pieces must be one block",
    );
    check(
        512,
        20 << 20,
        None,
        &[(20 << 20, PieceState::Unmapped)],
        "an unmapped piece is not a whole number of pages",
    );
    check(512, 20 << 20, Some(3 << 20), &[(20 << 20, cached)], "the segment is not a whole number of pages");
    let over = PieceState::Held { requested_bytes: 1 << 30 };
    check(512, 2 << 20, None, &[(2 << 20, over)], "a block must not be smaller than its request");
}
