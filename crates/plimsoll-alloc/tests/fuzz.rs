//! Runs the fuzz targets on a few thousand fixed byte strings. `fuzz/` runs them with a fuzzer.

use crate::bodies;
use crate::programs::Random;

/// Pseudo-random strings of up to `most` bytes.
fn strings(count: u64, most: u64) -> impl Iterator<Item = Vec<u8>> {
    (0..count).map(move |seed| {
        let mut random = Random::new(seed);
        (0..random.below(most)).map(|_| random.next() as u8).collect()
    })
}

#[test]
fn any_bytes_make_a_program_that_agrees_with_the_naive_allocator() {
    strings(600, 3000).for_each(|bytes| bodies::placement::agrees_with_the_naive_allocator(&bytes));
}

#[test]
fn any_bytes_make_a_program_that_stays_consistent() {
    strings(1200, 2000).for_each(|bytes| bodies::world::stays_sound(&bytes));
}
