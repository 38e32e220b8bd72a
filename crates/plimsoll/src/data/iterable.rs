//! Data that can only be read in sequence: a stream, a log, or too many files to count.
//!
//! Like PyTorch's `IterableDataset`: each worker has its own iterator and fills its own batches. The data set must divide its
//! samples among the workers by [`WorkerInfo`]; otherwise each worker yields all of them.

use std::sync::Arc;

use super::dataset::SampleSeed;
use super::epoch::{Maker, Source};
use super::workers::{WorkerInfo, Workers, worker_options};
use super::{DataError, Epoch, Field, HostBatch, LoaderState, Sample};

/// Samples that can only be read in sequence.
///
/// ```
/// # use std::sync::Arc;
/// # use plimsoll::DType;
/// # use plimsoll::data::{DataError, Field, IterableDataset, IterableLoader, Sample, SampleIterator, WorkerInfo};
/// /// The numbers below 10.
/// struct Numbers;
///
/// impl IterableDataset for Numbers {
///     fn fields(&self) -> Vec<Field> {
///         vec![Field { name: "number", dtype: DType::I64, shape: vec![] }]
///     }
///     fn samples(&self, _epoch: u64, worker: WorkerInfo) -> Result<Box<dyn SampleIterator>, DataError> {
///         let mut numbers = (worker.id..10).step_by(worker.workers);
///         Ok(Box::new(move |out: &mut Sample<'_>| {
///             let Some(number) = numbers.next() else { return Ok(false) };
///             out.slot::<i64>("number")?[0] = number as i64;
///             Ok(true)
///         }))
///     }
/// }
/// let loader = IterableLoader::new(Arc::new(Numbers), 4)?.workers(2);
/// let mut batches = Vec::new();
/// for batch in loader.epoch(0) {
///     batches.push(batch?.array("number")?.as_slice::<i64>().unwrap().to_vec());
/// }
/// assert_eq!(batches, [vec![0, 2, 4, 6], vec![1, 3, 5, 7], vec![8], vec![9]]);
/// # Ok::<(), DataError>(())
/// ```
pub trait IterableDataset: Send + Sync {
    /// The fields of each sample. They never change.
    fn fields(&self) -> Vec<Field>;

    /// The samples of one worker in an epoch, in order: the same for the same epoch and worker.
    ///
    /// # Errors
    /// If they cannot be opened; [`DataError::Custom`] wraps your own error.
    fn samples(&self, epoch: u64, worker: WorkerInfo) -> Result<Box<dyn SampleIterator>, DataError>;
}

/// Writes samples one after the other. A closure also implements it.
pub trait SampleIterator: Send {
    /// Writes the next sample. Returns `false`, and writes nothing, if there is none.
    ///
    /// # Errors
    /// If it cannot be read; the epoch ends.
    fn write_next(&mut self, out: &mut Sample<'_>) -> Result<bool, DataError>;
}

impl<F: FnMut(&mut Sample<'_>) -> Result<bool, DataError> + Send> SampleIterator for F {
    fn write_next(&mut self, out: &mut Sample<'_>) -> Result<bool, DataError> {
        self(out)
    }
}

/// Batches of an [`IterableDataset`]. Its options are those of [`DataLoader`](super::DataLoader) that do not need a length. Batches
/// depend on the number of workers.
#[derive(Clone)]
pub struct IterableLoader {
    dataset: Arc<dyn IterableDataset>,
    batch_size: usize,
    keep_last: bool,
    workers: Workers,
}

impl IterableLoader {
    /// A loader that works in the caller's thread and keeps a partial last batch.
    ///
    /// # Errors
    /// If `batch_size` is 0.
    pub fn new(dataset: Arc<dyn IterableDataset>, batch_size: usize) -> Result<Self, DataError> {
        if batch_size == 0 {
            return Err(DataError::BatchSize);
        }
        Ok(Self { dataset, batch_size, keep_last: true, workers: Workers::none() })
    }

    worker_options!();

    /// Drops each worker's last batch if it is not full.
    #[must_use]
    pub fn drop_last(mut self) -> Self {
        self.keep_last = false;
        self
    }

    /// Starts an epoch.
    #[must_use]
    pub fn epoch(&self, epoch: u64) -> Epoch {
        let stream = Stream {
            dataset: Arc::clone(&self.dataset),
            fields: self.dataset.fields().into(),
            batch_size: self.batch_size,
            keep_last: self.keep_last,
            epoch,
        };
        let source: Arc<dyn Source> = Arc::new(stream);
        Epoch::start(&source, &self.workers, self.position(epoch), None)
    }

    /// Continues an epoch after the batches that were taken from it. A stream cannot be skipped, so these batches are made again
    /// and dropped.
    ///
    /// # Errors
    /// If the state is from a loader with a different batch size, seed or number of workers.
    pub fn resume(&self, state: &LoaderState) -> Result<Epoch, DataError> {
        state.check(&self.position(state.epoch))?;
        let mut epoch = self.epoch(state.epoch);
        epoch.skip_taken(state.batch);
        Ok(epoch)
    }

    fn position(&self, epoch: u64) -> LoaderState {
        LoaderState {
            epoch,
            batch: 0,
            samples: 0,
            batch_size: self.batch_size as u64,
            workers: self.workers.count as u64,
            seed: self.workers.seed,
            order: 0,
        }
    }
}

/// One epoch of a stream.
struct Stream {
    dataset: Arc<dyn IterableDataset>,
    fields: Arc<[Field]>,
    batch_size: usize,
    keep_last: bool,
    epoch: u64,
}

impl Source for Stream {
    fn maker(self: Arc<Self>, worker: WorkerInfo) -> Maker {
        let mut samples = None;
        let mut number = 0;
        let mut over = false;
        Box::new(move || {
            if over {
                return None;
            }
            let opened = match samples.as_mut() {
                Some(opened) => opened,
                // Opened here in the worker, where a panic of the data set is caught, and because opening may take time.
                None => match self.dataset.samples(self.epoch, worker) {
                    Ok(opened) => samples.insert(opened),
                    Err(error) => return Some(Err(error)),
                },
            };
            let batch = self.batch(opened.as_mut(), worker, number);
            number += 1;
            over = !matches!(&batch, Ok(batch) if batch.samples == self.batch_size);
            match batch {
                Ok(batch) if batch.samples == 0 || (over && !self.keep_last) => None,
                other => Some(other),
            }
        })
    }
}

impl Stream {
    /// Reads the next batch; it is smaller than the batch size only at the end.
    fn batch(
        &self,
        samples: &mut dyn SampleIterator,
        worker: WorkerInfo,
        number: usize,
    ) -> Result<HostBatch, DataError> {
        let mut batch = HostBatch::absent(self.batch_size, &self.fields);
        batch.reset(self.batch_size)?;
        for slot in 0..self.batch_size {
            let seed = SampleSeed { seed: worker.seed, epoch: self.epoch, batch: number, slot };
            let index = number * self.batch_size + slot;
            let written = samples
                .write_next(&mut Sample::new(&mut batch.fields, slot, seed))
                .map_err(|source| DataError::Sample { batch: number, index, source: Box::new(source) })?;
            if !written {
                batch.truncate(slot);
                break;
            }
        }
        Ok(batch)
    }
}
