//! Generated lists that fill their arena completely: a rectangle of time and bytes, cut into buffers. First fit fails on them.

use plimsoll_packing::{Buffer, Effort, lower_bound, pack};

use crate::world::{Numbers, valid};

/// Cuts a rectangle until the parts are small. All parts are buffers, so the arena has no free bytes at any time.
fn cut(numbers: &mut Numbers, [lower, upper, from, to]: [u64; 4], parts: &mut Vec<Buffer>) {
    let (width, height) = (upper - lower, to - from);
    let is_small = width * height < 2000 || width < 4 || height < 4;
    if is_small {
        parts.push(Buffer { lower, upper, size: height });
        return;
    }
    if numbers.below(width + height) < width {
        let at = lower + 1 + numbers.below(width - 1);
        cut(numbers, [lower, at, from, to], parts);
        cut(numbers, [at, upper, from, to], parts);
    } else {
        let at = from + 1 + numbers.below(height - 1);
        cut(numbers, [lower, upper, from, at], parts);
        cut(numbers, [lower, upper, at, to], parts);
    }
}

/// Shuffles the parts of such a rectangle.
fn full_arena(seed: u64, width: u64, height: u64) -> Vec<Buffer> {
    let (mut numbers, mut parts) = (Numbers(seed), Vec::new());
    cut(&mut numbers, [0, width, 0, height], &mut parts);
    for at in (1..parts.len()).rev() {
        parts.swap(at, numbers.below(at as u64 + 1) as usize);
    }
    parts
}

#[test]
fn full_arenas_are_packed_without_a_free_byte() {
    let mut first_fit_succeeds = 0;
    for seed in 1..=10 {
        let buffers = full_arena(seed, 100, 1000);
        assert_eq!(lower_bound(&buffers), Ok(1000));
        let first_fit = pack(&buffers, Effort::FIRST_FIT).expect("valid buffers");
        first_fit_succeeds += u32::from(valid(&first_fit, &buffers) == 1000);
        let packing = pack(&buffers, Effort::default()).expect("valid buffers");
        assert_eq!(valid(&packing, &buffers), 1000, "seed {seed}, {} buffers", buffers.len());
    }
    assert!(first_fit_succeeds < 5, "first fit packs {first_fit_succeeds} of 10");
}
