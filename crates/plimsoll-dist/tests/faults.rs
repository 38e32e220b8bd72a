//! One rank dies, calls another collective or one of another size, or sleeps at its kth collective, for every rank and every k of a small step. All other
//! ranks name it, and nothing hangs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use plimsoll_dist::transport::Threads;
use plimsoll_dist::{Call, Communicator, Error, Op, Result, Transport};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Dies,
    GoesAnotherWay,
    SendsAnotherSize,
    Sleeps,
}

/// A transport that behaves like `Threads` until the fault.
#[derive(Debug)]
struct Faulty {
    threads: Threads,
    at: u64,
    fault: Fault,
    calls: AtomicU64,
}

impl Transport for Faulty {
    fn rank(&self) -> usize {
        self.threads.rank()
    }

    fn size(&self) -> usize {
        self.threads.size()
    }

    fn exchange(&self, call: &Call, send: &[&[u8]], receive: &mut [&mut [u8]]) -> Result<()> {
        if self.calls.fetch_add(1, Ordering::SeqCst) != self.at {
            return self.threads.exchange(call, send, receive);
        }
        match self.fault {
            Fault::Dies => {
                self.threads.close();
                Err(Error::Timeout { rank: self.rank(), call: call.clone(), seconds: 0 })
            }
            Fault::GoesAnotherWay | Fault::SendsAnotherSize => {
                let other = match self.fault {
                    Fault::SendsAnotherSize => Call { bytes: call.bytes + 4, ..call.clone() },
                    _ => Call { op: Op::Barrier, bytes: 0, ..call.clone() },
                };
                self.threads.exchange(
                    &other,
                    &vec![&[][..]; self.size()],
                    &mut (0..self.size()).map(|_| &mut [][..]).collect::<Vec<_>>(),
                )
            }
            Fault::Sleeps => {
                thread::sleep(Duration::from_millis(1_500));
                Err(Error::Timeout { rank: self.rank(), call: call.clone(), seconds: 0 })
            }
        }
    }
}

/// The collectives of a small step.
fn step(ranks: &Communicator) -> Result<()> {
    let mut bytes = vec![1; 12 * ranks.size()];
    let mut received = bytes.clone();
    ranks.all_to_all(&bytes, &mut received, "bucket 0")?;
    ranks.all_gather(&mut bytes, "bucket 0")?;
    ranks.broadcast(&mut received, 0, "buffers")?;
    ranks.all_gather(&mut bytes, "loss")
}

fn names(error: &Error, faulty: usize) -> bool {
    match error {
        Error::RankLost { lost, .. } => lost.rank == faulty,
        Error::Mismatch { rank, .. } | Error::Timeout { rank, .. } => *rank == faulty,
        _ => false,
    }
}

const SIZE: usize = 3;

/// Two small steps in which rank `faulty` has this fault at its collective number `at`.
fn check(fault: Fault, faulty: usize, at: u64) {
    // The others wait for a sleeping rank until the timeout. The other faults must not depend on timing.
    let timeout = if fault == Fault::Sleeps { 600 } else { 60_000 };
    let start = Instant::now();
    let ranks = Threads::ranks(SIZE, Duration::from_millis(timeout)).into_iter().map(|threads| {
        let at = if threads.rank() == faulty { at } else { u64::MAX };
        Communicator::new(Faulty { threads, at, fault, calls: AtomicU64::new(0) })
    });
    let ranks: Vec<Communicator> = ranks.collect();
    let errors: Vec<Result<()>> = thread::scope(|scope| {
        let run = |rank| scope.spawn(move || -> Result<()> { (0..2).try_for_each(|_| step(rank)) });
        let running: Vec<_> = ranks.iter().map(run).collect();
        running.into_iter().map(|rank| rank.join().expect("a rank")).collect()
    });
    for (rank, error) in errors.iter().enumerate().filter(|(rank, _)| *rank != faulty) {
        let error = error.as_ref().expect_err("an error");
        // The two other ranks may also see each other leave, but only after they have named the faulty one.
        assert!(names(error, faulty), "{fault:?} of rank {faulty} at {at}: rank {rank} says {error}");
    }
    assert!(start.elapsed() < Duration::from_secs(3), "{fault:?} of rank {faulty} at {at}");
}

#[test]
fn every_fault_at_every_collective_is_named_by_all_others() {
    for fault in [Fault::Dies, Fault::GoesAnotherWay, Fault::SendsAnotherSize] {
        for (faulty, at) in (0..SIZE).flat_map(|faulty| (0..8).map(move |at| (faulty, at))) {
            check(fault, faulty, at);
        }
    }
}

#[test]
fn a_rank_that_sleeps_at_any_collective_is_named_by_all_others() {
    // Most of the time, all threads wait.
    thread::scope(|scope| {
        for (faulty, at) in (0..SIZE).flat_map(|faulty| (0..8).map(move |at| (faulty, at))) {
            scope.spawn(move || check(Fault::Sleeps, faulty, at));
        }
    });
}
