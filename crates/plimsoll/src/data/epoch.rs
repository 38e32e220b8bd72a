//! One pass over the data: the batches in order, made by the caller's thread or by worker threads.
//!
//! Note [Workers and batches]: of n workers, worker w makes batches w, w + n, w + 2n, … and sends them through
//! its own bounded channel; the consumer receives from the channels in turn. So batches arrive in order with
//! no reordering buffer, each worker is at most `prefetch_factor` batches ahead, and the number of workers does not
//! change a batch. The channels also end the threads: dropping the receivers makes each worker's next `send`
//! fail, and it returns. Dropping an epoch waits only for the batches that are being made.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};

use super::dataset::check_index;
use super::{DataError, Dataset, Field, HostBatch, Order, Sample};

/// The batches of one epoch, in order. Made by [`DataLoader::epoch`](super::DataLoader::epoch).
///
/// The first error is the last item. Dropping an epoch early ends and joins its threads, after the batches
/// that they are making.
pub struct Epoch {
    plan: Arc<Plan>,
    workers: Vec<Worker>,
    next: usize,
    cannot_start: Option<DataError>,
}

/// A worker thread and its channel.
struct Worker {
    batches: Receiver<Result<HostBatch, DataError>>,
    thread: JoinHandle<()>,
}

impl Epoch {
    pub(super) fn start(plan: Plan, workers: usize, prefetch_factor: usize) -> Self {
        let plan = Arc::new(plan);
        let count = workers.min(plan.batches);
        let mut epoch = Self { plan, workers: Vec::with_capacity(count), next: 0, cannot_start: None };
        for worker in 0..count {
            match Worker::start(&epoch.plan, worker, count, prefetch_factor) {
                Ok(started) => epoch.workers.push(started),
                Err(error) => {
                    epoch.cannot_start = Some(error);
                    break;
                }
            }
        }
        epoch
    }

    /// An epoch that yields only this error.
    pub(super) fn refused(plan: Plan, error: DataError) -> Self {
        Self { plan: Arc::new(plan), workers: Vec::new(), next: 0, cannot_start: Some(error) }
    }

    fn take(&mut self, number: usize) -> Result<HostBatch, DataError> {
        if let Some(error) = self.cannot_start.take() {
            return Err(error);
        }
        if self.workers.is_empty() {
            return self.plan.batch(number);
        }
        let worker = &self.workers[number % self.workers.len()];
        // A worker sends a result for each of its batches, a panic included, so the channel closes early only
        // if the thread was ended from outside.
        let lost = || DataError::Panicked { batch: number, message: "its thread ended".to_owned() };
        worker.batches.recv().unwrap_or_else(|_| Err(lost()))
    }

    /// Stops the threads: closes every channel first, so that they stop together.
    fn stop(&mut self) {
        let threads: Vec<_> = self.workers.drain(..).map(|worker| worker.thread).collect();
        for thread in threads {
            // A panic of the data set has already been returned as an error.
            let _ = thread.join();
        }
    }
}

impl Iterator for Epoch {
    type Item = Result<HostBatch, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.next == self.plan.batches {
            return None;
        }
        let batch = self.take(self.next);
        self.next += 1;
        if batch.is_err() {
            self.next = self.plan.batches;
        }
        if self.next == self.plan.batches {
            self.stop();
        }
        Some(batch)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.plan.batches - self.next;
        (left.min(1), Some(left))
    }
}

impl Drop for Epoch {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Worker {
    fn start(
        plan: &Arc<Plan>,
        worker: usize,
        workers: usize,
        prefetch_factor: usize,
    ) -> Result<Self, DataError> {
        // One batch is in the worker while it waits for the channel.
        let (to, batches) = sync_channel(prefetch_factor - 1);
        let plan = Arc::clone(plan);
        let work = move || {
            for number in (worker..plan.batches).step_by(workers) {
                if to.send(plan.batch(number)).is_err() {
                    return;
                }
            }
        };
        let named = Builder::new().name(format!("plimsoll-data-{worker}"));
        let thread = named.spawn(work).map_err(|source| DataError::Worker { worker, source })?;
        Ok(Self { batches, thread })
    }
}

/// Whether batches get values or only shapes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Making {
    Values,
    Shapes,
}

/// Makes any batch of an epoch, in any thread.
pub(super) struct Plan {
    pub(super) dataset: Arc<dyn Dataset>,
    pub(super) fields: Arc<[Field]>,
    /// The sample at each position.
    pub(super) order: Order,
    pub(super) batch_size: usize,
    pub(super) batches: usize,
    pub(super) making: Making,
    pub(super) spares: Arc<Spares>,
}

impl Plan {
    /// Makes a batch. A panic of the data set is an error, here as in a worker, so that the number of workers
    /// changes nothing.
    fn batch(&self, number: usize) -> Result<HostBatch, DataError> {
        // Unwind safety: a panic can leave only the batch incomplete, which is dropped; the data set
        // is shared read-only.
        catch_unwind(AssertUnwindSafe(|| self.write_batch(number)))
            .unwrap_or_else(|panic| Err(DataError::Panicked { batch: number, message: message_of(&*panic) }))
    }

    fn write_batch(&self, number: usize) -> Result<HostBatch, DataError> {
        let start = number * self.batch_size;
        let samples = self.batch_size.min(self.order.len() - start);
        if let Making::Shapes = self.making {
            return Ok(HostBatch::absent(samples, &self.fields));
        }
        let mut batch = self.spares.take().unwrap_or_else(|| HostBatch::absent(samples, &self.fields));
        batch.reset(samples)?;
        for slot in 0..samples {
            let index = self.order.index(start + slot);
            check_index(index, self.dataset.len())
                .and_then(|()| self.dataset.write(index, &mut Sample::new(&mut batch.fields, slot)))
                .map_err(|source| DataError::Sample { batch: number, index, source: Box::new(source) })?;
        }
        Ok(batch)
    }
}

fn message_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message").to_owned()
}

/// Recycled batches, whose memory is reused.
#[derive(Default)]
pub(super) struct Spares(Mutex<Vec<HostBatch>>);

impl Spares {
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

    fn take(&self) -> Option<HostBatch> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }
}
