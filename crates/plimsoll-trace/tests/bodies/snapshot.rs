//! A fuzz target for the reader of memory snapshots. The ordinary tests are in `tests/hostile_snapshots.rs`.

use plimsoll_trace::{Sharing, SnapshotError, input, output};

/// Any bytes are either read or rejected with a message, and what was read can be written and read again.
pub(crate) fn any_bytes_are_read_or_refused(bytes: &[u8]) -> Option<SnapshotError> {
    match input::read(bytes) {
        Ok(snapshot) => {
            let mut pickle = Vec::new();
            output::write(&snapshot, &mut pickle, Sharing::Equal).expect("memory");
            input::read(pickle.as_slice()).expect("what we wrote");
            None
        }
        Err(why) => {
            assert!(!why.to_string().is_empty());
            Some(why)
        }
    }
}
