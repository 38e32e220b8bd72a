//! The streams of the late device: a work queue for each stream, random delays, and streams that a test can
//! pause.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use plimsoll_alloc::{DriverError, EventId, LabelId, StreamId};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::work_queue::{Work, WorkQueue};
use crate::error::{Error, Result};
use crate::kernel::Kernel;
use crate::label;
use crate::stream::Stream;
use crate::unwind::panicked;

pub(super) const NAME: &str = "late";

fn failed(source: DriverError) -> Error {
    Error::Allocator { device: NAME.to_owned(), source: plimsoll_alloc::Error::Driver(source) }
}

/// The paused streams of late devices. Clones share the same set.
///
/// ```
/// use plimsoll_tensor::testing::{LateConfig, Pauses};
/// use plimsoll_tensor::{Device, Tensor};
/// let pauses = Pauses::default();
/// let device = Device::late(LateConfig { pauses: pauses.clone(), ..LateConfig::default() });
/// let stream = device.current_stream();
/// pauses.pause(&stream);
/// let x = Tensor::ones(&[4], &device)?;
/// assert!(!stream.query()?);
/// pauses.resume(&stream);
/// stream.synchronize()?;
/// assert!(stream.query()?);
/// # drop(x);
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Pauses(Arc<(Mutex<BTreeSet<StreamId>>, Condvar)>);

impl Pauses {
    /// Pauses a stream: no work on it begins until it is resumed.
    pub fn pause(&self, stream: &Stream) {
        self.lock().insert(stream.id());
    }

    /// Resumes a stream.
    pub fn resume(&self, stream: &Stream) {
        self.lock().remove(&stream.id());
        self.0.1.notify_all();
    }

    fn resume_all(&self) {
        self.lock().clear();
        self.0.1.notify_all();
    }

