//! Any program of requests, against the naive allocator.

#![no_main]

#[path = "../../crates/plimsoll-alloc/tests/bodies/mod.rs"]
mod bodies;
#[path = "../../crates/plimsoll-alloc/tests/naive/mod.rs"]
mod naive;
#[path = "../../crates/plimsoll-alloc/tests/programs/mod.rs"]
mod programs;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bodies::placement::agrees_with_the_naive_allocator(bytes));
