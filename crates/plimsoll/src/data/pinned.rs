//! Batches in pinned memory, from which devices copy while the host continues: [`PinnedEpoch`].
//!
//! A separate thread takes the batches of an [`Epoch`], with or without workers, and pins them, so that the consumer finds the
//! next one ready. Like `pin_memory=True` in PyTorch's loader.

use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{Builder, JoinHandle};

use plimsoll_tensor::label::{self, Category, Span};
use plimsoll_tensor::{Device, Tensor};

use super::{DataError, Epoch, HostBatch, LoaderState};

/// A batch in pinned host memory.
#[derive(Clone, Debug)]
pub struct PinnedBatch {
    /// The number of samples.
    pub samples: usize,
    fields: Vec<(&'static str, Tensor)>,
}

impl PinnedBatch {
    fn of(batch: &HostBatch) -> plimsoll_tensor::Result<Self> {
        let names = batch.fields.iter().map(|field| field.name);
        Ok(Self { samples: batch.samples, fields: names.zip(batch.pin_memory()?).collect() })
    }

    /// The tensor of a field.
    ///
    /// # Errors
    /// If there is no field with this name.
    pub fn tensor(&self, name: &str) -> Result<&Tensor, DataError> {
        self.fields.iter().find(|(field, _)| *field == name).map(|(_, tensor)| tensor).ok_or_else(|| {
            let declared = self.fields.iter().map(|(field, _)| *field).collect();
            DataError::NoField { name: name.to_owned(), declared }
        })
    }

    /// All tensors on a device, in the data set's order, as [`Category::Input`] with the fields' names as labels. An asynchronous
    /// device copies them on its current stream while the host continues.
    ///
    /// # Errors
    /// If memory runs out.
    pub fn to_device(&self, device: &Device) -> plimsoll_tensor::Result<Vec<Tensor>> {
        let moved = |(name, tensor): &(&'static str, Tensor)| {
            let _owner = Span::of(Category::Input, label::intern(name));
            tensor.to_device_non_blocking(device)
        };
        self.fields.iter().map(moved).collect()
    }
}

/// The batches of an epoch in pinned memory, in order. Made by [`Epoch::pin_memory`].
///
/// The first error is the last item. Dropping it early stops its threads after the batches that they are making.
pub struct PinnedEpoch {
    /// `None` before the first batch if the thread could not start, and after the last.
    batches: Option<Receiver<Option<Pinned>>>,
    thread: Option<JoinHandle<()>>,
    cannot_start: Option<DataError>,
    position: LoaderState,
}

/// A batch or the error in its place, and the position after it.
struct Pinned {
    batch: Result<PinnedBatch, DataError>,
    after: LoaderState,
}

impl Epoch {
    /// The same batches in pinned memory. A thread pins one ahead of the consumer.
    ///
    /// ```
    /// use plimsoll::data::{Arrays, DataLoader, HostArray};
    /// use plimsoll::Device;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let arrays = Arrays::new([("x", HostArray::new(vec![4, 2], vec![1.0f32; 8]))])?;
    /// let loader = DataLoader::new(std::sync::Arc::new(arrays), 2)?.workers(2);
    /// for batch in loader.epoch(0).pin_memory() {
    ///     let batch = batch?;
    ///     assert!(batch.tensor("x")?.is_pinned());
    ///     let x = &batch.to_device(&Device::cpu())?[0];
    ///     assert_eq!(x.shape(), [2, 2]);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn pin_memory(self) -> PinnedEpoch {
        let position = self.state();
        // One batch waits in the channel, and the thread holds one.
        let (to, batches) = sync_channel(1);
        let thread = Builder::new().name("plimsoll-pin".to_owned()).spawn(move || pin_all(self, &to));
        match thread {
            Ok(thread) => {
                PinnedEpoch { batches: Some(batches), thread: Some(thread), cannot_start: None, position }
            }
            Err(source) => PinnedEpoch::refused(source, position),
        }
    }
}

fn pin_all(mut epoch: Epoch, to: &SyncSender<Option<Pinned>>) {
    while let Some(batch) = epoch.next() {
        let after = epoch.state();
        let number = after.batch.saturating_sub(1) as usize;
        let batch = batch.and_then(|batch| {
            PinnedBatch::of(&batch)
                .map_err(|source| DataError::Pin { batch: number, source: Box::new(source) })
        });
        let is_last = batch.is_err();
        if to.send(Some(Pinned { batch, after })).is_err() || is_last {
            break;
        }
    }
    // The workers have ended, or been kept for reuse, before the consumer sees the end.
    drop(epoch);
    let _ = to.send(None);
}

impl PinnedEpoch {
    fn refused(source: io::Error, position: LoaderState) -> Self {
        let cannot_start = Some(DataError::PinThread { source });
        Self { batches: None, thread: None, cannot_start, position }
    }

    /// The position after the batches taken so far, to be saved with a model. Batches pinned ahead do not count.
    #[must_use]
    pub fn state(&self) -> LoaderState {
        self.position.clone()
    }

    /// Closes the channel first, so that the thread's next `send` fails.
    fn stop(&mut self) {
        self.batches = None;
        if let Some(thread) = self.thread.take() {
            // A panic has already been returned as an error.
            let _ = thread.join();
        }
    }
}

impl Iterator for PinnedEpoch {
    type Item = Result<PinnedBatch, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(error) = self.cannot_start.take() {
            return Some(Err(error));
        }
        match self.batches.as_ref()?.recv() {
            Ok(Some(Pinned { batch, after })) => {
                if batch.is_err() {
                    self.stop();
                } else {
                    self.position = after;
                }
                Some(batch)
            }
            Ok(None) => {
                self.stop();
                None
            }
            Err(_) => {
                self.stop();
                let message = "the thread that pins batches ended".to_owned();
                Some(Err(DataError::Panicked { batch: self.position.batch as usize, message }))
            }
        }
    }
}

impl Drop for PinnedEpoch {
    fn drop(&mut self) {
        self.stop();
    }
}

#[cfg(test)]
#[path = "pinned_tests.rs"]
mod tests;
