//! Decides which of several files of one rank counts: [`judged`]. The contents of the recordings decide, not their
//! names.
//!
//! A program that runs out of memory may write one file at the failure and another file as it ends: these files share
//! events and are from the same run. A file of an earlier run, or from earlier in a long run, ends before the other
//! file begins. Files of two processes that recorded at the same time overlap in time but share no event: both count.

use std::collections::BTreeSet;

use plimsoll_trace::snapshot::{Action, Event, Snapshot};

use crate::explained::Explained;

/// How many events to look up in the other recording.
const LOOKED_FOR: usize = 1000;

/// Whether a file is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Judged {
    /// The file represents its rank.
    Used,
    /// Another file, at this index, represents the rank, for this reason.
    Unused { used: usize, why: &'static str },
}

/// The facts about a recording that decide whether it counts.
struct Recorded<'a> {
    snapshot: &'a Snapshot,
    /// The first and the last time of its events, microseconds; `None` if the events have no times.
    times: Option<(u64, u64)>,
    /// How many events came after the last failure.
    after_failure: Option<usize>,
}

/// How two recordings of one rank relate.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Relation {
    /// The recordings share events, or there are no times.
    SameRun,
    /// One recording ends before the other begins.
    Apart,
    /// The recordings overlap in time and share no event.
    OtherProcess,
}

/// Decides for each file of one rank whether it counts.
pub(super) fn judged(files: &[&Explained]) -> Vec<Judged> {
    let recorded: Vec<Recorded<'_>> = files.iter().map(|file| Recorded::of(file)).collect();
    decided(&recorded)
}

