//! Anything that can be asked of an allocator, with a device that fails once.

#![no_main]

#[path = "../../crates/plimsoll-alloc/tests/bodies/mod.rs"]
mod bodies;
#[path = "../../crates/plimsoll-alloc/tests/naive/mod.rs"]
mod naive;
#[path = "../../crates/plimsoll-alloc/tests/programs/mod.rs"]
mod programs;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bodies::world::stays_sound(bytes));
