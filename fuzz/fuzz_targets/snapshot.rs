//! Any bytes in place of a memory snapshot.

#![no_main]

#[path = "../../crates/plimsoll-trace/tests/bodies/snapshot.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| drop(body::any_bytes_are_read_or_refused(bytes)));
