//! Any text in place of a recording.

#![no_main]

#[path = "../../crates/plimsoll-trace/tests/bodies/mod.rs"]
mod bodies;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| bodies::is_read_or_refused(&String::from_utf8_lossy(bytes)));
