//! The process that runs trials for `plan`: [`Server`]. It is a run of the program that waits at its first use of
//! CUDA and then forks for each request, in the order of the requests (`serve.py`). As many forks run concurrently as
//! this machine has processors.

use std::fs;
use std::path::PathBuf;
use std::thread::{Scope, ScopedJoinHandle, sleep};
use std::time::{Duration, Instant};

use rustix::process::getpid;

use super::launch::ended::Ended;
use super::launch::session::Session;
use super::run::Run;
use crate::exit::Failure;
use crate::processes::{self, PYTORCH};
use crate::protocol::{Done, END, LATE, Request, UNABLE};
use crate::scratch::unreadable;
use crate::techniques::Set;

/// How long a fork may take to exit after its own time limit, and how long the serving process may take to exit.
pub(super) const GRACE: Duration = Duration::from_secs(5);

/// How often to look for an answer.
const PAUSE: Duration = Duration::from_millis(5);

/// How often to look once the answer is late. Each check is then expensive: it reads the memory maps of all
/// processes.
const LATE_PAUSE: Duration = Duration::from_millis(100);

/// How to try a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum How {
    /// With ample memory.
    Ample,
    /// With ample memory, but with the allocator limited to the GPU's memory.
    Limited,
    /// With ample memory, counting the operators of a step.
    Counted,
    /// On a simulated device of the GPU's size.
    Itself,
    /// With a different batch size, and with the allocator limited to the GPU's memory.
    Batch(Rows),
}

/// A different batch size for a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rows {
    /// The new batch size. With 0, the program keeps its own batch size and reports it, and the allocator is not
    /// limited.
    pub(crate) to: u64,
    /// The program's own batch.
    pub(crate) of: u64,
    /// The way in which the batch is resized: `tensors` or `inputs` (`techniques/batch.py`).
    pub(crate) way: &'static str,
}

/// A request to a fork: a set, and how to run it.
pub(super) struct Wanted {
    /// The set, as JSON.
    pub(super) set: serde_json::Value,
    pub(super) limit: Duration,
    /// The limit of the allocator.
    pub(super) limit_bytes: Option<u64>,
    /// The device's memory, if it differs from the server's.
    pub(super) memory_bytes: Option<u64>,
    /// Whether to record the contents of the peak.
    pub(super) records: bool,
    /// Whether the program runs until its reserved bytes stop growing.
    pub(super) settles: bool,
    /// Whether the program ends after its steps, without the code after them.
    pub(super) stops: bool,
    /// Whether the fork looks for memory at the peak that the program does not read again.
    pub(super) looks: bool,
    pub(super) ranks: u32,
    /// Whether no other trial may run at the same time.
    pub(super) is_alone: bool,
}

/// The serving process, and the requests to it.
pub(super) struct Server<'scope> {
    session: &'scope Session,
    /// The serving process; `None` once it has ended.
    process: Option<ScopedJoinHandle<'scope, Result<Run, Failure>>>,
    /// The folder for requests and answers.
    folder: PathBuf,
    /// The requests in order; `None` for withdrawn requests.
    asked: Vec<Option<(Set, How)>>,
    /// The number of requests that were answered or abandoned.
    answered: usize,
}

/// The result of a request.
pub(super) enum Answer {
    /// How the fork ended, and its reports. `beside` means that another trial was running at some point during this
    /// trial.
    Ended { ended: Ended, reports: PathBuf, shared: PathBuf, beside: bool },
    /// The fork took too long.
    Expired,
    /// A fork would give a wrong answer, because the program has already queried the device's memory.
    Unable,
    /// The program did not reach its first use of CUDA in time.
    Late,
    /// The time for all trials ran out; pending requests get no answer.
    Abandoned,
    /// The serving process has ended. Contains the result of this process's own run, if it was not returned before.
    Gone(Option<Run>),
}

