//! The data loader: the order of samples, batches and worker threads.
//!
//! [`DataLoader`] is a description; [`DataLoader::epoch`] starts an [`Epoch`], which does the work
//! (`epoch.rs`; `indexed.rs` makes the batches). Order and content depend only on the data set, the sampler, the batch
//! size, the seed and the epoch, and never on the number of workers.

use std::sync::Arc;

use super::collate::Collate;
use super::epoch::Source;
use super::error::SamplerError;
use super::indexed::{BatchContent, Plan, SpareBatches};
use super::sampler::{Batches, Replica};
use super::state::checksum;
use super::workers::{WorkerInfo, Workers, worker_options};
use super::{
    BatchSampler, DataError, Dataset, Epoch, Field, HostBatch, LoaderState, Order, RandomSampler, Sampler,
    SequentialSampler,
};

/// Batches of a data set. In PyTorch: `torch.utils.data.DataLoader`.
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
    batching: Batching,
    collate: Option<Arc<Collate>>,
    making: BatchContent,
    workers: Workers,
    spares: Arc<SpareBatches>,
}

/// How samples become batches.
#[derive(Clone)]
enum Batching {
    Even { sampler: Arc<dyn Sampler>, size: usize, last: LastBatch, replica: Replica },
    Given(Arc<dyn BatchSampler>),
}

/// How to treat the last samples if they do not fill a batch.
#[derive(Clone, Copy, Debug)]
enum LastBatch {
    Keep,
    Drop,
}

impl DataLoader {
    /// A loader that reads the data set in order, in the caller's thread, and keeps a partial last batch. A batch size larger
    /// than the data set gives one partial batch.
    ///
    /// # Errors
    /// If `batch_size` is 0.
    pub fn new(dataset: Arc<dyn Dataset>, batch_size: usize) -> Result<Self, DataError> {
        if batch_size == 0 {
            return Err(DataError::BatchSize);
        }
        let sampler = Arc::new(SequentialSampler::new(dataset.len()));
        let (last, replica) = (LastBatch::Keep, Replica::WHOLE);
        Ok(Self::of(dataset, Batching::Even { sampler, size: batch_size, last, replica }))
    }

    /// A loader of the batches that `sampler` chooses.
    pub fn batched(dataset: Arc<dyn Dataset>, sampler: impl BatchSampler + 'static) -> Self {
        Self::of(dataset, Batching::Given(Arc::new(sampler)))
    }

    fn of(dataset: Arc<dyn Dataset>, batching: Batching) -> Self {
        Self {
            fields: dataset.fields().into(),
            dataset,
            batching,
            collate: None,
            making: BatchContent::Values,
            workers: Workers::none(),
            spares: Arc::default(),
        }
    }

    /// Shuffles the samples in each epoch; the order depends only on this seed and the epoch's number. The seed is also the
    /// loader's [`seed`](Self::seed).
    #[must_use]
    pub fn shuffle(self, seed: u64) -> Self {
        let samples = self.dataset.len();
        self.seed(seed).sampler(RandomSampler::new(samples, seed))
    }

    /// Takes the samples that `sampler` chooses, in its order. Has no effect on a loader made by [`batched`](Self::batched).
    #[must_use]
    pub fn sampler(mut self, sampler: impl Sampler + 'static) -> Self {
        if let Batching::Even { sampler: old, .. } = &mut self.batching {
            *old = Arc::new(sampler);
        }
        self
    }

    worker_options!();

    /// Builds each batch with this function, such as [`Pad`](super::Pad) for samples whose shapes differ. The function
    /// receives each sample as a batch of one. In PyTorch: `collate_fn`.
    #[must_use]
    pub fn collate(
        mut self,
        collate: impl Fn(Vec<HostBatch>) -> Result<HostBatch, DataError> + Send + Sync + 'static,
    ) -> Self {
        self.collate = Some(Arc::new(collate));
        self
    }

    /// Drops a last batch that is not full. Has no effect on a loader made by [`batched`](Self::batched).
    #[must_use]
    pub fn drop_last(mut self) -> Self {
        if let Batching::Even { last, .. } = &mut self.batching {
            *last = LastBatch::Drop;
        }
        self
    }

    /// Takes one replica's part of each batch: every `replicas`th sample, starting at `rank`. Together, the replicas have
    /// the same batches as a loader without this option. A last batch that cannot be divided equally is filled up with the
    /// epoch's first samples. A position counts full batches, so an epoch can be resumed with a different number of
    /// replicas.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use plimsoll::data::{DataLoader, Digits};
    /// let loader = DataLoader::new(Arc::new(Digits::new(1, 100)), 32)?.shuffle(7).replica(1, 4)?;
    /// let batches: Vec<_> = loader.epoch(0).collect::<Result<_, _>>()?;
    /// assert_eq!(batches.iter().map(|batch| batch.samples).collect::<Vec<_>>(), [8, 8, 8, 1]);
    /// # Ok::<(), plimsoll::data::DataError>(())
    /// ```
    ///
    /// # Errors
    /// If `rank` is not below `replicas`, or `replicas` does not divide the batch size. A loader whose batches are
    /// given cannot be divided.
    pub fn replica(mut self, rank: usize, replicas: usize) -> Result<Self, DataError> {
        if rank >= replicas {
            return Err(SamplerError::Rank { rank, replicas }.into());
        }
        match &mut self.batching {
            Batching::Even { size, replica, .. } if size.is_multiple_of(replicas) => {
                *replica = Replica { rank, replicas };
                Ok(self)
            }
            Batching::Even { size, .. } => Err(SamplerError::Parts { batch_size: *size, replicas }.into()),
            Batching::Given(sampler) => {
                Err(SamplerError::Parts { batch_size: sampler.largest(), replicas }.into())
            }
        }
    }

