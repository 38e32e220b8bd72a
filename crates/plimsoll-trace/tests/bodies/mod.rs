//! What a fuzzer asks of the reader of recordings; in the ordinary tests: `tests/hostile.rs`.

pub(crate) mod snapshot;

use plimsoll_trace::conformance;

/// Any text is a recording that is replayed, with or without a difference, or is refused in words.
pub(crate) fn is_read_or_refused(text: &str) {
    let said = match conformance::compare(text) {
        Ok(report) => report.to_string(),
        Err(why) => why.to_string(),
    };
    assert!(!said.is_empty());
}
