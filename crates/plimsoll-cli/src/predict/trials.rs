//! Runs of the same program with several sets of techniques, for `plan`: [`Trials`].
//!
//! A single run of the program serves all sets by forking (`served.rs`). If a program starts several processes or never
//! uses CUDA, the program runs once for each set instead.
//!
//! The device has far more memory than the GPU, so that the peak is known even for a set that does not fit. The peaks
//! decide whether a set fits, or another trial does: with the allocator limited to the GPU's memory, or on a simulated
//! device of the GPU's size.

use std::ffi::OsString;
use std::thread;
use std::time::{Duration, Instant};

use super::args::PredictArgs;
use super::assume::Assumption;
use super::gpu::{Target, Workspaces};
use super::launch::ended::Ended;
use super::launch::session::Session;
use super::node::Machine;
use super::recording::job::Job;
use super::run::Run;
use super::served::{Answer, GRACE, Server, Wanted};
pub(crate) use super::served::{How, Rows};
use super::trial::{End, Trial};
use super::view::Writes;
use crate::exit::Failure;
use crate::scratch::unreadable;
use crate::shown::Shown;
use crate::techniques::{Set, Technique};

/// The device's memory in trials without a limit.
const AMPLE_BYTES: u64 = 1 << 39;

/// Time limit of the first trial, unless --timeout sets it.
const FIRST_LIMIT: Duration = Duration::from_secs(600);

/// The time limit of each later trial: this duration or this multiple of the first trial's time, whichever is longer.
const LATER_LIMIT: (Duration, u32) = (Duration::from_secs(30), 10);

/// The minimum time limit of a trial that compiles the model.
const COMPILE_LIMIT: Duration = Duration::from_secs(300);

/// The minimum time limit of a trial with several ranks, which imports more of PyTorch.
const RANKS_LIMIT: Duration = Duration::from_secs(120);

/// The time that imports may add to the first trial.
const SERVING: Duration = Duration::from_secs(30);

/// The host factors of this machine and of the training machine, as `calibrate --host` prints them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Hosts {
    pub(crate) own: f64,
    pub(crate) training: f64,
}

/// The settings that all trials share.
#[derive(Debug, Clone)]
pub(crate) struct Program {
    pub(crate) command: Vec<OsString>,
    pub(crate) gpu: Option<String>,
    pub(crate) cc: Option<String>,
    pub(crate) devices: u32,
    pub(crate) context: Option<u64>,
    pub(crate) others: Option<u64>,
    /// The machine that will run the program.
    pub(crate) machine: Machine,
    /// The host factors, that is, the speed of the processors of this machine and of that machine.
    pub(crate) hosts: Hosts,
    pub(crate) workspaces: Workspaces,
    pub(crate) steps: u64,
    pub(crate) alloc_conf: Option<String>,
    pub(crate) timeout: Option<Duration>,
    /// The options for files that the program writes.
    pub(crate) writes: Writes,
    /// Assumed values of reads from the device.
    pub(crate) assume: Vec<Assumption>,
    /// Whether the run at the GPU's size records the contents of its peak.
    pub(crate) records: bool,
}