    /// Yields batches of the same shapes and byte counts without values: no sample is read, no thread started.
    #[must_use]
    pub fn shapes_only(mut self) -> Self {
        self.making = BatchContent::Shapes;
        self
    }

    /// The number of batches of an epoch.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.batching {
            Batching::Even { sampler, size, last: LastBatch::Keep, .. } => sampler.len().div_ceil(*size),
            Batching::Even { sampler, size, last: LastBatch::Drop, .. } => sampler.len() / size,
            Batching::Given(sampler) => sampler.len(),
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

    /// Host bytes of one full batch, if its samples have the declared shapes.
    #[must_use]
    pub fn batch_bytes(&self) -> u64 {
        let samples = match &self.batching {
            Batching::Even { sampler, size, replica, .. } => {
                sampler.len().min(*size).div_ceil(replica.replicas)
            }
            Batching::Given(sampler) => sampler.largest(),
        };
        HostBatch::absent(samples, &self.fields).bytes()
    }

    /// The most host bytes that an epoch's batches use at once, if the consumer holds one at a time. Recycled batches
    /// and the data set's own bytes are not included.
    #[must_use]
    pub fn buffer_bytes(&self) -> u64 {
        match self.making {
            BatchContent::Shapes => 0,
            BatchContent::Values => {
                (self.ahead() as u64).saturating_add(1).saturating_mul(self.batch_bytes())
            }
        }
    }

    /// Starts an epoch; the same epoch always has the same batches. Threads start here and end when
    /// the [`Epoch`] is dropped, unless they are [kept](Self::persistent_workers). If a batch fails, the iterator returns the
    /// error in its place.
    #[must_use]
    pub fn epoch(&self, epoch: u64) -> Epoch {
        match self.batches(epoch) {
            Ok(batches) => self.start(batches, epoch, 0),
            Err(error) => Epoch::refused(&self.workers, self.position(None, epoch), error),
        }
    }

    /// Continues an epoch after the batches that were taken from it: the remaining batches are bit for bit the same as without
    /// the interruption. No earlier sample is read.
    ///
    /// # Errors
    /// If the state is from a loader with different samples, or a different batch size, seed or order.
    pub fn resume(&self, state: &LoaderState) -> Result<Epoch, DataError> {
        let batches = self.batches(state.epoch)?;
        state.check(&self.position(Some(&batches), state.epoch))?;
        let taken = usize::try_from(state.batch).unwrap_or(usize::MAX).min(self.len());
        Ok(self.start(batches, state.epoch, taken))
    }

    fn batches(&self, epoch: u64) -> Result<Batches, DataError> {
        match &self.batching {
            Batching::Given(sampler) => sampler.batches(epoch).map(Batches::Given),
            Batching::Even { sampler, size, replica, .. } => {
                let order = match self.making {
                    BatchContent::Values => sampler.order(epoch)?,
                    BatchContent::Shapes => Order::sequential(sampler.len()), // shapes need no order
                };
                Ok(Batches::Even { order, size: *size, replica: *replica })
            }
        }
    }

    fn start(&self, batches: Batches, epoch: u64, first: usize) -> Epoch {
        let mut position = self.position(Some(&batches), epoch);
        position.batch = first as u64;
        let end = self.len();
        let plan = Plan {
            dataset: Arc::clone(&self.dataset),
            fields: Arc::clone(&self.fields),
            batches,
            first,
            end,
            making: self.making,
            collate: self.collate.clone(),
            seed: self.workers.seed,
            epoch,
            spares: Arc::clone(&self.spares),
        };
        let workers = match self.making {
            BatchContent::Shapes => Workers { count: 0, ..self.workers.clone() },
            BatchContent::Values => self.workers.clone(),
        };
        let source: Arc<dyn Source> = Arc::new(plan);
        Epoch::start(&source, &workers, position, Some(end - first))
    }

    /// The state at the beginning of an epoch.
    fn position(&self, batches: Option<&Batches>, epoch: u64) -> LoaderState {
        let (samples, batch_size) = match &self.batching {
            Batching::Even { sampler, size, .. } => (sampler.len(), *size),
            Batching::Given(sampler) => (0, sampler.largest()),
        };
        LoaderState {
            epoch,
            batch: 0,
            samples: samples as u64,
            batch_size: batch_size as u64,
            workers: 0,
            seed: self.workers.seed,
            order: batches.map_or(0, |batches| checksum(batches.first_samples(64))),
        }
    }

    /// Recycles a batch: a later one reuses its memory. Optional; a dropped batch is freed.
    pub fn recycle(&self, batch: HostBatch) {
        self.spares.put(batch, &self.fields, self.ahead().max(1));
    }

    /// The maximum number of batches in memory, not counting the consumer's.
    fn ahead(&self) -> usize {
        self.workers.count.min(self.len()).saturating_mul(self.workers.prefetch_factor)
    }
}

#[cfg(test)]
#[path = "loader_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "resume_tests.rs"]
mod resume_tests;
