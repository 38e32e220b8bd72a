//! The worker threads of a loader: how many, how far ahead, and whether they stay between epochs.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};

use super::DataError;
use super::panicked::message_of;
use super::random::{Purpose, Stream};

/// Identifies a worker. In PyTorch: `torch.utils.data.get_worker_info()`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerInfo {
    /// The worker's number, from 0.
    pub id: usize,
    /// The number of workers; 1 if the caller's thread does the work.
    pub workers: usize,
    /// A seed that depends on the loader's seed, the epoch and `id`.
    pub seed: u64,
}

/// A function that runs when a worker thread starts.
pub(super) type Init = Arc<dyn Fn(WorkerInfo) -> Result<(), DataError> + Send + Sync>;

/// A loader's thread options. Clones share the kept threads.
#[derive(Clone)]
pub(super) struct Workers {
    /// The number of worker threads; with 0, the caller's thread does the work.
    pub(super) count: usize,
    /// The number of batches that each worker may be ahead; at least 1.
    pub(super) prefetch_factor: usize,
    pub(super) seed: u64,
    pub(super) init: Option<Init>,
    /// The threads kept between epochs, if they are kept.
    pub(super) kept: Option<Arc<Mutex<Option<ThreadPool>>>>,
}

impl Workers {
    pub(super) const fn none() -> Self {
        Self { count: 0, prefetch_factor: 2, seed: 0, init: None, kept: None }
    }

    pub(super) fn info(&self, id: usize, workers: usize, epoch: u64) -> WorkerInfo {
        let seed = Stream::at(self.seed, Purpose::Worker, epoch, id as u64).word();
        WorkerInfo { id, workers, seed }
    }

    /// Returns the kept threads if there are `count` of them, otherwise new ones.
    pub(super) fn pool(&self, count: usize, epoch: u64) -> Result<ThreadPool, DataError> {
        let kept = self.kept.as_ref().and_then(|kept| lock(kept).take());
        match kept.filter(|pool| pool.len() == count) {
            Some(pool) => Ok(pool),
            None => ThreadPool::start(self, count, epoch),
        }
    }

    /// Keeps the threads for the next epoch if the loader is set to; otherwise ends them.
    pub(super) fn keep(&self, pool: ThreadPool) {
        let replaced = match &self.kept {
            Some(kept) => lock(kept).replace(pool),
            None => Some(pool),
        };
        // Dropped after unlocking, because this waits for the threads.
        drop(replaced);
    }
}

/// The thread options of a loader that has a field `workers`.
macro_rules! worker_options {
    () => {
        /// The seed of samples ([`Sample::seed`](super::Sample::seed)) and workers ([`WorkerInfo::seed`]); 0 by default.
        #[must_use]
        pub fn seed(mut self, seed: u64) -> Self {
            self.workers.seed = seed;
            self
        }

        /// The number of threads that make batches ahead of the consumer; with 0, the consumer's own thread makes them. In
        /// PyTorch: `num_workers`.
        #[must_use]
        pub fn workers(mut self, workers: usize) -> Self {
            self.workers.count = workers;
            self
        }

        /// How many batches each worker may be ahead, including the one it is making; 2 by default, and at least 1.
        #[must_use]
        pub fn prefetch_factor(mut self, batches: usize) -> Self {
            self.workers.prefetch_factor = batches.max(1);
            self
        }

        /// Keeps the worker threads between epochs: they end with the last clone of the loader.
        #[must_use]
        pub fn persistent_workers(mut self) -> Self {
            self.workers.kept = Some(Arc::default());
            self
        }

        /// Runs a function in each worker thread when it starts; if the function fails, so does the epoch. In PyTorch:
        /// `worker_init_fn`. Without workers the function does not run.
        #[must_use]
        pub fn worker_init(
            mut self,
            init: impl Fn(WorkerInfo) -> Result<(), DataError> + Send + Sync + 'static,
        ) -> Self {
            self.workers.init = Some(Arc::new(init));
            self
        }
    };
}
pub(super) use worker_options;

fn lock(kept: &Mutex<Option<ThreadPool>>) -> std::sync::MutexGuard<'_, Option<ThreadPool>> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One worker's part of an epoch; its argument is the result of the thread's start function.
pub(super) type Job = Box<dyn FnOnce(Result<(), DataError>) + Send>;

/// Threads that run jobs; each thread runs its own jobs in order. Dropping the pool joins them.
pub(super) struct ThreadPool(Vec<PoolThread>);

struct PoolThread {
    jobs: Sender<Job>,
    thread: JoinHandle<()>,
}

impl ThreadPool {
    fn start(workers: &Workers, count: usize, epoch: u64) -> Result<Self, DataError> {
        let mut pool = Self(Vec::with_capacity(count));
        for worker in 0..count {
            let info = workers.info(worker, count, epoch);
            let member = PoolThread::start(info, workers.init.clone());
            pool.0.push(member.map_err(|source| DataError::Worker { worker, source })?);
        }
        Ok(pool)
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn give(&self, worker: usize, job: Job) {
        // If the thread was killed from outside, the job is dropped, and its channel reports that.
        let _ = self.0[worker].jobs.send(job);
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        let (jobs, threads): (Vec<_>, Vec<_>) =
            self.0.drain(..).map(|member| (member.jobs, member.thread)).unzip();
        drop(jobs);
        for thread in threads {
            // A panic of the data set has already been returned as an error.
            let _ = thread.join();
        }
    }
}

impl PoolThread {
    fn start(info: WorkerInfo, init: Option<Init>) -> io::Result<Self> {
        let (jobs, work) = channel::<Job>();
        let run = move || {
            let mut ready = init.map_or(Ok(()), |init| started(&init, info));
            for job in work {
                job(std::mem::replace(&mut ready, Ok(())));
            }
        };
        let thread = Builder::new().name(format!("plimsoll-data-{}", info.id)).spawn(run)?;
        Ok(Self { jobs, thread })
    }
}

/// Runs the user's function; a panic in it becomes an error.
fn started(init: &Init, info: WorkerInfo) -> Result<(), DataError> {
    let failed = |source| DataError::WorkerInit { worker: info.id, source: Box::new(source) };
    catch_unwind(AssertUnwindSafe(|| init(info)))
        .unwrap_or_else(|panic| {
            Err(DataError::Custom(format!("it panicked: {}", message_of(&*panic)).into()))
        })
        .map_err(failed)
}