fn decided(recorded: &[Recorded<'_>]) -> Vec<Judged> {
    let mut verdicts = vec![Judged::Used; recorded.len()];
    for process in processes(recorded) {
        // Prefer the latest run of the process, and the file of that run that was written when memory ran out.
        let latest = process.iter().copied().max_by_key(|&nth| recorded[nth].times.map(|(_, end)| end));
        let Some(latest) = latest else { continue };
        let is_of_it = |nth: usize| nth == latest || recorded[nth].to(&recorded[latest]) == Relation::SameRun;
        let best = process.iter().copied().filter(|&nth| is_of_it(nth)).max_by_key(|&nth| {
            let Recorded { times, after_failure, .. } = &recorded[nth];
            (after_failure.map(std::cmp::Reverse), times.map(|(_, end)| end))
        });
        let used = best.unwrap_or(latest);
        for &nth in process.iter().filter(|&&nth| nth != used) {
            let why = match (is_of_it(nth), recorded[used].after_failure) {
                (false, _) => "it ends before the other begins",
                (true, Some(_)) => "both are from one run, and the other was written closer to the failure",
                (true, None) => "both are from one run, and the other is later",
            };
            verdicts[nth] = Judged::Unused { used, why };
        }
    }
    verdicts
}

/// Groups the recordings by process: two recordings that overlap in time and share no event are from different processes.
fn processes(recorded: &[Recorded<'_>]) -> Vec<Vec<usize>> {
    let mut processes: Vec<Vec<usize>> = Vec::new();
    for (nth, one) in recorded.iter().enumerate() {
        let is_other = |&place: &usize| recorded[place].to(one) == Relation::OtherProcess;
        match processes.iter_mut().find(|process| !process.iter().any(is_other)) {
            Some(process) => process.push(nth),
            None => processes.push(vec![nth]),
        }
    }
    processes
}

impl<'a> Recorded<'a> {
    fn of(file: &'a Explained) -> Self {
        let snapshot = &file.snapshot;
        let times = snapshot.traces.iter().flatten().filter_map(time);
        let times = times.fold(None, |times: Option<(u64, u64)>, time| {
            Some(times.map_or((time, time), |(first, last)| (first.min(time), last.max(time))))
        });
        let failures = file.devices.iter().filter_map(|device| {
            let events = device.timeline.quality.events;
            Some(events - device.failure?.at.index().min(events))
        });
        Recorded { snapshot, times, after_failure: failures.min() }
    }

    fn to(&self, other: &Self) -> Relation {
        let (Some((first, last)), Some((others_first, others_last))) = (self.times, other.times) else {
            return Relation::SameRun;
        };
        let (from, to) = (first.max(others_first), last.min(others_last));
        if from > to {
            return Relation::Apart;
        }
        let known: BTreeSet<_> = self.between(from, to).collect();
        let looked_for: Vec<_> = other.between(from, to).take(LOOKED_FOR).collect();
        let found = looked_for.iter().filter(|event| known.contains(event)).count();
        if found * 2 >= looked_for.len() { Relation::SameRun } else { Relation::OtherProcess }
    }

    /// The identities of the events between two times. No other process has events with these identities.
    fn between(&self, from: u64, to: u64) -> impl Iterator<Item = (u64, u64, Option<u64>)> {
        let events = self.snapshot.traces.iter().flatten();
        events.filter_map(move |event| {
            let time = time(event).filter(|time| (from..=to).contains(time))?;
            Some((time, event.size, event.addr().map(|addr| addr.0)))
        })
    }
}

/// The time of an event; `None` for the mark of an earlier snapshot.
fn time(event: &Event) -> Option<u64> {
    event.time_us.get().filter(|_| event.action != Action::Snapshot)
}

#[cfg(test)]
mod tests {
    use plimsoll_alloc::{Addr, StreamId};

    use super::*;

    /// A recording of allocations at these times, which starts at its own address.
    fn recording(times: std::ops::Range<u64>, addr: u64) -> Snapshot {
        let event = |time: u64| {
            let mut event = Event::new(Action::Alloc, Addr(addr + (time << 9)), 512, StreamId(0));
            event.time_us = time.into();
            event
        };
        Snapshot { traces: vec![times.map(event).collect()], ..Snapshot::default() }
    }

    fn recorded(snapshot: &Snapshot, after_failure: Option<usize>) -> Recorded<'_> {
        let times: Vec<u64> = snapshot.traces[0].iter().filter_map(time).collect();
        Recorded { snapshot, times: times.first().copied().zip(times.last().copied()), after_failure }
    }

    #[test]
    fn of_one_run_the_file_written_at_the_failure_counts() {
        let [at_failure, at_end] = [recording(0..100, 0), recording(20..120, 0)];
        let of_both = [recorded(&at_failure, Some(1)), recorded(&at_end, Some(21))];
        let [used, unused] = decided(&of_both).try_into().expect("two");
        assert_eq!(used, Judged::Used);
        assert!(matches!(unused, Judged::Unused { used: 0, why } if why.contains("closer to the failure")));
    }

    #[test]
    fn a_failure_of_an_earlier_run_does_not_count() {
        let [earlier, later] = [recording(0..100, 0), recording(200..300, 0)];
        let [unused, used] =
            decided(&[recorded(&earlier, Some(1)), recorded(&later, None)]).try_into().expect("two");
        assert_eq!(used, Judged::Used);
        assert!(matches!(unused, Judged::Unused { used: 1, why } if why.contains("ends before")));
    }

    #[test]
    fn two_processes_at_the_same_time_both_count() {
        let [one, other] = [recording(0..100, 0), recording(50..150, 7 << 30)];
        assert_eq!(decided(&[recorded(&one, None), recorded(&other, Some(1))]), [Judged::Used; 2]);
    }

    #[test]
    fn without_times_the_failure_decides() {
        let empty = Snapshot { traces: vec![Vec::new()], ..Snapshot::default() };
        let of_all = [recorded(&empty, None), recorded(&empty, Some(3)), recorded(&empty, None)];
        assert_eq!(decided(&of_all)[1], Judged::Used);
        assert!(matches!(decided(&of_all)[2], Judged::Unused { used: 1, .. }));
    }
}