impl Program {
    fn args(&self, set: &Set, mut variables: Vec<(&'static str, OsString)>) -> PredictArgs {
        variables.push(("PLIMSOLL_PREDICT_REACHES", "1".into()));
        PredictArgs {
            gpu: self.gpu.clone(),
            cc: self.cc.clone(),
            devices: self.devices,
            nodes: 1,
            rank: None,
            context: self.context,
            others: self.others,
            host_memory: None,
            shm: None,
            cudnn_workspace: self.workspaces,
            steps: Some(self.steps),
            whole: false,
            assume: Vec::new(),
            alloc_conf: self.alloc_conf.clone(),
            with: (!set.is_empty()).then(|| set.clone()),
            timeout: self.timeout,
            find: None,
            snapshot: None,
            html: None,
            writes: self.writes.clone(),
            force: false,
            shown: Shown { rows: 10, bytes: false },
            full: false,
            verdict_only: false,
            json: false,
            command: self.command.clone(),
            list: false,
            variables,
            quiet: false,
        }
    }

    /// The GPU.
    ///
    /// # Errors
    /// If the name is unknown, the compute capability is invalid, or the device is smaller than the context.
    pub(crate) fn target(&self) -> Result<Target, Failure> {
        Ok(self.args(&Set::default(), Vec::new()).target()?.in_machine(self.machine))
    }
}

/// The variable that turns off the recording of events, for trials that need only the peaks.
fn peaks_only() -> (&'static str, OsString) {
    ("PLIMSOLL_PREDICT_PEAKS_ONLY", "1".into())
}

/// The variable that keeps the recording on.
fn recorded() -> (&'static str, OsString) {
    (peaks_only().0, OsString::new())
}

/// The variable that makes a program continue after its steps until its reserved bytes stop growing.
fn settles() -> (&'static str, OsString) {
    ("PLIMSOLL_PREDICT_SETTLES", "1".into())
}

/// The variable that makes a program end after its steps, without the code after them.
fn stops() -> (&'static str, OsString) {
    ("PLIMSOLL_PREDICT_STOPS", "1".into())
}

/// The variable that makes a program look for memory at the peak that is not read again.
fn looks() -> (&'static str, OsString) {
    ("PLIMSOLL_PREDICT_LOOKS", "1".into())
}

/// A set in the form that Python reads, with the other options of this trial.
fn wish(set: &Set, how: How) -> String {
    match how {
        How::Counted => set.counted(),
        How::Batch(Rows { to, of, way }) => set.batched(to, of, way),
        How::Ample | How::Limited | How::Itself => set.json(),
    }
}

/// Tries sets of techniques on one program.
pub(crate) struct Trials<'scope> {
    program: &'scope Program,
    session: &'scope Session,
    /// The GPU.
    target: &'scope Target,
    /// The same GPU with the memory that the first trial used outside the allocator.
    charged: Target,
    /// The same GPU with ample memory.
    ample: &'scope Target,
    server: Server<'scope>,
    /// How long the first trial took.
    first: Option<Duration>,
    is_interrupted: bool,
    /// The time at which trials are stopped, except those at the GPU's size.
    until: Option<Instant>,
    /// Whether a trial was stopped at that time.
    is_late: bool,
    /// Whether all trials, not only those at the GPU's size, run until their reserved bytes stop growing.
    all_settle: bool,
    /// Whether trials that are not at the GPU's size skip the code after the steps, such as an evaluation:
    /// the first trial showed that this code needs less memory than the steps.
    all_stop: bool,
    /// The serving process's own run, if the process served no request. This run then counts as the trial without
    /// techniques.
    unserved: Option<Trial>,
}

/// The GPU with ample memory.
pub(crate) fn ample(target: &Target) -> Target {
    target.with_memory(AMPLE_BYTES.max(2 * target.total_bytes))
}

