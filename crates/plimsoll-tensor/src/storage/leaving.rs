//! A copy of bytes that are to leave their device.

use std::sync::Arc;

use crate::pinned::Block;
use crate::stream::{Event, Stream};

/// A copy to the host, which may be in progress. The bytes are still on their device.
pub(super) struct Leaving {
    pub(super) block: Block,
    pub(super) copied: Arc<Event>,
    /// The version that is copied.
    pub(super) version: u32,
}

impl Leaving {
    /// Abandons the copy. The stream of the memory waits for it, because the memory is freed on that stream.
    pub(super) fn abandon(self, own: &Stream) {
        // An error of other work is returned by its next call.
        let _ = own.wait_event(&self.copied);
    }
}

/// The outcome for bytes that were to leave their device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Departure {
    /// They have left.
    Left,
    /// A tensor other than saved ones, or an operation, still uses them.
    InUse,
    /// They stay: they have changed since they were copied, or left in another way.
    Stays,
}
