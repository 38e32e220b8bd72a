//! Random small lists, which are compared with all orders, and random larger ones, which only have to be valid.

use plimsoll_packing::{Buffer, Effort, pack, pack_within};

use crate::world::{Numbers, valid};

fn some(numbers: &mut Numbers, count: u64, times: u64, sizes: u64) -> Vec<Buffer> {
    let buffer = |numbers: &mut Numbers| {
        let lower = numbers.below(times);
        let upper = lower + 1 + numbers.below(times - lower);
        Buffer { lower, upper, size: 1 + numbers.below(sizes) }
    };
    (0..count).map(|_| buffer(numbers)).collect()
}

/// The smallest arena. In some smallest packing, no buffer can move down, so it results from some order in which each buffer
/// is placed above the earlier ones.
fn optimum(buffers: &[Buffer], ends: &mut [Option<u64>], most: u64) -> u64 {
    let mut best = u64::MAX;
    let mut complete = true;
    for at in 0..buffers.len() {
        if ends[at].is_some() {
            continue;
        }
        complete = false;
        let below = buffers.iter().zip(ends.iter()).filter(|(other, _)| other.overlaps(&buffers[at]));
        let end = below.filter_map(|(_, end)| *end).max().unwrap_or(0) + buffers[at].size;
        ends[at] = Some(end);
        best = best.min(optimum(buffers, ends, most.max(end)));
        ends[at] = None;
    }
    if complete { most } else { best }
}

#[test]
fn small_lists_get_the_smallest_arena() {
    let mut numbers = Numbers(1);
    for round in 0..600 {
        let count = 1 + numbers.below(7);
        let (times, sizes) = (2 + numbers.below(9), 1 + numbers.below(9));
        let buffers = some(&mut numbers, count, times, sizes);
        let optimum = optimum(&buffers, &mut vec![None; buffers.len()], 0);
        let packing = pack(&buffers, Effort::default()).expect("valid buffers");
        assert_eq!(valid(&packing, &buffers), optimum, "round {round}: {buffers:?}");
        let within = |capacity| pack_within(&buffers, capacity, Effort::default()).expect("valid buffers");
        assert_eq!(
            within(optimum).map(|it| valid(&it, &buffers) <= optimum),
            Some(true),
            "round {round}: {buffers:?}"
        );
        assert_eq!(within(optimum - 1), None, "round {round}: {buffers:?}");
    }
}

#[test]
fn larger_lists_get_valid_packings() {
    let mut numbers = Numbers(2);
    for count in [20, 60, 150, 400] {
        let buffers = some(&mut numbers, count, 40, 100);
        let packing = pack(&buffers, Effort { steps: 200_000 }).expect("valid buffers");
        valid(&packing, &buffers);
    }
}

#[test]
fn a_list_that_is_too_long_to_search_gets_a_valid_packing() {
    let mut numbers = Numbers(3);
    let mut buffers = some(&mut numbers, 200, 3000, 1 << 20);
    for at in 0..3500 {
        buffers.push(Buffer {
            lower: at % 2990,
            upper: at % 2990 + 1 + numbers.below(9),
            size: 1 + numbers.below(1 << 12),
        });
    }
    let packing = pack(&buffers, Effort { steps: 2_000_000 }).expect("valid buffers");
    valid(&packing, &buffers);
}

#[test]
fn the_same_buffers_get_the_same_offsets() {
    let buffers = some(&mut Numbers(4), 100, 50, 1000);
    let effort = Effort { steps: 300_000 };
    assert_eq!(pack(&buffers, effort), pack(&buffers, effort));
}