    fn wait(&self, stream: StreamId) {
        let mut paused = self.lock();
        while paused.contains(&stream) {
            paused = self.0.1.wait(paused).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<StreamId>> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The cause of an error: an operator and the layer that called it.
#[derive(Clone, Copy)]
pub(super) struct Cause {
    pub(super) op: &'static str,
    pub(super) owner: LabelId,
}

/// The streams of one device.
pub(super) struct Streams {
    seed: u64,
    longest_delay: Duration,
    pauses: Pauses,
    /// Held while a kernel runs, since the kernels of two streams could otherwise access the same bytes at
    /// the same time.
    running: Arc<Mutex<()>>,
    /// The first unreported error.
    error: Arc<Mutex<Option<Error>>>,
    /// Kernels that have run, to be dropped by a thread of the program. A kernel may own tensors, and freeing
    /// those takes the allocator's lock, whose owner may be waiting for this device.
    finished: Arc<Mutex<Vec<Arc<dyn Kernel>>>>,
    /// The streams on which work was queued, with the random state of their delays.
    open: Mutex<BTreeMap<StreamId, OpenStream>>,
}

/// A kernel in a queue.
pub(super) struct Queued {
    pub(super) kernel: Arc<dyn Kernel>,
    finished: Arc<Mutex<Vec<Arc<dyn Kernel>>>>,
}

impl Drop for Queued {
    fn drop(&mut self) {
        self.finished.lock().unwrap_or_else(PoisonError::into_inner).push(self.kernel.clone());
    }
}

struct OpenStream {
    queue: Arc<WorkQueue>,
    thread: JoinHandle<()>,
    delays: ChaCha8Rng,
}

/// The number of low bits of an event's number that count pieces of work; the stream's number is in the bits
/// above.
const PIECE_BITS: u32 = 48;

impl Streams {
    pub(super) fn new(seed: u64, longest_delay: Duration, pauses: Pauses) -> Streams {
        Streams {
            seed,
            longest_delay,
            pauses,
            running: Arc::default(),
            error: Arc::default(),
            finished: Arc::default(),
            open: Mutex::default(),
        }
    }

    /// Runs `f` while no kernel of a stream runs.
    pub(super) fn alone<T>(&self, f: impl FnOnce() -> T) -> T {
        let _running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        f()
    }

    /// Takes the first unreported error.
    pub(super) fn take_error(&self) -> Option<Error> {
        self.error.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<StreamId, OpenStream>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wraps a kernel for a queue.
    pub(super) fn queued(&self, kernel: Arc<dyn Kernel>) -> Queued {
        Queued { kernel, finished: self.finished.clone() }
    }

    /// Adds work to a stream, after a delay.
    pub(super) fn queue(
        &self,
        on: StreamId,
        cause: Cause,
        work: impl FnOnce() -> Result<()> + Send + 'static,
    ) -> Result<()> {
        let (running, error, pauses) = (self.running.clone(), self.error.clone(), self.pauses.clone());
        self.push(on, |delay| {
            Box::new(move || {
                thread::sleep(delay);
                pauses.wait(on);
                let done = {
                    let _running = running.lock().unwrap_or_else(PoisonError::into_inner);
                    catch_unwind(AssertUnwindSafe(work))
                };
                let failed =
                    done.unwrap_or_else(|panic| Err(panicked(cause.op, "the kernel", panic.as_ref()))).err();
                if let Some(failed) = failed {
                    let (op, owner) = (cause.op, label::text(cause.owner));
                    let late = Error::Late { device: NAME.to_owned(), op, owner, cause: Box::new(failed) };
                    error.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(late);
                }
            })
        })
    }

    pub(super) fn push(&self, on: StreamId, work: impl FnOnce(Duration) -> Work) -> Result<()> {
        let mut open = self.lock();
        let OpenStream { queue, delays, .. } = match open.entry(on) {
            Entry::Occupied(there) => there.into_mut(),
            Entry::Vacant(new) => {
                let started = WorkQueue::start(format!("{NAME} stream {}", on.0));
                let (queue, thread) = started.map_err(|error| {
                    failed(DriverError::Failed(format!("no thread for a stream: {error}")))
                })?;
                let mut delays = ChaCha8Rng::seed_from_u64(self.seed);
                delays.set_stream(on.0);
                new.insert(OpenStream { queue, thread, delays })
            }
        };
        let share = f64::from(delays.next_u32()) / f64::from(u32::MAX);
        // Mostly short delays, sometimes long ones.
        queue.push(work(self.longest_delay.mul_f64(share * share * share)));
        Ok(())
    }

    fn queue_of(&self, stream: StreamId) -> Option<Arc<WorkQueue>> {
        self.lock().get(&stream).map(|stream| stream.queue.clone())
    }

    /// The queue of an event, and the number of pieces that must be done. No queue if nothing was queued.
    pub(super) fn of(&self, event: EventId) -> (Option<Arc<WorkQueue>>, u64) {
        (self.queue_of(StreamId(event.0 >> PIECE_BITS)), event.0 & ((1 << PIECE_BITS) - 1))
    }

    pub(super) fn record(&self, on: StreamId) -> EventId {
        let pieces = self.queue_of(on).map_or(0, |queue| queue.end());
        EventId(on.0 << PIECE_BITS | pieces)
    }

    pub(super) fn is_done(&self, event: EventId) -> bool {
        let (queue, pieces) = self.of(event);
        queue.is_none_or(|queue| queue.has_done(pieces))
    }

    pub(super) fn wait(&self, event: EventId) {
        if let (Some(queue), pieces) = self.of(event) {
            queue.wait_for(pieces);
        }
    }

    pub(super) fn wait_all(&self) {
        let streams: Vec<Arc<WorkQueue>> = self.lock().values().map(|stream| stream.queue.clone()).collect();
        streams.iter().for_each(|queue| queue.wait_for(queue.end()));
    }

    /// Waits for the threads to finish their work and end.
    pub(super) fn close(&self) {
        self.pauses.resume_all();
        let streams = std::mem::take(&mut *self.lock());
        streams.values().for_each(|stream| stream.queue.close());
        for stream in streams.into_values() {
            // Panics in the work were caught where they happened.
            let _ = stream.thread.join();
        }
    }

    /// Drops the kernels that have run.
    pub(super) fn sweep(&self) {
        let finished = std::mem::take(&mut *self.finished.lock().unwrap_or_else(PoisonError::into_inner));
        drop(finished); // outside the lock
    }
}
