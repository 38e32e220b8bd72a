//! The processes that `top` watches: [`Watched`], one process or the ranks of a job.

use std::io::{self, ErrorKind};

use plimsoll::memory::live::{self, Sample, Watcher};
use rustix::process::Pid;

use super::process::{START, cannot_attach, of, unreadable};
use super::text;
use crate::exit::{Exit, Failure};
use crate::processes;

/// Connections to processes, by rank.
pub(super) struct Watched {
    watchers: Vec<(u32, Watcher)>,
}

impl Watched {
    /// One process; for a `plimsoll run` the program that it started.
    ///
    /// # Errors
    /// If the process cannot be watched.
    pub(super) fn one(pid: u32) -> Result<Watched, Failure> {
        let pid = program(pid);
        let watcher = Watcher::attach(pid).map_err(|why| cannot_attach(pid, &why))?;
        Ok(Watched { watchers: vec![(pid, watcher)] })
    }

    /// The only process, or the ranks of the only job.
    ///
    /// # Errors
    /// If there is none, or there are several.
    pub(super) fn all() -> Result<Watched, Failure> {
        let pids = live::running().map_err(|why| unreadable(&why))?;
        match pids[..] {
            [] => Err(Failure::new(Exit::Unreadable, format!("no running process can be watched\n{START}"))),
            [pid] => Watched::one(pid),
            _ => Watched::job(&pids),
        }
    }

    fn job(pids: &[u32]) -> Result<Watched, Failure> {
        let mut samples: Vec<(u32, Option<Sample>)> = pids.iter().map(|&pid| (pid, of(pid))).collect();
        let job = |it: &(u32, Option<Sample>)| it.1.as_ref().and_then(|sample| sample.job.clone());
        let first = job(&samples[0]);
        if first.is_none() || samples.iter().any(|it| job(it) != first) {
            return Err(several(&samples));
        }
        samples.sort_by_key(|(pid, sample)| (sample.as_ref().and_then(|it| it.rank), *pid));
        let attached = samples.iter().map(|&(pid, _)| {
            Watcher::attach(pid).map(|watcher| (pid, watcher)).map_err(|why| cannot_attach(pid, &why))
        });
        Ok(Watched { watchers: attached.collect::<Result<_, _>>()? })
    }

    pub(super) fn pids(&self) -> Vec<u32> {
        self.watchers.iter().map(|(pid, _)| *pid).collect()
    }

    pub(super) fn each(&mut self) -> impl Iterator<Item = (u32, &mut Watcher)> {
        self.watchers.iter_mut().map(|(pid, watcher)| (*pid, watcher))
    }

    /// A sample of each process that still runs.
    ///
    /// # Errors
    /// If a process does not answer.
    pub(super) fn samples(&mut self) -> Result<Vec<Sample>, Failure> {
        self.sampled().map_err(|why| unreadable(&why))
    }

    /// The same as [`Watched::samples`], with the system's error. If there are several processes, those that do not answer are
    /// left out.
    ///
    /// # Errors
    /// The same errors as [`Watcher::sample`].
    pub(super) fn sampled(&mut self) -> io::Result<Vec<Sample>> {
        let mut samples = Vec::new();
        let is_one = self.watchers.len() == 1;
        for (_, watcher) in &mut self.watchers {
            match watcher.sample() {
                Ok(sample) => samples.extend(sample),
                Err(why) if why.kind() == ErrorKind::TimedOut && !is_one => {}
                Err(why) => return Err(why),
            }
        }
        Ok(samples)
    }
}

/// If this process cannot be watched but exactly one of its descendants can, that descendant.
fn program(pid: u32) -> u32 {
    let running = live::running().unwrap_or_default();
    let Some(top) = i32::try_from(pid).ok().and_then(Pid::from_raw).filter(|_| !running.contains(&pid))
    else {
        return pid;
    };
    let below =
        processes::below(top).into_iter().filter_map(|it| u32::try_from(it.as_raw_nonzero().get()).ok());
    let mut found = below.filter(|it| running.contains(it));
    found.next().filter(|_| found.next().is_none()).unwrap_or(pid)
}

fn several(samples: &[(u32, Option<Sample>)]) -> Failure {
    let row = |(pid, sample): &(u32, Option<Sample>)| {
        let command = sample.as_ref().map_or_else(|| "(does not answer)".to_owned(), text::command);
        let rank =
            sample.as_ref().and_then(|it| it.rank).map_or_else(String::new, |it| format!("rank {it}: "));
        format!("\n  plimsoll top {pid:<8} {rank}{command}")
    };
    let rows: String = samples.iter().map(row).collect();
    Failure::new(Exit::Usage, format!("{} processes can be watched; choose one:{rows}", samples.len()))
}
