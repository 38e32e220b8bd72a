//! The streams of copies, and what the passes of one [`OffloadActivations`](super::OffloadActivations) have in common.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::device::Device;
use crate::stream::Stream;

/// What the passes of one [`OffloadActivations`](super::OffloadActivations) share.
#[derive(Debug, Default)]
pub(super) struct Shared {
    pub(super) streams: Streams,
    learned: Mutex<Learned>,
}

#[derive(Debug, Default)]
pub(super) struct Learned {
    /// The bytes of all tensors of the last pass, and the order in which its backward pass read them.
    pub(super) last: Option<(Vec<u64>, Vec<usize>)>,
    /// The bytes that the last pass offloaded.
    pub(super) offloaded_bytes: u64,
}

impl Shared {
    pub(super) fn learned(&self) -> MutexGuard<'_, Learned> {
        self.learned.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// For each device: the streams of copies to the host and back.
#[derive(Debug, Default)]
pub(super) struct Streams(Mutex<Vec<(Stream, Stream)>>);

impl Streams {
    pub(super) fn of(&self, device: &Device) -> (Stream, Stream) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = all.iter().find(|(out, _)| out.device() == device) {
            return known.clone();
        }
        let both = (Stream::new(device), Stream::new(device));
        all.push(both.clone());
        both
    }
}
