//! One pass over the data: the batches in order, made by the caller's thread or by worker threads.
//!
//! Note [Workers and batches]: of n workers, worker w makes batches w, w + n, w + 2n, … and sends them through
//! its own bounded channel; the consumer receives from the channels in turn. So batches arrive in order with
//! no reordering buffer, each worker is at most `prefetch_factor` batches ahead, and the number of workers does not
//! change a batch. The channels also end the pass: dropping the receivers makes each worker's next `send`
//! fail, and it stops. Dropping an epoch waits only for the batches that are being made.
//!
//! What is made is up to a [`Source`]: `indexed.rs` for a data set by index, `iterable.rs` for one that is gone through.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};

use super::panicked::message_of;
use super::workers::{ThreadPool, WorkerInfo, Workers};
use super::{DataError, HostBatch, LoaderState};

/// The batches of one epoch, in order. Made by [`DataLoader::epoch`](super::DataLoader::epoch).
///
/// The first error is the last item. Dropping an epoch early ends its work, after the batches that its threads are
/// making.
pub struct Epoch {
    /// Where batches come from, in turn; those that have no more are removed.
    queues: Vec<WorkerQueue>,
    turn: usize,
    /// Batches to come, where that is known.
    left: Option<usize>,
    position: LoaderState,
    cannot_start: Option<DataError>,
    workers: Workers,
    pool: Option<ThreadPool>,
}

/// Makes the batches of one worker, in order; `None` after the last.
pub(super) type Maker = Box<dyn FnMut() -> Option<Result<HostBatch, DataError>> + Send>;

/// What makes the batches of an epoch.
pub(super) trait Source: Send + Sync {
    /// The batches of one of the workers.
    fn maker(self: Arc<Self>, worker: WorkerInfo) -> Maker;
}

/// A worker's batches, or those of the caller's thread.
enum WorkerQueue {
    Here(Maker),
    Thread(Receiver<Option<Result<HostBatch, DataError>>>),
}

impl Epoch {
    /// Starts at `position`. `left` batches are to come, where that is known.
    pub(super) fn start(
        source: &Arc<dyn Source>,
        workers: &Workers,
        position: LoaderState,
        left: Option<usize>,
    ) -> Self {
        let mut epoch = Self {
            queues: Vec::new(),
            turn: 0,
            left,
            position,
            cannot_start: None,
            workers: workers.clone(),
            pool: None,
        };
        let count = workers.count.min(left.unwrap_or(usize::MAX));
        if count == 0 {
            let alone = workers.info(0, 1, epoch.position.epoch);
            epoch.queues.push(WorkerQueue::Here(caught(Arc::clone(source).maker(alone))));
            return epoch;
        }
        match workers.pool(count, epoch.position.epoch) {
            Ok(pool) => {
                epoch
                    .queues
                    .extend((0..count).map(|id| queue(source, workers, &pool, id, epoch.position.epoch)));
                epoch.pool = Some(pool);
            }
            Err(error) => epoch.cannot_start = Some(error),
        }
        epoch
    }

    /// An epoch that yields only this error.
    pub(super) fn refused(workers: &Workers, position: LoaderState, error: DataError) -> Self {
        Self {
            queues: Vec::new(),
            turn: 0,
            left: None,
            position,
            cannot_start: Some(error),
            workers: workers.clone(),
            pool: None,
        }
    }

    /// The position after the batches that were taken, to be saved with a model and continued from by
    /// [`DataLoader::resume`](super::DataLoader::resume). Batches that workers have made ahead do not count.
    #[must_use]
    pub fn state(&self) -> LoaderState {
        self.position.clone()
    }

    /// Lets go of the first `batches`, which are made and dropped, for data that can only be gone through.
    pub(super) fn skip_taken(&mut self, batches: u64) {
        for _ in 0..batches {
            match self.next() {
                Some(Ok(_)) => {}
                Some(Err(error)) => {
                    self.cannot_start = Some(error);
                    return;
                }
                None => return,
            }
        }
    }

    /// The next batch of the queue whose turn it is; queues without any more are removed.
    fn take(&mut self) -> Option<Result<HostBatch, DataError>> {
        if let Some(error) = self.cannot_start.take() {
            return Some(Err(error));
        }
        while !self.queues.is_empty() {
            if let Some(batch) = self.queues[self.turn].next() {
                self.turn = (self.turn + 1) % self.queues.len();
                return Some(batch.map_err(|error| numbered(error, self.position.batch as usize)));
            }
            self.queues.remove(self.turn);
            self.turn %= self.queues.len().max(1);
        }
        None
    }

    /// Ends the work: closes every channel first, so that the threads stop together.
    fn stop(&mut self, keep: bool) {
        self.queues.clear();
        self.left = Some(0);
        if let Some(pool) = self.pool.take()
            && keep
        {
            self.workers.keep(pool);
        }
    }
}

impl Iterator for Epoch {
    type Item = Result<HostBatch, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left == Some(0) && self.cannot_start.is_none() {
            self.stop(true);
            return None;
        }
        let batch = self.take();
        match &batch {
            Some(Ok(_)) => {
                self.position.batch += 1;
                self.left = self.left.map(|left| left - 1);
                if self.left == Some(0) {
                    self.stop(true);
                }
            }
            Some(Err(_)) => self.stop(false),
            None => self.stop(true),
        }
        batch
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left.unwrap_or(0).min(1), self.left)
    }
}

impl Drop for Epoch {
    fn drop(&mut self) {
        self.stop(true);
    }
}

impl WorkerQueue {
    fn next(&mut self) -> Option<Result<HostBatch, DataError>> {
        match self {
            WorkerQueue::Here(make) => make(),
            // A worker says when it has no more, and a panic is an error, so the channel closes early only if the
            // thread was ended from outside.
            WorkerQueue::Thread(batches) => batches.recv().unwrap_or_else(|_| {
                Some(Err(DataError::Panicked { batch: 0, message: "its thread ended".to_owned() }))
            }),
        }
    }
}

/// Gives a worker its work.
fn queue(
    source: &Arc<dyn Source>,
    workers: &Workers,
    pool: &ThreadPool,
    id: usize,
    epoch: u64,
) -> WorkerQueue {
    // One batch is in the worker while it waits for the channel.
    let (to, batches) = sync_channel(workers.prefetch_factor - 1);
    let info = workers.info(id, pool.len(), epoch);
    let source = Arc::clone(source);
    pool.give(
        id,
        Box::new(move |ready| {
            if let Err(error) = ready {
                let _ = to.send(Some(Err(error)));
                return;
            }
            let mut make = caught(source.maker(info));
            loop {
                let batch = make();
                let last = batch.is_none();
                if to.send(batch).is_err() || last {
                    return;
                }
            }
        }),
    );
    WorkerQueue::Thread(batches)
}

/// Makes a panic of the data set an error, in the caller's thread as in a worker, so that the number of workers changes
/// nothing.
fn caught(mut make: Maker) -> Maker {
    Box::new(move || {
        // Unwind safety: a panic can leave only the batch incomplete, which is dropped, and after an error nothing
        // more is taken from this maker; the data set is shared read-only.
        catch_unwind(AssertUnwindSafe(&mut make))
            .unwrap_or_else(|panic| Some(Err(DataError::Panicked { batch: 0, message: message_of(&*panic) })))
    })
}

/// The error with the number of its batch in the epoch.
fn numbered(mut error: DataError, number: usize) -> DataError {
    if let DataError::Sample { batch, .. } | DataError::Panicked { batch, .. } = &mut error {
        *batch = number;
    }
    error
}
