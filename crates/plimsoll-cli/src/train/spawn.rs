//! `--ranks N`: starts this program N times, as torchrun would, and ends when all of them have ended.

use std::io::{self, BufRead, BufReader};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use plimsoll::dist::store::Server;
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use crate::exit::{Answer, Exit, Failure};
use crate::output;

/// How often to check the processes.
const LOOK: Duration = Duration::from_millis(10);
/// How long the other ranks may take to end after one has failed. They notice the failure themselves.
const GRACE: Duration = Duration::from_secs(5);

/// A process that was started.
struct Rank {
    number: usize,
    child: Child,
    stderr: Option<JoinHandle<()>>,
}

/// Runs all ranks. Returns the exit code of the first rank that failed by itself. Rank 0 writes the result to stdout.
pub(super) fn run(ranks: u16) -> Result<Answer, Failure> {
    let failed = |why: io::Error| Failure::new(Exit::Unreadable, format!("--ranks {ranks}: {why}"));
    let store = Server::bind("127.0.0.1:0").map_err(failed)?;
    let signal = Arc::new(AtomicUsize::new(0));
    for number in [SIGINT, SIGTERM, SIGHUP] {
        flag::register_usize(number, Arc::clone(&signal), number as usize).map_err(failed)?;
    }
    let mut running = Vec::new();
    for number in 0..usize::from(ranks) {
        match start(number, usize::from(ranks), store.address().port()) {
            Ok(rank) => running.push(rank),
            Err(why) => {
                running.iter_mut().for_each(Rank::kill);
                return Err(failed(why));
            }
        }
    }
    Ok(Answer { text: String::new(), exit: watch(running, &signal) })
}

/// Starts one rank with torchrun's variables.
fn start(number: usize, ranks: usize, port: u16) -> io::Result<Rank> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(std::env::args_os().skip(1)).stdin(Stdio::null()).stderr(Stdio::piped());
    command.stdout(if number == 0 { Stdio::inherit() } else { Stdio::null() });
    // Ctrl-C reaches only this process, which passes it on once.
    command.process_group(0);
    for (name, value) in
        [("RANK", number), ("LOCAL_RANK", number), ("WORLD_SIZE", ranks), ("LOCAL_WORLD_SIZE", ranks)]
    {
        command.env(name, value.to_string());
    }
    command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
    command.env("TORCHELASTIC_RUN_ID", format!("plimsoll-{}", std::process::id()));
    command.env("TORCHELASTIC_RESTART_COUNT", "0").env("TORCHELASTIC_USE_AGENT_STORE", "True");
    // The ranks share the processors. Results do not depend on the number of threads.
    if std::env::var_os("RAYON_NUM_THREADS").is_none() {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        command.env("RAYON_NUM_THREADS", (processors / ranks).max(1).to_string());
    }
    let mut child = command.spawn()?;
    let stderr = child.stderr.take().map(|stderr| thread::spawn(move || forward(number, stderr)));
    Ok(Rank { number, child, stderr })
}

/// Writes a rank's stderr line by line, each with the rank's number.
fn forward(number: usize, stderr: ChildStderr) {
    for line in BufReader::new(stderr).split(b'\n').map_while(Result::ok) {
        output::progress(&format!("[rank {number}] {}", String::from_utf8_lossy(&line)));
    }
}

impl Rank {
    fn kill(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits for all ranks, and passes signals on.
fn watch(mut running: Vec<Rank>, signal: &AtomicUsize) -> Exit {
    let mut first: Option<(usize, ExitStatus, Instant)> = None;
    while !running.is_empty() {
        pass_on(signal.swap(0, Ordering::SeqCst), &running);
        let mut ended = Vec::new();
        for mut rank in std::mem::take(&mut running) {
            match rank.child.try_wait() {
                Ok(None) => running.push(rank),
                Ok(Some(status)) => ended.push((rank, status)),
                // The wait fails only if the process is no longer our child.
                Err(_) => ended.push((rank, ExitStatus::from_raw(0))),
            }
        }
        for (mut rank, status) in ended {
            if let Some(stderr) = rank.stderr.take() {
                // The thread returns nothing.
                let _ = stderr.join();
            }
            let is_because_of_another = |status: ExitStatus| status.code() == Some(Exit::RankLost as i32);
            match first {
                None if !status.success() => first = Some((rank.number, status, Instant::now())),
                Some((_, earlier, since)) if !status.success() && is_because_of_another(earlier) => {
                    first = Some((rank.number, status, since));
                }
                _ => {}
            }
        }
        if first.is_some_and(|(.., since)| since.elapsed() > GRACE) {
            running.iter_mut().for_each(Rank::kill);
        }
        thread::sleep(LOOK);
    }
    first.map_or(Exit::Done, |(number, status, _)| exit_of(number, status))
}

fn pass_on(signal: usize, running: &[Rank]) {
    let signal = match signal as i32 {
        SIGINT => Signal::INT,
        SIGTERM => Signal::TERM,
        SIGHUP => Signal::HUP,
        _ => return,
    };
    for rank in running {
        // A rank that has just ended needs no signal.
        let _ = kill_process(Pid::from_child(&rank.child), signal);
    }
}

/// The exit code of the rank that failed first. A rank that was ended by a signal has no exit code.
fn exit_of(number: usize, status: ExitStatus) -> Exit {
    if let Some(signal) = status.signal() {
        let message = format!("rank {number} was ended by signal {signal}");
        output::failure(&Failure::new(Exit::RankLost, message), None);
        return Exit::RankLost;
    }
    status.code().and_then(Exit::of_code).unwrap_or(Exit::RankLost)
}
