//! One stream of the late device: a work queue with its own thread.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

/// A piece of work. It catches its own errors.
pub(super) type Work = Box<dyn FnOnce() + Send>;

/// A queue whose work one thread does in order.
#[derive(Default)]
pub(super) struct WorkQueue {
    state: Mutex<State>,
    /// Notified when work is added, when some is done, and at the end.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Work>,
    /// The pieces added so far; `done` of them are finished.
    queued: u64,
    done: u64,
    closed: bool,
}

impl WorkQueue {
    /// Starts a queue and its thread, which ends when the queue is closed and all work is done.
    pub(super) fn start(name: String) -> std::io::Result<(Arc<WorkQueue>, thread::JoinHandle<()>)> {
        let queue = Arc::new(WorkQueue::default());
        let worker = queue.clone();
        let thread = thread::Builder::new().name(name).spawn(move || worker.run())?;
        Ok((queue, thread))
    }

    /// Adds work at the end.
    pub(super) fn push(&self, work: Work) {
        let mut state = self.lock();
        state.waiting.push_back(work);
        state.queued += 1;
        drop(state);
        self.changed.notify_all();
    }

    /// The number of pieces added so far; another thread can wait until these are done.
    pub(super) fn end(&self) -> u64 {
        self.lock().queued
    }

    /// Whether this many pieces are done.
    pub(super) fn has_done(&self, pieces: u64) -> bool {
        self.lock().done >= pieces
    }

    /// Waits until this many pieces are done.
    pub(super) fn wait_for(&self, pieces: u64) {
        let mut state = self.lock();
        while state.done < pieces {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Closes the queue: no more work may be added.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    fn run(&self) {
        while let Some(work) = self.next() {
            work(); // outside the lock; it is dropped there with everything that it owns
            self.lock().done += 1;
            self.changed.notify_all();
        }
    }

    fn next(&self) -> Option<Work> {
        let mut state = self.lock();
        loop {
            if let Some(work) = state.waiting.pop_front() {
                return Some(work);
            }
            if state.closed {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_done_in_order_and_the_thread_ends_with_the_line() {
        let (queue, thread) = WorkQueue::start("test".to_owned()).unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        for i in 0..100 {
            let seen = seen.clone();
            queue.push(Box::new(move || seen.lock().unwrap().push(i)));
        }
        queue.wait_for(50);
        assert!(queue.has_done(50) && queue.end() == 100);
        queue.close();
        thread.join().unwrap();
        assert_eq!(*seen.lock().unwrap(), (0..100).collect::<Vec<_>>());
    }
}
