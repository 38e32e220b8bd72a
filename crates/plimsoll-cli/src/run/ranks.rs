//! `run --devices N`: runs the program once for each GPU, as a rank of a job. `techniques/ranks.py` hides from the
//! program that it is a rank, and connects the ranks.
//!
//! The first rank writes to the terminal, and the job ends when this rank ends. The output of another rank is shown
//! only if that rank fails.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::net::TcpListener;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{available_parallelism, sleep};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::answers::Answers;
use super::ending::end_as;
use crate::exit::{Answer, Exit, Failure};
use crate::guard::Guard;
use crate::output;
use crate::techniques::Set;

/// How long the other ranks may take to exit after one has failed.
const GRACE: Duration = Duration::from_secs(10);

/// The number of lines to show from the output of a failed rank.
const LINES: usize = 20;

/// A rank.
struct Rank {
    child: Child,
    /// The file with the rank's output; `None` for the first rank, which writes to our own streams.
    output: Option<File>,
    status: Option<ExitStatus>,
}

/// Checks that a set can use this many GPUs.
///
/// # Errors
/// If `devices` is 1 and the set has fsdp or tensor-parallel, or if `devices` is more than 1 and the set has neither.
pub(super) fn check(devices: u32, set: Option<&Set>) -> Result<(), Failure> {
    let is_sharded = set.is_some_and(|set| set.needs_ranks());
    let message = match (is_sharded, devices) {
        (true, 1) => "fsdp and tensor-parallel need several GPUs: --devices N, without torchrun",
        (false, 2..) => {
            "--devices starts a rank for each GPU, for --with fsdp or tensor-parallel; a program that uses several GPUs itself needs no --devices"
        }
        _ => return Ok(()),
    };
    Err(Failure::new(Exit::Usage, message))
}

/// Starts the ranks and waits for them. Ends with the status of the first rank, or of the first rank
/// that failed.
///
/// # Errors
/// If the program cannot be started.
pub(super) fn run(
    number: u32,
    mut answers: Option<Answers>,
    command: impl Fn() -> Result<Command, Failure>,
) -> Result<Answer, Failure> {
    let failed = |why: io::Error| Failure::new(Exit::Program, format!("the ranks cannot be started: {why}"));
    // A terminal also sends Ctrl-C to the ranks.
    let (interrupted, ended) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    signal_hook::flag::register(SIGINT, interrupted).map_err(failed)?;
    for signal in [SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&ended)).map_err(failed)?;
    }
    let port = TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr()).map_err(failed)?.port();
    let mark = format!("plimsoll-ranks-{}-{port}.", std::process::id());
    let guard = Guard::of(mark.as_ref());
    let mut ranks = Vec::new();
    for rank in 0..number {
        let mut command = command()?;
        command.env("PLIMSOLL_RANKS_MARK", &mark);
        if let Some(answers) = &answers {
            answers.ask(&mut command);
        }
        let started = started(&mut command, rank, number, port);
        match started {
            Ok(rank) => ranks.push(rank),
            Err(why) => {
                kill(&mut ranks);
                let name = command.get_program().to_string_lossy().into_owned();
                return Err(Failure::new(Exit::Program, format!("{name} cannot be started: {why}")));
            }
        }
    }
    let first = match wait(&mut ranks, &ended, answers.as_mut()).map_err(failed)? {
        Waited::Ended(first) => first,
        Waited::Refused(failure) => {
            kill(&mut ranks);
            return Err(failure);
        }
    };
    // Processes that the program left running are not killed.
    guard.dismiss();
    let status = shown(&mut ranks, first);
    match answers.and_then(|answers| answers.objection_at_end()) {
        Some(failure) if status.success() => Err(failure),
        _ => end_as(status),
    }
}

fn started(command: &mut Command, rank: u32, number: u32, port: u16) -> io::Result<Rank> {
    let (rank_text, world) = (rank.to_string(), number.to_string());
    command.env("RANK", &rank_text).env("LOCAL_RANK", &rank_text);
    command.env("WORLD_SIZE", &world).env("LOCAL_WORLD_SIZE", &world);
    command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string()).env("PLIMSOLL_RANKS", "1");
    if std::env::var_os("OMP_NUM_THREADS").is_none() {
        let cores = available_parallelism().map_or(1, usize::from);
        command.env("OMP_NUM_THREADS", (cores / number as usize).max(1).to_string());
    }
    let output = match rank {
        0 => None,
        _ => {
            let file = tempfile::tempfile()?;
            command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file.try_clone()?);
            Some(file)
        }
    };
    Ok(Rank { child: command.spawn()?, output, status: None })
}

/// How the ranks ended.
enum Waited {
    /// The ranks ended on their own. Contains the index of the first rank that failed.
    Ended(Option<usize>),
    /// The techniques are not applied. Contains the reason.
    Refused(Failure),
}

/// Waits until all ranks have ended. If a rank fails, the other ranks are killed after a grace period.
fn wait(ranks: &mut [Rank], ended: &AtomicBool, mut answers: Option<&mut Answers>) -> io::Result<Waited> {
    let (mut first, mut until) = (None, None::<Instant>);
    loop {
        let mut is_running = false;
        for (place, rank) in ranks.iter_mut().enumerate() {
            if rank.status.is_none() {
                rank.status = rank.child.try_wait()?;
                is_running |= rank.status.is_none();
                if rank.status.is_some_and(|status| !status.success()) && first.is_none() {
                    (first, until) = (Some(place), Some(Instant::now() + GRACE));
                }
            }
        }
        if !is_running {
            return Ok(Waited::Ended(first));
        }
        if let Some(failure) = answers.as_deref_mut().and_then(Answers::objection) {
            return Ok(Waited::Refused(failure));
        }
        if ended.swap(false, Ordering::SeqCst) {
            signal(ranks, Signal::TERM);
            until = Some(Instant::now() + GRACE);
        }
        if until.is_some_and(|until| Instant::now() > until) {
            signal(ranks, Signal::KILL);
        }
        sleep(Duration::from_millis(20));
    }
}

fn signal(ranks: &[Rank], signal: Signal) {
    for rank in ranks.iter().filter(|rank| rank.status.is_none()) {
        // The rank may have ended in the meantime.
        let _ = kill_process(Pid::from_child(&rank.child), signal);
    }
}

fn kill(ranks: &mut [Rank]) {
    for rank in ranks {
        let _ = rank.child.kill();
        let _ = rank.child.wait();
    }
}

/// Returns the exit status of the job. Shows the output of the failed rank, unless that is the first rank.
fn shown(ranks: &mut [Rank], failed: Option<usize>) -> ExitStatus {
    let own = ranks[0].status.unwrap_or_default();
    let Some(place) = failed.filter(|place| *place > 0) else { return own };
    let status = ranks[place].status.unwrap_or_default();
    // If the first rank also failed, it has already printed the reason.
    if own.code().is_some_and(|code| code != 0) {
        return own;
    }
    let mut text = String::new();
    if let Some(file) = &mut ranks[place].output {
        let read = file.rewind().and_then(|()| file.read_to_string(&mut text));
        text = read.map_or_else(|why| why.to_string(), |_| text);
    }
    let lines: Vec<&str> = text.lines().collect();
    let last = lines[lines.len().saturating_sub(LINES)..].join("\n");
    output::progress(&format!("rank {place} failed ({status}); its last lines:\n{last}"));
    status
}
