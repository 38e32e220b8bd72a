//! The fuzzers' bodies on some thousand byte strings, the same each time. With a fuzzer: `fuzz/`.

mod bodies;
mod naive;
mod programs;

use programs::Random;

/// Strings of up to `most` bytes that look random.
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
fn any_bytes_make_a_program_that_stays_sound() {
    strings(1200, 2000).for_each(|bytes| bodies::world::stays_sound(&bytes));
}
