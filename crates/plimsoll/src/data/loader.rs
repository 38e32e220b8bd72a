//! The data loader: the order of samples, batches and worker threads.
//!
//! [`DataLoader`] is a description; [`DataLoader::epoch`] starts an [`Epoch`], which does the work
//! (`epoch.rs`). Order and content depend only on the data set, the batch size, the seed and the epoch:
//! never on the number of workers.

use std::sync::Arc;

use super::epoch::{Making, Plan, Spares};
use super::{DataError, Dataset, Epoch, Field, HostBatch, Order, RandomSampler, Sampler, SequentialSampler};

/// Batches of a data set. As PyTorch: `torch.utils.data.DataLoader`.
///
/// ```
/// # use std::sync::Arc;
/// # use plimsoll::data::{DataLoader, Digits};
/// let loader = DataLoader::new(Arc::new(Digits::new(1, 100)), 32)?.shuffle(7).workers(2);
/// for epoch in 0..2 {
///     for batch in loader.epoch(epoch) {
///         let batch = batch?;
///         assert_eq!(batch.array("images")?.shape, [batch.samples, 1, 28, 28]);
///     }
/// }
/// # Ok::<(), plimsoll::data::DataError>(())
/// ```
#[derive(Clone)]
pub struct DataLoader {
    dataset: Arc<dyn Dataset>,
    fields: Arc<[Field]>,
    batch_size: usize,
    sampler: Arc<dyn Sampler>,
    workers: usize,
    prefetch_factor: usize,
    last: LastBatch,
    making: Making,
    spares: Arc<Spares>,
}

/// What to do with the samples that do not fill a batch.
#[derive(Clone, Copy, Debug)]
enum LastBatch {
    Keep,
    Drop,
}

impl DataLoader {
    /// A loader that goes through the data set in order, in the caller's thread, and keeps a partial last
    /// batch. A batch size beyond the data set makes one partial batch.
    ///
    /// # Errors
    /// If `batch_size` is 0.
    pub fn new(dataset: Arc<dyn Dataset>, batch_size: usize) -> Result<Self, DataError> {
        if batch_size == 0 {
            return Err(DataError::BatchSize);
        }
        Ok(Self {
            fields: dataset.fields().into(),
            sampler: Arc::new(SequentialSampler::new(dataset.len())),
            dataset,
            batch_size,
            workers: 0,
            prefetch_factor: 2,
            last: LastBatch::Keep,
            making: Making::Values,
            spares: Arc::default(),
        })
    }

    /// Shuffles the samples in each epoch, by this seed and the epoch's number alone.
    #[must_use]
    pub fn shuffle(self, seed: u64) -> Self {
        let samples = self.dataset.len();
        self.sampler(RandomSampler::new(samples, seed))
    }

    /// Takes the samples that `sampler` gives, in its order.
    #[must_use]
    pub fn sampler(mut self, sampler: impl Sampler + 'static) -> Self {
        self.sampler = Arc::new(sampler);
        self
    }

    /// The number of threads that make batches ahead of the consumer; with 0, its own thread makes them.
    /// As PyTorch: `num_workers`.
    #[must_use]
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = workers;
        self
    }

    /// How many batches each worker may be ahead, including the one it is making; 2 by default,
    /// never less than 1.
    #[must_use]
    pub fn prefetch_factor(mut self, batches: usize) -> Self {
        self.prefetch_factor = batches.max(1);
        self
    }

    /// Drops a last batch that is not full.
    #[must_use]
    pub fn drop_last(mut self) -> Self {
        self.last = LastBatch::Drop;
        self
    }

    /// Yields batches of the same shapes and byte counts without values: no sample is read, no thread started.
    #[must_use]
    pub fn shapes_only(mut self) -> Self {
        self.making = Making::Shapes;
        self
    }

    /// The number of batches of an epoch.
    #[must_use]
    pub fn len(&self) -> usize {
        match self.last {
            LastBatch::Keep => self.sampler.len().div_ceil(self.batch_size),
            LastBatch::Drop => self.sampler.len() / self.batch_size,
        }
    }

    /// Whether an epoch has no batches.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The data set.
    #[must_use]
    pub fn dataset(&self) -> &Arc<dyn Dataset> {
        &self.dataset
    }

    /// Host bytes of one full batch.
    #[must_use]
    pub fn batch_bytes(&self) -> u64 {
        HostBatch::absent(self.batch_size.min(self.sampler.len()), &self.fields).bytes()
    }

    /// The maximum host bytes of an epoch's batches at once, if the consumer holds one at a time.
    /// Recycled batches and the data set's own bytes are not included.
    #[must_use]
    pub fn buffer_bytes(&self) -> u64 {
        match self.making {
            Making::Shapes => 0,
            Making::Values => (self.ahead() as u64).saturating_add(1).saturating_mul(self.batch_bytes()),
        }
    }

    /// Starts an epoch; the same epoch always has the same batches. Threads start here and end when
    /// the [`Epoch`] is dropped. The iterator returns errors in the place of their batches.
    #[must_use]
    pub fn epoch(&self, epoch: u64) -> Epoch {
        let order = match self.making {
            Making::Values => self.sampler.order(epoch),
            // Shapes need no order.
            Making::Shapes => Ok(Order::sequential(self.sampler.len())),
        };
        match order {
            Ok(order) => self.start(self.plan(order)),
            Err(error) => Epoch::refused(self.plan(Order::sequential(0)), error),
        }
    }

    fn plan(&self, order: Order) -> Plan {
        Plan {
            dataset: Arc::clone(&self.dataset),
            fields: Arc::clone(&self.fields),
            order,
            batch_size: self.batch_size,
            batches: self.len(),
            making: self.making,
            spares: Arc::clone(&self.spares),
        }
    }

    fn start(&self, plan: Plan) -> Epoch {
        match self.making {
            Making::Shapes => Epoch::start(plan, 0, self.prefetch_factor),
            Making::Values => Epoch::start(plan, self.workers, self.prefetch_factor),
        }
    }

    /// Recycles a batch: a later one reuses its memory. Optional; a dropped batch is freed.
    pub fn recycle(&self, batch: HostBatch) {
        self.spares.put(batch, &self.fields, self.ahead().max(1));
    }

    /// The maximum number of batches besides the consumer's.
    fn ahead(&self) -> usize {
        self.workers.min(self.len()).saturating_mul(self.prefetch_factor)
    }
}

#[cfg(test)]
#[path = "loader_tests.rs"]
mod tests;
