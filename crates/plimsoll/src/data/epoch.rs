//! One pass over the data: the batches in order, made by the caller's thread or by worker threads.
//!
//! Note [Workers and batches]: of n workers, worker w makes batches w, w + n, w + 2n, … and sends them through
//! its own bounded channel; the consumer receives from the channels in turn. So batches arrive in order without a
//! reordering buffer, each worker is at most `prefetch_factor` batches ahead, and batches do not depend on the number
//! of workers. The channels also end the pass: dropping the receivers makes each worker's next `send` fail, and it
//! stops. Dropping an epoch waits only for the batches that are being made.
//!
//! A [`Source`] makes the batches: `indexed.rs` for a data set with an index, `iterable.rs` for a stream.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};

use super::panicked::message_of;
use super::workers::{ThreadPool, WorkerInfo, Workers};
use super::{DataError, HostBatch, LoaderState};

/// The batches of one epoch, in order. Made by [`DataLoader::epoch`](super::DataLoader::epoch).
///
/// The first error is the last item. Dropping an epoch early stops its threads once they finish the batches in
/// progress.
pub struct Epoch {
    /// The queues to take batches from, in turn; a queue that has no more batches is removed.
    queues: Vec<WorkerQueue>,
    turn: usize,
    /// The number of remaining batches, if it is known.
    left: Option<usize>,
    position: LoaderState,
    cannot_start: Option<DataError>,
    workers: Workers,
    pool: Option<ThreadPool>,
}

/// Makes the batches of one worker, in order; `None` after the last.
pub(super) type Maker = Box<dyn FnMut() -> Option<Result<HostBatch, DataError>> + Send>;

/// Makes the batches of an epoch.
pub(super) trait Source: Send + Sync {
    /// The function that makes one worker's batches.
    fn maker(self: Arc<Self>, worker: WorkerInfo) -> Maker;
}

/// A worker's batches, or those of the caller's thread.
enum WorkerQueue {
    Here(Maker),
    Thread(Receiver<Option<Result<HostBatch, DataError>>>),
}

impl Epoch {
    /// Starts at `position`. `left` is the number of remaining batches, if it is known.
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

    /// The position after the batches taken so far, for saving with a model;
    /// [`DataLoader::resume`](super::DataLoader::resume) continues from it. Batches that workers have made ahead do not
    /// count.
    #[must_use]
    pub fn state(&self) -> LoaderState {
        self.position.clone()
    }

    /// Makes the first `batches` and drops them: a stream has no other way to skip them.
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

    /// Takes the next batch, from the queues in turn; a queue that has no more batches is removed.
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

    /// Stops the workers: closes all channels first, so that the threads stop at the same time.
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
            // A worker reports its end, and a panic is returned as an error, so the channel closes early only if the thread was
            // killed from outside.
            WorkerQueue::Thread(batches) => batches.recv().unwrap_or_else(|_| {
                Some(Err(DataError::Panicked { batch: 0, message: "its thread ended".to_owned() }))
            }),
        }
    }
}

/// Starts one worker and returns its queue.
fn queue(
    source: &Arc<dyn Source>,
    workers: &Workers,
    pool: &ThreadPool,
    id: usize,
    epoch: u64,
) -> WorkerQueue {
    // The worker itself holds one batch while it waits for the channel.
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

/// Turns a panic of the data set into an error, in the caller's thread as well as in a worker, so that the number of workers
/// makes no difference.
fn caught(mut make: Maker) -> Maker {
    Box::new(move || {
        // Unwind safety: a panic can leave only the batch incomplete, and the batch is dropped. After an error this maker is not
        // called again. The data set is shared read-only.
        catch_unwind(AssertUnwindSafe(&mut make))
            .unwrap_or_else(|panic| Some(Err(DataError::Panicked { batch: 0, message: message_of(&*panic) })))
    })
}

/// Adds the batch's number in the epoch to the error.
fn numbered(mut error: DataError, number: usize) -> DataError {
    if let DataError::Sample { batch, .. } | DataError::Panicked { batch, .. } = &mut error {
        *batch = number;
    }
    error
}
