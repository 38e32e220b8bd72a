//! Runs of the same program with several sets of techniques, for `plan`: [`Trials`].
//!
//! One run of the program serves them (`served.rs`). A program that cannot be served, because it starts several processes or never
//! uses CUDA, runs once for each set.
//!
//! The device has far more memory than the GPU, so that peaks are known also where memory would run out; whether a set fits is
//! then a question of the peaks, or of another trial under the GPU's limit, or on the GPU itself.

use std::ffi::OsString;
use std::thread;
use std::time::{Duration, Instant};

use super::PredictArgs;
use super::answer::{Outcome, Verdict};
use super::assume::Assumption;
use super::gpu::{Target, Workspaces};
use super::reads;
use super::report::{Applied, ProcessState, Refusal, Report};
use super::run::{Ended, Run, Session};
pub(crate) use super::served::How;
use super::served::{Answer, GRACE, Server, Wanted};
use super::text;
use crate::bytes;
use crate::contents::Contents;
use crate::exit::{Exit, Failure};
use crate::shown::Shown;
use crate::techniques::Set;

/// Memory of the device for trials without a limit.
const AMPLE_BYTES: u64 = 1 << 39;

/// How long the first trial may take, unless --timeout says otherwise.
const FIRST_LIMIT: Duration = Duration::from_secs(600);

/// How long each later one may take: this, or this multiple of the first one's time if that is more.
const LATER_LIMIT: (Duration, u32) = (Duration::from_secs(30), 10);

/// The least limit of one that compiles the model.
const COMPILE_LIMIT: Duration = Duration::from_secs(300);

/// What the imports may add to the first.
const SERVING: Duration = Duration::from_secs(30);

/// What all trials share.
#[derive(Debug, Clone)]
pub(crate) struct Program {
    pub(crate) command: Vec<OsString>,
    pub(crate) gpu: String,
    pub(crate) cc: Option<String>,
    pub(crate) devices: u32,
    pub(crate) context: u64,
    pub(crate) workspaces: Workspaces,
    pub(crate) steps: u64,
    pub(crate) alloc_conf: Option<String>,
    pub(crate) timeout: Option<Duration>,
    /// Values that lines read from the device.
    pub(crate) assume: Vec<Assumption>,
    /// Whether the run on the GPU itself records what its peak consists of.
    pub(crate) records: bool,
}

/// The result of one set.
#[derive(Debug, Clone)]
pub(crate) struct Trial {
    pub(crate) end: End,
    pub(crate) allocated_bytes: u64,
    pub(crate) reserved_bytes: u64,
    pub(crate) steps: u64,
    /// Requests that ran out of memory, if the program caught each of them and went on to a good end; otherwise 0.
    pub(crate) caught: u64,
    /// How often the allocator gave cached memory back because memory was short.
    pub(crate) retries: u64,
    /// Whether the peak came after the steps, as in an evaluation.
    pub(crate) peaks_later: bool,
    /// Whether torch.compile compiled anything.
    pub(crate) compiles: bool,
    pub(crate) techniques: Vec<Applied>,
    /// Lines where a value of the device decides a size or a branch.
    pub(crate) decided: Vec<reads::Row>,
    /// What the peak consists of, if the run was recorded.
    pub(crate) contents: Option<Contents>,
}

/// How a trial ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum End {
    /// The peaks are known.
    Ran,
    /// Memory ran out: the verdict's sentence.
    RanOut(String),
    /// A technique cannot be applied.
    Refused(Refusal),
    /// The program failed: how.
    Failed(String),
    /// There is no answer: why.
    Unknown(String),
    /// By the user.
    Interrupted,
}

