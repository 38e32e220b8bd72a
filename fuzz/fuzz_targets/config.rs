//! Any configuration string, and any table of divisions.

#![no_main]

#[path = "../../crates/plimsoll-alloc/tests/bodies/config.rs"]
mod bodies;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    bodies::reads_and_writes(&String::from_utf8_lossy(bytes));
    let power = |byte: &u8| 1_u64.checked_shl(u32::from(byte % 65)).unwrap_or(0);
    bodies::writes_divisions(std::array::from_fn(|at| bytes.get(at).map_or(0, power)));
});
