//! Fuzz targets for the reader of recordings. The ordinary tests are in `tests/hostile.rs`.

pub(crate) mod snapshot;

use plimsoll_trace::conformance;

/// Any text is either a recording that can be replayed, with or without a difference, or is rejected with a message.
pub(crate) fn is_read_or_refused(text: &str) {
    let said = match conformance::compare(text) {
        Ok(report) => report.to_string(),
        Err(why) => why.to_string(),
    };
    assert!(!said.is_empty());
}