impl Program {
    fn args(&self, set: &Set, variables: Vec<(&'static str, OsString)>) -> PredictArgs {
        PredictArgs {
            gpu: self.gpu.clone(),
            cc: self.cc.clone(),
            devices: self.devices,
            nodes: 1,
            rank: None,
            context: self.context,
            cudnn_workspace: self.workspaces,
            steps: self.steps,
            whole: false,
            assume: Vec::new(),
            alloc_conf: self.alloc_conf.clone(),
            with: (!set.is_empty()).then(|| set.clone()),
            timeout: self.timeout,
            find: None,
            snapshot: None,
            html: None,
            force: false,
            shown: Shown { rows: 10, bytes: false },
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
    /// An unknown name, an invalid compute capability, a device smaller than the context.
    pub(crate) fn target(&self) -> Result<Target, Failure> {
        Target::of(&self.args(&Set::default(), Vec::new()))
    }
}

/// A variable that leaves out the recording of events: the peaks are enough.
fn peaks_only() -> (&'static str, OsString) {
    ("PLIMSOLL_PREDICT_PEAKS_ONLY", "1".into())
}

/// The variable that does not.
fn recorded() -> (&'static str, OsString) {
    (peaks_only().0, OsString::new())
}

/// The variable with which a program goes on after its steps until its reserved bytes no longer grow.
fn settles() -> (&'static str, OsString) {
    ("PLIMSOLL_PREDICT_SETTLES", "1".into())
}

/// The variable with which it ends after its steps, without the code after them.
fn stops() -> (&'static str, OsString) {
    ("PLIMSOLL_PREDICT_STOPS", "1".into())
}

/// Tries sets of techniques on one program.
pub(crate) struct Trials<'scope> {
    program: &'scope Program,
    session: &'scope Session,
    /// The GPU.
    target: &'scope Target,
    /// The same with ample memory.
    ample: &'scope Target,
    server: Server<'scope>,
    /// How long the first trial took.
    first: Option<Duration>,
    is_interrupted: bool,
    /// When trials end, but not those on the GPU itself.
    until: Option<Instant>,
    /// Whether one was ended then.
    is_late: bool,
    /// Whether all go on until their reserved bytes no longer grow, not only those on the GPU itself.
    all_settle: bool,
    /// Whether the code after the steps, such as an evaluation, is left out of trials that are not on the GPU itself: the first one has shown that
    /// it takes less memory than the steps.
    all_stop: bool,
    /// The run that was to serve, if it served nothing: it is the trial without techniques.
    unserved: Option<Trial>,
}

/// Lets the closure try sets.
///
/// # Errors
/// The stand-in is missing; the system's.
pub(crate) fn during<T>(
    program: &Program,
    target: &Target,
    work: impl FnOnce(&mut Trials<'_>) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let session = Session::begin()?;
    let ample = target.with_memory(AMPLE_BYTES.max(2 * target.total_bytes));
    thread::scope(|scope| {
        let (session, ample) = (&session, &ample);
        let server = Server::begin(scope, session, move |folder| {
            let variables = vec![
                peaks_only(),
                ("PLIMSOLL_PLAN_FOLDER", folder.into_os_string()),
                // A fork has none of the threads of a pool.
                ("OMP_NUM_THREADS", "1".into()),
            ];
            // Each trial has a limit of its own.
            let args = PredictArgs { timeout: None, ..program.args(&Set::default(), variables) };
            Run::of(&args, &args.command, ample, session, &program.assume)
        })?;
        let mut trials = Trials {
            program,
            session,
            target,
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

/// A run of its own on the GPU itself.
///
/// # Errors
/// The stand-in is missing; the system's.
pub(crate) fn alone(program: &Program, target: &Target, set: &Set) -> Result<Trial, Failure> {
    let session = Session::begin()?;
    let timeout = program.timeout.unwrap_or(FIRST_LIMIT);
    let variables = vec![peaks_only(), settles()];
    let args = PredictArgs { timeout: Some(timeout), quiet: true, ..program.args(set, variables) };
    let run = Run::of(&args, &args.command, target, &session, &program.assume)?;
    if run.ended == Ended::Expired {
        return Ok(Trial::expired(timeout));
    }
    Trial::of(run.ended, &run.reports, target)
}

pub(super) fn unreadable(why: &std::io::Error) -> Failure {
    Failure::new(Exit::Unreadable, format!("a temporary folder: {why}"))
}

impl Trials<'_> {
    /// The trial of a set.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn of(&mut self, set: &Set, how: How) -> Result<Trial, Failure> {
        if self.is_interrupted {
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
        }
        self.is_interrupted |= trial.end == End::Interrupted && !self.is_late;
        Ok(trial)
    }

    /// Ends trials at this time, a running one as well, but not those on the GPU itself.
    pub(crate) fn end_at(&mut self, until: Option<Instant>) {
        self.until = until;
    }

    /// Lets trials, also of sets that were tried, go on until their reserved bytes no longer grow.
    pub(crate) fn settle_all(&mut self) {
        self.all_settle = true;
        self.unserved = None;
        self.server.forget();
    }

    fn settles(&self, how: How) -> bool {
        how == How::Itself || (self.all_settle && how != How::Counted)
    }

    fn stops(&self, how: How) -> bool {
        how == How::Counted || (self.all_stop && how != How::Itself)
    }

    /// Whether that time came during a trial, whose end is then [`End::Interrupted`].
    pub(crate) fn is_late(&self) -> bool {
        self.is_late
    }

    /// How long such a trial may still take.
    fn left(&self, how: How) -> Duration {
        let until = self.until.filter(|_| how != How::Itself);
        until.map_or(Duration::MAX, |until| until.saturating_duration_since(Instant::now()))
    }

    /// Lets trials begin whose results will be asked for, so that they run beside each other.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn ahead(&mut self, wanted: &[(Set, How)]) -> Result<(), Failure> {
        for (set, how) in wanted {
            if self.is_served(set, *how) && !self.is_interrupted && self.server.known(set, *how).is_none() {
                let wanted = self.wanted(set, *how, false);
                self.server.ask(set, *how, &wanted)?;
            }
        }
        Ok(())
    }

    /// Whether the user ended a trial: no other follows.
    pub(crate) fn is_interrupted(&self) -> bool {
        self.is_interrupted
    }

    /// The trial by a run of its own.
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
        // There is no limit on the allocator of another process.
        let target = if matches!(how, How::Limited | How::Itself) { self.target } else { self.ample };
        let is_last = how == How::Itself;
        let mut variables = vec![if is_last && self.program.records { recorded() } else { peaks_only() }];
        variables.extend(self.settles(how).then(settles));
        variables.extend(self.stops(how).then(stops));
        if how == How::Counted {
            variables.push(("PLIMSOLL_WITH", set.counted().into()));
        }
        let (limit, left) = (self.limit(set, is_last), self.left(how));
        let args = PredictArgs {
            timeout: Some(limit.min(left)),
            quiet: self.first.is_some(),
            ..self.program.args(set, variables)
        };
        let run = Run::of(&args, &args.command, target, self.session, &self.program.assume)?;
        if run.ended == Ended::Expired {
            self.is_late |= left < limit;
            return Ok(if left < limit {
                Trial::without_answer(End::Interrupted)
            } else {
                Trial::expired(limit)
            });
        }
        Trial::of(run.ended, &run.reports, target)
    }

    /// How long the next trial may take; one that begins with the imports has the first trial's limit.
    fn limit(&self, set: &Set, has_imports: bool) -> Duration {
        let (least, multiple) = LATER_LIMIT;
        let least = match has_imports {
            true => FIRST_LIMIT,
            false if set.has("compile") => COMPILE_LIMIT,
            false => least,
        };
        let usual = self.first.map_or(FIRST_LIMIT, |first| least.max(first * multiple));
        self.program.timeout.unwrap_or(usual)
    }

    /// Whether a fork shows it: not several ranks.
    fn is_served(&self, set: &Set, how: How) -> bool {
        self.server.is_there() && !(how == How::Itself && set.has("fsdp"))
    }

    fn wanted(&self, set: &Set, how: How, is_alone: bool) -> Wanted {
        let text = if how == How::Counted { set.counted() } else { set.json() };
        Wanted {
            set: serde_json::from_str(&text).unwrap_or_default(),
            limit: self.limit(set, false),
            limit_bytes: (how == How::Limited).then(|| self.target.capacity_bytes()),
            memory_bytes: (how == How::Itself).then_some(self.target.total_bytes),
            records: how == How::Itself && self.program.records,
            settles: self.settles(how),
            stops: self.stops(how),
            ranks: if set.has("fsdp") { self.program.devices } else { 1 },
            is_alone,
        }
    }

    /// Lets the serving process answer; `None` if it cannot.
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
            // Those that were asked for before it come first.
            let most = wanted.limit * self.server.waiting() + if is_first { SERVING } else { GRACE };
            match self.server.answer(number, most, self.left(how))? {
                Answer::Ended { ended, reports, shared, beside } => {
                    let target = if how == How::Itself { self.target } else { self.ample };
                    let reports = Report::all(&reports, &shared).map_err(|why| unreadable(&why))?;
                    let trial = Trial::of(ended, &reports, target)?;
                    // Two at once may be in each other's way: the same port, the same file.
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
                    let trial = Trial::of(run.ended, &run.reports, self.ample)?;
                    if trial.end == End::Interrupted {
                        return Ok(Some(trial));
                    }
                    // It never served: its own run is the trial without techniques.
                    if is_first {
                        self.unserved = Some(trial);
                    }
                    return Ok(None);
                }
            }
        }
    }
}

impl Outcome {
    /// The techniques of `--with` in the process that decides; in any, if none does.
    pub(super) fn techniques(&self) -> &[Applied] {
        let judged = self.judged.as_ref().map(|judged| &judged.report);
        judged.or(self.reports.first()).map_or(&[], |report| &report.techniques)
    }
}

impl Trial {
    pub(crate) fn without_answer(end: End) -> Trial {
        Trial {
            end,
            allocated_bytes: 0,
            reserved_bytes: 0,
            steps: 0,
            caught: 0,
            retries: 0,
            peaks_later: false,
            compiles: false,
            techniques: Vec::new(),
            decided: Vec::new(),
            contents: None,
        }
    }

