//! Samplers that choose batches: for batches of samples of similar length, of several sizes, or with a given mix.

use super::super::DataError;
use super::Order;

/// Chooses the samples of each batch of an epoch. In PyTorch: `DataLoader(batch_sampler=…)`.
///
/// ```
/// # use std::sync::Arc;
/// # use plimsoll::data::{BatchSampler, DataError, DataLoader, Digits};
/// /// Batches of one, two and three samples.
/// struct Growing;
///
/// impl BatchSampler for Growing {
///     fn len(&self) -> usize {
///         3
///     }
///     fn largest(&self) -> usize {
///         3
///     }
///     fn batches(&self, _epoch: u64) -> Result<Vec<Vec<usize>>, DataError> {
///         Ok(vec![vec![9], vec![0, 1], vec![2, 3, 4]])
///     }
/// }
/// let loader = DataLoader::batched(Arc::new(Digits::new(1, 10)), Growing);
/// let sizes: Vec<usize> = loader.epoch(0).map(|batch| Ok(batch?.samples)).collect::<Result<_, DataError>>()?;
/// assert_eq!(sizes, [1, 2, 3]);
/// # Ok::<(), DataError>(())
/// ```
pub trait BatchSampler: Send + Sync {
    /// The number of batches of an epoch.
    fn len(&self) -> usize;

    /// The number of samples of the largest batch, from which the size of buffers is computed.
    fn largest(&self) -> usize;

    /// The samples of each batch: as many batches as [`len`](Self::len). The same epoch always has the same ones.
    ///
    /// # Errors
    /// If host memory runs out.
    fn batches(&self, epoch: u64) -> Result<Vec<Vec<usize>>, DataError>;

    /// Whether an epoch has no batches.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The part of each batch that one replica of several gets: every `replicas`th sample, starting at `rank`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::data) struct Replica {
    pub(in crate::data) rank: usize,
    pub(in crate::data) replicas: usize,
}

impl Replica {
    /// The whole batch.
    pub(in crate::data) const WHOLE: Replica = Replica { rank: 0, replicas: 1 };

    /// Converts a slot of the part to the slot of the whole batch.
    const fn slot(self, slot: usize) -> usize {
        self.rank + slot * self.replicas
    }
}

/// The batches of one epoch.
pub(in crate::data) enum Batches {
    /// Consecutive samples of an order; the last batch may be smaller.
    Even { order: Order, size: usize, replica: Replica },
    /// The batches of a [`BatchSampler`].
    Given(Vec<Vec<usize>>),
}

impl Batches {
    /// The number of samples of a batch.
    pub(in crate::data) fn samples(&self, number: usize) -> usize {
        match self {
            Batches::Even { order, size, replica } => {
                (*size).min(order.len().saturating_sub(number * size)).div_ceil(replica.replicas)
            }
            Batches::Given(batches) => batches.get(number).map_or(0, Vec::len),
        }
    }

    /// The first samples, at most this many.
    pub(in crate::data) fn first_samples(&self, most: usize) -> impl Iterator<Item = usize> {
        let (order, batches) = match self {
            Batches::Even { order, .. } => (Some(order), None),
            Batches::Given(batches) => (None, Some(batches)),
        };
        let ordered =
            order.into_iter().flat_map(|order| (0..order.len()).map(|position| order.index(position)));
        ordered.chain(batches.into_iter().flatten().flatten().copied()).take(most)
    }

    /// The sample in a slot of a batch.
    pub(in crate::data) fn index(&self, number: usize, slot: usize) -> usize {
        match self {
            // A last batch that cannot be divided equally is filled up with the first samples.
            Batches::Even { order, size, replica } => {
                order.index((number * size + replica.slot(slot)) % order.len())
            }
            Batches::Given(batches) => batches[number][slot],
        }
    }

    /// Converts a slot of this replica's part to the slot of the whole batch.
    pub(in crate::data) const fn slot(&self, slot: usize) -> usize {
        match self {
            Batches::Even { replica, .. } => replica.slot(slot),
            Batches::Given(_) => slot,
        }
    }
}