/// Calls `work` with [`Trials`] that can try sets.
///
/// # Errors
/// If the library plimsoll-standin is missing, or a system call fails.
pub(crate) fn during<T>(
    program: &Program,
    target: &Target,
    work: impl FnOnce(&mut Trials<'_>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let session = Session::begin()?;
    let ample = ample(target);
    thread::scope(|scope| {
        let (session, ample) = (&session, &ample);
        let server = Server::begin(scope, session, move |folder| {
            let mut variables = vec![
                peaks_only(),
                looks(),
                ("PLIMSOLL_PLAN_FOLDER", folder.into_os_string()),
                // A fork does not inherit the threads of a thread pool.
                ("OMP_NUM_THREADS", "1".into()),
            ];
            if program.devices > 1 {
                variables.push(("PLIMSOLL_PLAN_RANKS", "1".into()));
            }
            // Each trial has its own time limit.
            let args = PredictArgs { timeout: None, ..program.args(&Set::default(), variables) };
            Run::of(&args, &args.command, ample, session, &program.assume)
        })?;
        let mut trials = Trials {
            program,
            session,
            target,
            charged: target.clone(),
            ample,
            server,
            first: None,
            is_interrupted: false,
            until: None,
            is_late: false,
            all_settle: false,
            all_stop: false,
            unserved: None,
        };
        let done = work(&mut trials);
        trials.server.end()?;
        done
    })
}

/// Runs the program separately, at the GPU's size.
///
/// # Errors
/// If the library plimsoll-standin is missing, or a system call fails.
pub(crate) fn alone(program: &Program, target: &Target, set: &Set) -> Result<Trial, Failure> {
    alone_with(program, target, set, Vec::new())
}

/// Like [`alone`], for a source with a smaller batch: the optimizer's step has an effect in every `parts`th iteration.
pub(crate) fn accumulated(program: &Program, target: &Target, parts: u64) -> Result<Trial, Failure> {
    let set = Set::default();
    alone_with(program, target, &set, vec![("PLIMSOLL_WITH", set.accumulated(parts).into())])
}

fn alone_with(
    program: &Program,
    target: &Target,
    set: &Set,
    mut variables: Vec<(&'static str, OsString)>,
) -> Result<Trial, Failure> {
    let (session, timeout) = (Session::begin()?, program.timeout.unwrap_or(FIRST_LIMIT));
    variables.extend([peaks_only(), settles()]);
    let args = PredictArgs { timeout: Some(timeout), quiet: true, ..program.args(set, variables) };
    let run = Run::of(&args, &args.command, target, &session, &program.assume)?;
    if run.job.ended == Ended::Expired {
        return Ok(Trial::expired(timeout));
    }
    Trial::of_run(&run, target)
}

impl Trials<'_> {
    /// The result of a trial of this set.
    ///
    /// # Errors
    /// I/O errors.
    pub(crate) fn of(&mut self, set: &Set, how: How) -> Result<Trial, Failure> {
        if self.is_interrupted || (self.is_late && how != How::Itself) {
            return Ok(Trial::without_answer(End::Interrupted));
        }
        let begun = Instant::now();
        let trial = match self.served(set, how)? {
            Some(trial) => trial,
            None => self.run(set, how)?,
        };
        if self.first.is_none() {
            self.first = Some(begun.elapsed());
            self.all_stop = trial.end == End::Ran && !trial.peaks_later;
            self.charged = self.target.charged(trial.outside_bytes);
        }
        self.is_interrupted |= trial.end == End::Interrupted && !self.is_late;
        Ok(trial)
    }

    /// The GPU. After the first trial, this includes the memory that the trial used outside the allocator.
    pub(crate) fn target(&self) -> &Target {
        &self.charged
    }

    /// The speed of processors.
    pub(crate) fn hosts(&self) -> Hosts {
        self.program.hosts
    }

    /// How long the first trial took.
    pub(crate) fn first(&self) -> Duration {
        self.first.unwrap_or_default()
    }

    /// From now on, trials are stopped at this time, even if they are running, except trials at the GPU's size.
    pub(crate) fn end_at(&mut self, until: Option<Instant>) {
        self.until = until;
    }

    /// Abandons the trials that were started [ahead](Trials::ahead). New trials can be started, even after the time
    /// limit.
    ///
    /// # Errors
    /// I/O errors.
    pub(crate) fn give_up(&mut self) -> Result<(), Failure> {
        self.is_late = false;
        if self.server.is_there() { self.server.give_up() } else { Ok(()) }
    }

    /// Makes trials run until their reserved bytes stop growing, and discards the results so far, so that trials are
    /// repeated.
    pub(crate) fn settle_all(&mut self) {
        self.all_settle = true;
        self.unserved = None;
        self.server.forget();
    }

    fn settles(&self, how: How) -> bool {
        matches!(how, How::Itself | How::Batch(Rows { to: 1.., .. }))
            || (self.all_settle && how != How::Counted)
    }

    fn stops(&self, how: How) -> bool {
        matches!(how, How::Counted | How::Batch(Rows { to: 0, .. })) || (self.all_stop && how != How::Itself)
    }

    /// Whether the time limit was reached during a trial. If so, this trial ended with [`End::Interrupted`].
    pub(crate) fn is_late(&self) -> bool {
        self.is_late
    }

    /// How much longer a trial that is not at the GPU's size may take.
    fn left(&self, how: How) -> Duration {
        let until = self.until.filter(|_| how != How::Itself);
        until.map_or(Duration::MAX, |until| until.saturating_duration_since(Instant::now()))
    }

    /// Starts trials whose results will be needed, so that they run concurrently.
    ///
    /// # Errors
    /// I/O errors.
    pub(crate) fn ahead(&mut self, wanted: &[(Set, How)]) -> Result<(), Failure> {
        for (set, how) in wanted {
            if self.is_served(set, *how)
                && !self.is_interrupted
                && !self.is_late
                && self.server.known(set, *how).is_none()
            {
                let wanted = self.wanted(set, *how, false);
                self.server.ask(set, *how, &wanted)?;
            }
        }
        Ok(())
    }

    /// Whether the user ended a trial; if so, no more trials run.
    pub(crate) fn is_interrupted(&self) -> bool {
        self.is_interrupted
    }

    /// Runs the program for this trial alone, not as a fork.
    fn run(&mut self, set: &Set, how: How) -> Result<Trial, Failure> {
        if set.is_empty()
            && how == How::Ample
            && let Some(trial) = self.unserved.take()
        {
            return Ok(trial);
        }
        if how == How::Itself {
            self.server.end()?;
        }
        // The allocator of a separate process cannot be limited.
        let target = if matches!(how, How::Limited | How::Itself | How::Batch(Rows { to: 1.., .. })) {
            self.target
        } else {
            self.ample
        };
        let is_last = how == How::Itself;
        let mut variables = vec![if is_last && self.program.records { recorded() } else { peaks_only() }];
        variables.extend(self.settles(how).then(settles));
        variables.extend(self.stops(how).then(stops));
        if matches!(how, How::Counted | How::Batch(_)) {
            variables.push(("PLIMSOLL_WITH", wish(set, how).into()));
        }
        let (limit, left) = (self.limit(set, is_last), self.left(how));
        let args = PredictArgs {
            timeout: Some(limit.min(left)),
            quiet: self.first.is_some(),
            ..self.program.args(set, variables)
        };
        let run = Run::of(&args, &args.command, target, self.session, &self.program.assume)?;
        if run.job.ended == Ended::Expired {
            self.is_late |= left < limit;
            return Ok(if left < limit {
                Trial::without_answer(End::Interrupted)
            } else {
                Trial::expired(limit)
            });
        }
        Trial::of_run(&run, target)
    }

    /// The time limit of the next trial. A trial that has to repeat all imports has the first trial's limit.
    fn limit(&self, set: &Set, has_imports: bool) -> Duration {
        let (least, multiple) = LATER_LIMIT;
        let least = match has_imports {
            true => FIRST_LIMIT,
            false if set.has(Technique::Compile) => COMPILE_LIMIT,
            false if set.needs_ranks() => RANKS_LIMIT,
            false => least,
        };
        let usual = self.first.map_or(FIRST_LIMIT, |first| least.max(first * multiple));
        self.program.timeout.unwrap_or(usual)
    }

    /// Whether a fork can run a trial with this set; no fork can run a set that needs several ranks.
    fn is_served(&self, set: &Set, how: How) -> bool {
        self.server.is_there() && !(how == How::Itself && set.needs_ranks())
    }

    fn wanted(&self, set: &Set, how: How, is_alone: bool) -> Wanted {
        let is_limited = matches!(how, How::Limited | How::Batch(Rows { to: 1.., .. }));
        Wanted {
            set: serde_json::from_str(&wish(set, how)).unwrap_or_default(),
            limit: self.limit(set, false),
            limit_bytes: is_limited.then(|| self.charged.capacity_bytes()),
            memory_bytes: (how == How::Itself).then_some(self.target.total_bytes),
            records: how == How::Itself && self.program.records,
            settles: self.settles(how),
            stops: self.stops(how),
            looks: set.is_empty() && how == How::Ample,
            ranks: if set.needs_ranks() { self.program.devices } else { 1 },
            is_alone,
        }
    }

    /// Asks the serving process; `None` if it cannot answer.
    fn served(&mut self, set: &Set, how: How) -> Result<Option<Trial>, Failure> {
        if !self.is_served(set, how) {
            return Ok(None);
        }
        let is_first = self.server.is_new();
        let mut is_alone = is_first;
        loop {
            let wanted = self.wanted(set, how, is_alone);
            let number = match self.server.known(set, how) {
                Some(number) => number,
                None => self.server.ask(set, how, &wanted)?,
            };
            // Requests that were made before this one come first.
            let limit = wanted.limit * self.server.waiting();
            let grace = if is_first { SERVING } else { GRACE };
            match self.server.answer(number, limit, grace, self.left(how))? {
                Answer::Ended { ended, reports, shared, beside } => {
                    let target = if how == How::Itself { self.target } else { self.ample };
                    let job = Job::read(ended, &reports, &shared).map_err(|why| unreadable(&why))?;
                    let trial = Trial::of(&job, target)?;
                    // Two concurrent trials may disturb each other, for example through the same port or
                    // file.
                    if !matches!(trial.end, End::Failed(_) | End::Unknown(_)) || !beside || is_alone {
                        return Ok(Some(trial));
                    }
                    is_alone = true;
                }
                Answer::Abandoned => {
                    self.is_late = true;
                    return Ok(Some(Trial::without_answer(End::Interrupted)));
                }
                Answer::Expired | Answer::Late => return Ok(Some(Trial::expired(wanted.limit))),
                Answer::Unable | Answer::Gone(None) => return Ok(None),
                Answer::Gone(Some(run)) => {
                    let trial = Trial::of_run(&run, self.ample)?;
                    if trial.end == End::Interrupted {
                        return Ok(Some(trial));
                    }
                    // The server never served a request, so its own run counts as the trial without techniques.
                    if is_first {
                        self.unserved = Some(trial);
                    }
                    return Ok(None);
                }
            }
        }
    }
}
