//! The position of a loader, to be saved with a model.
//!
//! The order of an epoch, its batches and the seeds of its samples depend only on the loader and the epoch's number, so two
//! numbers describe the position; the other fields detect a state saved by a different loader.

use serde::{Deserialize, Serialize};

use super::DataError;
use super::error::SamplerError;

/// The position of a loader: an epoch and the number of batches taken from it. [`Epoch::state`](super::Epoch::state) makes it,
/// and serde can save it.
///
/// ```
/// # use std::sync::Arc;
/// # use plimsoll::data::{DataError, DataLoader, Digits};
/// let loader = DataLoader::new(Arc::new(Digits::new(1, 50)), 8)?.shuffle(3);
/// let mut epoch = loader.epoch(4);
/// epoch.by_ref().take(2).for_each(drop);
/// let state = epoch.state();
/// // The run ends here; another one continues with the third batch.
/// let rest = loader.resume(&state)?.collect::<Result<Vec<_>, DataError>>()?;
/// assert_eq!(rest, epoch.collect::<Result<Vec<_>, DataError>>()?);
/// # Ok::<(), DataError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoaderState {
    /// The epoch.
    pub epoch: u64,
    /// Batches taken from the epoch.
    pub batch: u64,
    /// Samples of the epoch; 0 if that is not known beforehand.
    pub samples: u64,
    /// Samples of a batch.
    pub batch_size: u64,
    /// Worker threads, if the batches depend on them: only for an iterable data set.
    pub workers: u64,
    /// The seed of samples and workers.
    pub seed: u64,
    /// A checksum of a part of the epoch's order.
    pub order: u64,
}

impl LoaderState {
    /// Checks that the state comes from a loader like this one, whose state at the start of the same epoch is `ours`.
    pub(super) fn check(&self, ours: &Self) -> Result<(), DataError> {
        let compared = [
            ("number of samples", self.samples, ours.samples),
            ("batch size", self.batch_size, ours.batch_size),
            ("number of workers", self.workers, ours.workers),
            ("seed", self.seed, ours.seed),
            ("order (a checksum of it)", self.order, ours.order),
        ];
        match compared.into_iter().find(|(_, saved, ours)| saved != ours) {
            Some((what, saved, ours)) => Err(SamplerError::OtherLoader { what, saved, ours }.into()),
            None => Ok(()),
        }
    }
}

/// A checksum of sample numbers (FNV-1a).
pub(super) fn checksum(samples: impl Iterator<Item = usize>) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    samples.flat_map(|sample| (sample as u64).to_le_bytes()).fold(0xcbf2_9ce4_8422_2325, step)
}