    /// The trial was stopped after this time.
    fn expired(limit: Duration) -> Trial {
        let limit = limit.as_secs_f64();
        let why = format!(
            "stopped after {limit:.0} s (--timeout changes this limit; a loop that waits for a value of the device may never end here)"
        );
        Trial::without_answer(End::Unknown(why))
    }

    fn of(ended: Ended, reports: &[Report], target: &Target) -> Result<Trial, Failure> {
        let outcome = Outcome::of(ended, reports, target)?;
        let said = text::verdict(&outcome, target, |bytes| bytes::shown(bytes, false));
        let peaks = outcome.judged.as_ref().map(|judged| judged.peaks);
        let end = match &outcome.verdict {
            _ if ended == Ended::Interrupted => End::Interrupted,
            Verdict::Fits { .. } => End::Ran,
            Verdict::RunsOut(_) => End::RanOut(said),
            Verdict::Refused(refusal) => End::Refused(refusal.clone()),
            Verdict::Failed { how, .. } => End::Failed(how.clone()),
            // Memory that ran out without a recording has no line.
            Verdict::Unknown(why) if reports.iter().any(|report| report.failures > 0) => {
                End::RanOut(why.clone())
            }
            Verdict::Unknown(why) => End::Unknown(why.clone()),
        };
        let analysis = outcome.judged.as_ref().and_then(|judged| judged.analysis.as_ref());
        Ok(Trial {
            end,
            allocated_bytes: peaks.map_or(0, |peaks| peaks.allocated_bytes),
            reserved_bytes: peaks.map_or(0, |peaks| peaks.together_bytes.unwrap_or(peaks.reserved_bytes)),
            steps: outcome.judged.as_ref().map_or(0, |judged| judged.report.steps),
            caught: caught(ended, reports),
            retries: reports.iter().map(|report| report.retries).sum(),
            peaks_later: outcome.judged.as_ref().is_some_and(|judged| judged.report.peaks_later()),
            compiles: reports.iter().any(|report| report.compiles),
            techniques: outcome.techniques().to_vec(),
            decided: reads::rows(reports),
            contents: analysis.map(|analysis| Contents::of(&analysis.explained)),
        })
    }

    /// Whether the program caught running out of memory in this trial and then did what it did in another one with more memory:
    /// steps, if it has any.
    pub(crate) fn goes_on(&self, ample: &Trial) -> bool {
        self.caught > 0 && (self.steps > 0 || ample.steps == 0)
    }

    /// What a technique did.
    pub(crate) fn technique(&self, name: &str) -> Option<&Applied> {
        self.techniques.iter().find(|it| it.name == name)
    }
}

/// Requests that ran out of memory in a run that ended well all the same: the program caught them, and a step followed, unless
/// it counts no steps.
fn caught(ended: Ended, reports: &[Report]) -> u64 {
    let went_on = |report: &Report| {
        let is_well =
            matches!(report.state, ProcessState::Stopped | ProcessState::Ended) && report.error.is_none();
        is_well && (report.steps >= report.failed_step || report.steps == 0)
    };
    if ended != Ended::Well || !reports.iter().all(went_on) {
        return 0;
    }
    reports.iter().map(|report| report.failures).sum()
}
