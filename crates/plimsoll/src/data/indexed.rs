//! The batches of a data set with an index: any thread can make any batch from its number alone.

use std::sync::{Arc, Mutex, PoisonError};

use super::collate::Collate;
use super::dataset::{SampleSeed, check_index};
use super::epoch::{Maker, Source};
use super::sampler::Batches;
use super::workers::WorkerInfo;
use super::{DataError, Dataset, Field, HostBatch, Sample};

/// Whether batches get values or only shapes.
#[derive(Clone, Copy, Debug)]
pub(super) enum BatchContent {
    Values,
    Shapes,
}

/// The batches of one epoch, starting at batch `first`.
pub(super) struct Plan {
    pub(super) dataset: Arc<dyn Dataset>,
    pub(super) fields: Arc<[Field]>,
    pub(super) batches: Batches,
    pub(super) first: usize,
    /// One past the last batch.
    pub(super) end: usize,
    pub(super) making: BatchContent,
    pub(super) collate: Option<Arc<Collate>>,
    pub(super) seed: u64,
    pub(super) epoch: u64,
    pub(super) spares: Arc<SpareBatches>,
}

impl Source for Plan {
    fn maker(self: Arc<Self>, worker: WorkerInfo) -> Maker {
        let mut numbers = (self.first + worker.id..self.end).step_by(worker.workers);
        Box::new(move || numbers.next().map(|number| self.batch(number)))
    }
}

impl Plan {
    fn batch(&self, number: usize) -> Result<HostBatch, DataError> {
        let samples = self.batches.samples(number);
        if samples == 0 {
            return Err(DataError::BatchSize);
        }
        if let BatchContent::Shapes = self.making {
            return Ok(HostBatch::absent(samples, &self.fields));
        }
        if let Some(collate) = self.collate.as_deref() {
            return self.collated(number, samples, collate);
        }
        let mut batch = self.spares.take().unwrap_or_else(|| HostBatch::absent(samples, &self.fields));
        batch.reset(samples)?;
        for slot in 0..samples {
            let seed = self.seed_of(number, slot);
            self.write(number, slot, &mut Sample::new(&mut batch.fields, slot, seed))?;
        }
        Ok(batch)
    }

    /// Reads each sample as a batch of one, whose shapes may differ, and combines them with the user's function.
    fn collated(&self, number: usize, samples: usize, collate: &Collate) -> Result<HostBatch, DataError> {
        let alone = |slot| {
            let mut one = HostBatch::absent(1, &self.fields);
            one.reset(1)?;
            let seed = self.seed_of(number, slot);
            self.write(number, slot, &mut Sample::alone(&mut one.fields, seed))?;
            Ok(one)
        };
        collate((0..samples).map(alone).collect::<Result<_, DataError>>()?)
    }

    fn write(&self, batch: usize, slot: usize, out: &mut Sample<'_>) -> Result<(), DataError> {
        let index = self.batches.index(batch, slot);
        check_index(index, self.dataset.len())
            .and_then(|()| self.dataset.write(index, out))
            .map_err(|source| DataError::Sample { batch, index, source: Box::new(source) })
    }

    const fn seed_of(&self, batch: usize, slot: usize) -> SampleSeed {
        SampleSeed { seed: self.seed, epoch: self.epoch, batch, slot: self.batches.slot(slot) }
    }
}

/// Recycled batches, whose memory is reused.
#[derive(Default)]
pub(super) struct SpareBatches(Mutex<Vec<HostBatch>>);

impl SpareBatches {
    /// Keeps a batch, if it is from this loader and fewer than `most` are kept.
    pub(super) fn put(&self, batch: HostBatch, fields: &[Field], most: usize) {
        let ours = batch.fields.len() == fields.len()
            && batch.fields.iter().zip(fields).all(|(have, want)| {
                let inner = have.array.shape.get(1..).unwrap_or_default();
                have.name == want.name && have.array.dtype == want.dtype && inner == want.shape
            });
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if ours && kept.len() < most {
            kept.push(batch);
        }
    }

    pub(super) fn take(&self) -> Option<HostBatch> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }
}
