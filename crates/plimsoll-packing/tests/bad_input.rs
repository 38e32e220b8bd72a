//! Buffers that cannot be packed and packings that are wrong give an error with the numbers.

use plimsoll_packing::{Effort, Error, Packing, lower_bound, pack, pack_within};

use crate::world::buffers;

#[track_caller]
fn check(rows: &[(u64, u64, u64)], error: &Error) {
    let buffers = buffers(rows);
    assert_eq!(lower_bound(&buffers).as_ref(), Err(error));
    assert_eq!(pack(&buffers, Effort::default()).as_ref(), Err(error));
    assert_eq!(pack_within(&buffers, 1, Effort::default()).as_ref(), Err(error));
    let offsets = vec![0; buffers.len()];
    assert_eq!(Packing { offsets, bytes: 1 }.check(&buffers).as_ref(), Err(error));
}

#[test]
fn an_empty_lifetime_is_rejected() {
    check(&[(0, 1, 1), (5, 5, 1)], &Error::EmptyLifetime { index: 1, lower: 5, upper: 5 });
    check(&[(6, 5, 1)], &Error::EmptyLifetime { index: 0, lower: 6, upper: 5 });
}

#[test]
fn sizes_whose_sum_is_too_large_are_rejected() {
    check(&[(0, 1, u64::MAX)], &Error::TooLarge { index: 0 });
    check(&[(0, 1, 1 << 61), (1, 2, 1 << 61)], &Error::TooLarge { index: 1 });
    check(&[(0, 1, u64::MAX), (0, 1, u64::MAX)], &Error::TooLarge { index: 0 });
}

#[track_caller]
fn wrong(offsets: &[u64], bytes: u64, error: &Error) {
    let buffers = buffers(&[(0, 4, 10), (2, 6, 10), (4, 8, 10)]);
    assert_eq!(Packing { offsets: offsets.to_vec(), bytes }.check(&buffers).as_ref(), Err(error));
}

#[test]
fn a_wrong_packing_is_rejected() {
    wrong(&[0, 10], 20, &Error::WrongLength { buffers: 3, offsets: 2 });
    wrong(&[0, 10, 11], 20, &Error::OutsideArena { index: 2, bytes: 20 });
    wrong(&[u64::MAX, 10, 0], 20, &Error::OutsideArena { index: 0, bytes: 20 });
    wrong(&[0, 9, 0], 20, &Error::Overlap { first: 0, second: 1 });
    wrong(&[0, 10, 5], 20, &Error::Overlap { first: 2, second: 1 });
    wrong(&[0, 0, 10], 20, &Error::Overlap { first: 0, second: 1 });
}

#[test]
fn errors_have_the_numbers() {
    let text = Error::Overlap { first: 3, second: 4 }.to_string();
    assert_eq!(text, "buffers 3 and 4 are alive at the same time and share bytes");
    let text = Error::OutsideArena { index: 2, bytes: 64 }.to_string();
    assert_eq!(text, "buffer 2 ends after the arena of 64 bytes");
}