impl<'scope> Server<'scope> {
    /// Starts the process; `run` gets the folder for requests.
    pub(super) fn begin<'env>(
        scope: &'scope Scope<'scope, 'env>,
        session: &'scope Session,
        run: impl FnOnce(PathBuf) -> Result<Run, Failure> + Send + 'scope,
    ) -> Result<Server<'scope>, Failure> {
        let folder = session.folder().join("plan");
        fs::create_dir_all(&folder).map_err(|why| unreadable(&why))?;
        let place = folder.clone();
        let process = Some(scope.spawn(move || run(place)));
        Ok(Server { session, process, folder, asked: Vec::new(), answered: 0 })
    }

    /// Whether the process can accept requests.
    pub(super) fn is_there(&self) -> bool {
        self.process.is_some()
    }

    /// Whether no request has been made so far.
    pub(super) fn is_new(&self) -> bool {
        self.asked.is_empty()
    }

    /// The number of requests whose answers have not been fetched yet.
    pub(super) fn waiting(&self) -> u32 {
        u32::try_from(self.asked.len() - self.answered).unwrap_or(u32::MAX)
    }

    /// The index of an earlier request for the same trial.
    pub(super) fn known(&self, set: &Set, how: How) -> Option<usize> {
        self.asked.iter().position(|it| it.as_ref().is_some_and(|(known, of)| known == set && *of == how))
    }

    /// Makes a request. Returns its index.
    ///
    /// # Errors
    /// I/O errors.
    pub(super) fn ask(&mut self, set: &Set, how: How, wanted: &Wanted) -> Result<usize, Failure> {
        let number = self.asked.len();
        let (reports, shared) = self.places(number);
        fs::create_dir_all(&reports).map_err(|why| unreadable(&why))?;
        fs::create_dir_all(&shared).map_err(|why| unreadable(&why))?;
        let view = self.folder.join(format!("view-{number}"));
        fs::create_dir_all(&view).map_err(|why| unreadable(&why))?;
        let request = Request {
            set: &wanted.set,
            reports: &reports,
            shared: &shared,
            view: &view,
            limit_s: wanted.limit.as_secs_f64(),
            limit_bytes: wanted.limit_bytes,
            memory_bytes: wanted.memory_bytes,
            records: wanted.records,
            settles: wanted.settles,
            stops: wanted.stops,
            looks: wanted.looks,
            counts: how == How::Counted,
            shows: number == 0,
            ranks: wanted.ranks,
            alone: wanted.is_alone,
        };
        let request = serde_json::to_string(&request).map_err(|why| unreadable(&why.into()))?;
        let unfinished = self.folder.join("request");
        fs::write(&unfinished, request).map_err(|why| unreadable(&why))?;
        fs::rename(&unfinished, self.folder.join(format!("{number}.json")))
            .map_err(|why| unreadable(&why))?;
        self.asked.push(Some((set.clone(), how)));
        Ok(number)
    }

    /// Discards all requests; a repeated request gets a new fork.
    pub(super) fn forget(&mut self) {
        self.asked.iter_mut().for_each(|it| *it = None);
    }

    /// Abandons all requests except those at the GPU's size. New requests can be made afterwards.
    ///
    /// # Errors
    /// I/O errors.
    pub(super) fn give_up(&mut self) -> Result<(), Failure> {
        let unfinished = self.folder.join("unfinished");
        fs::write(&unfinished, self.asked.len().to_string()).map_err(|why| unreadable(&why))?;
        fs::rename(&unfinished, self.folder.join(LATE)).map_err(|why| unreadable(&why))?;
        self.forget();
        self.answered = self.asked.len();
        Ok(())
    }

    fn places(&self, number: usize) -> (PathBuf, PathBuf) {
        (self.folder.join(format!("reports-{number}")), self.folder.join(format!("shared-{number}")))
    }

    /// Waits for the answer to a request, at most until its time limit. If the serving process is using PyTorch, so
    /// that an answer may still come, this waits `grace` longer. After `left`, this request and all others are
    /// abandoned.
    ///
    /// # Errors
    /// I/O errors.
    pub(super) fn answer(
        &mut self,
        number: usize,
        limit: Duration,
        grace: Duration,
        left: Duration,
    ) -> Result<Answer, Failure> {
        let done = self.folder.join(format!("{number}.done"));
        let begun = Instant::now();
        loop {
            if let Ok(text) = fs::read(&done) {
                // The set can be tried again.
                self.asked[number] = None;
                self.answered += 1;
                return Ok(self.read(number, &serde_json::from_slice(&text).unwrap_or_default()));
            }
            if self.process.as_ref().is_none_or(ScopedJoinHandle::is_finished) {
                return Ok(Answer::Gone(self.join()?));
            }
            if begun.elapsed() > left {
                self.give_up()?;
                return Ok(Answer::Abandoned);
            }
            let late = begun.elapsed().saturating_sub(limit);
            if late > grace || (late > Duration::ZERO && !processes::have_opened(getpid(), PYTORCH)) {
                self.session.interrupt();
                self.join()?;
                return Ok(Answer::Late);
            }
            sleep(if late > Duration::ZERO { LATE_PAUSE } else { PAUSE });
        }
    }

    fn read(&self, number: usize, done: &Done) -> Answer {
        let (reports, shared) = self.places(number);
        let beside = done.beside;
        let ended = |ended| Answer::Ended { ended, reports, shared, beside };
        match (done.status.as_i64().and_then(|it| i32::try_from(it).ok()), done.status.as_str()) {
            (Some(0), _) => ended(Ended::Well),
            (Some(code), _) if code < 0 => ended(Ended::Signal(-code)),
            (Some(code), _) => ended(Ended::Status(code)),
            (None, Some(UNABLE)) => Answer::Unable,
            (None, _) => Answer::Expired,
        }
    }

    /// Ends the serving process and the thread that waits for it.
    ///
    /// # Errors
    /// The errors of the process's run.
    pub(super) fn end(&mut self) -> Result<(), Failure> {
        let _ = fs::write(self.folder.join(END), "");
        let until = Instant::now() + GRACE;
        while self.process.as_ref().is_some_and(|process| !process.is_finished()) {
            if Instant::now() > until {
                self.session.interrupt();
                break;
            }
            sleep(PAUSE);
        }
        self.join().map(|_| ())
    }

    fn join(&mut self) -> Result<Option<Run>, Failure> {
        let Some(process) = self.process.take() else { return Ok(None) };
        match process.join() {
            Ok(run) => run.map(Some),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}
