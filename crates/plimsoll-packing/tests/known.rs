//! Small worlds with a known optimum.

use plimsoll_packing::{Buffer, Effort, lower_bound, pack, pack_within};

use crate::world::{buffers, valid};

/// Checks the lower bound and the smallest arena, using every way to find it.
#[track_caller]
fn check(rows: &[(u64, u64, u64)], bound: u64, optimum: u64) {
    let buffers = buffers(rows);
    assert_eq!(lower_bound(&buffers), Ok(bound));
    let packing = pack(&buffers, Effort::default()).expect("valid buffers");
    assert_eq!(valid(&packing, &buffers), optimum);
    let within = |capacity| pack_within(&buffers, capacity, Effort::default()).expect("valid buffers");
    assert_eq!(valid(&within(optimum).expect("it fits"), &buffers), optimum);
    if optimum > 0 {
        assert_eq!(within(optimum - 1), None);
    }
}

#[test]
fn no_buffers_need_no_bytes() {
    check(&[], 0, 0);
}

#[test]
fn one_buffer_is_at_offset_zero() {
    check(&[(3, 4, 7)], 7, 7);
}

#[test]
fn buffers_whose_lifetimes_only_touch_share_bytes() {
    check(&[(0, 2, 5), (2, 4, 5), (4, 6, 5)], 5, 5);
}

#[test]
fn buffers_that_are_alive_together_are_stacked() {
    check(&[(0, 9, 1), (0, 9, 2), (0, 9, 3)], 6, 6);
}

#[test]
fn a_hole_between_two_buffers_is_filled() {
    check(&[(0, 10, 4), (0, 3, 4), (7, 10, 4), (3, 7, 4)], 8, 8);
}

#[test]
fn the_optimum_can_be_above_the_lower_bound() {
    check(&[(2, 6, 2), (5, 9, 2), (6, 9, 3), (2, 6, 2), (4, 5, 3), (5, 8, 2)], 8, 9);
}

#[test]
fn an_empty_buffer_needs_no_bytes() {
    check(&[(0, 5, 0), (0, 5, 0), (1, 4, 3), (2, 6, 0)], 3, 3);
}

#[test]
fn equal_buffers_are_packed_like_bricks() {
    let rows: Vec<(u64, u64, u64)> = (0..60).map(|at| (at, at + 6, 512)).collect();
    check(&rows, 6 * 512, 6 * 512);
}

#[test]
fn offsets_are_multiples_of_what_all_sizes_are_multiples_of() {
    let rows: Vec<(u64, u64, u64)> =
        (0..80).map(|at| (at * 7 % 50, at * 7 % 50 + 1 + at % 9, 512 * (1 + at * at % 11))).collect();
    let buffers = buffers(&rows);
    let packing = pack(&buffers, Effort::default()).expect("valid buffers");
    valid(&packing, &buffers);
    assert!(packing.offsets.iter().all(|offset| offset % 512 == 0));
}

#[test]
fn times_may_be_as_large_as_they_can() {
    let last = u64::MAX;
    check(&[(0, last, 3), (last - 1, last, 4)], 7, 7);
    assert!(Buffer { lower: 0, upper: last, size: 1 }.overlaps(&Buffer {
        lower: last - 1,
        upper: last,
        size: 1
    }));
}

#[test]
fn a_capacity_may_be_larger_than_needed() {
    let buffers = buffers(&[(0, 4, 2), (1, 3, 5), (2, 4, 1)]);
    let packing = pack_within(&buffers, u64::MAX, Effort::default()).expect("valid buffers");
    assert_eq!(packing.map(|it| valid(&it, &buffers)), Some(8));
}

#[test]
fn more_steps_never_give_a_larger_arena() {
    let rows: Vec<(u64, u64, u64)> =
        (0..120).map(|at| (at * 13 % 70, at * 13 % 70 + 1 + at % 17, 1 + at * at % 23)).collect();
    let buffers = buffers(&rows);
    let bytes = |steps| valid(&pack(&buffers, Effort { steps }).expect("valid buffers"), &buffers);
    assert!(bytes(0) >= bytes(100_000) && bytes(100_000) >= bytes(1_000_000));
}
