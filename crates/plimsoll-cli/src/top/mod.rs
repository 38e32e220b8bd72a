//! `plimsoll top`: a running program's memory, as it changes. `screen.rs` has the terminal and the keys,
//! `view.rs` and `gauge.rs` what is drawn, `text.rs` the same for where there is no terminal.

mod gauge;
mod screen;
mod text;
mod view;

use std::io::{self, ErrorKind, IsTerminal};
use std::thread;
use std::time::Duration;

use clap::Args;
use plimsoll::memory::live::{self, Sample, Watcher};

use crate::exit::{Answer, Exit, Failure};
use crate::output;

#[derive(Args)]
pub(crate) struct TopArgs {
    /// The process to watch [default: the only one]
    #[arg(value_name = "PID")]
    pid: Option<u32>,
    /// Seconds between samples
    #[arg(long, value_name = "SECONDS", default_value = "0.5", value_parser = seconds)]
    interval: Duration,
    /// Print sizes in bytes, not in MiB and GiB
    #[arg(long)]
    bytes: bool,
    /// Print one sample as a line of JSON
    #[arg(long)]
    pub(crate) json: bool,
    /// How many samples to print, one per line
    #[arg(long, value_name = "N", default_value_t = 1, requires = "json",
          value_parser = clap::value_parser!(u64).range(1..))]
    samples: u64,
}

fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.05..=60.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("an interval is a number of seconds from 0.05 to 60".to_owned()),
    }
}

/// Shows the process, until it ends or somebody has seen enough.
pub(crate) fn run(args: &TopArgs) -> Result<Answer, Failure> {
    let pid = args.pid.map_or_else(the_only_one, Ok)?;
    let mut watcher = Watcher::attach(pid).map_err(|why| cannot_attach(pid, &why))?;
    let first = watcher.sample().map_err(|why| unreadable(&why))?.ok_or_else(|| hung_up(pid))?;
    if args.json {
        return lines(&mut watcher, first, args).map(|()| Answer::default());
    }
    if !io::stdout().is_terminal() {
        return Ok(text::render(&first, args.bytes).into());
    }
    match screen::watch(watcher, first, args.interval, args.bytes).map_err(|why| unreadable(&why))? {
        None => Ok(Answer::default()),
        Some(last) => {
            over(pid);
            Ok(text::render(&last, args.bytes).into())
        }
    }
}

/// As many lines as were asked for, or until the process ends or nobody reads them.
fn lines(watcher: &mut Watcher, first: Sample, args: &TopArgs) -> Result<(), Failure> {
    let (mut sample, mut left) = (first, args.samples);
    loop {
        let line = serde_json::to_string(&sample).map_err(|why| unreadable(&why.into()))?;
        left -= 1;
        if !output::line(&line)? || left == 0 {
            return Ok(());
        }
        thread::sleep(args.interval);
        match watcher.sample().map_err(|why| unreadable(&why))? {
            Some(next) => sample = next,
            None => {
                over(sample.pid);
                return Ok(());
            }
        }
    }
}

fn the_only_one() -> Result<u32, Failure> {
    match live::running().map_err(|why| unreadable(&why))?[..] {
        [pid] => Ok(pid),
        [] => Err(Failure::new(Exit::Unreadable, format!("no running process can be watched\n{START}"))),
        ref pids => {
            let rows = pids.iter().map(|&pid| format!("\n  plimsoll top {pid:<8} {}", command_of(pid)));
            let message =
                format!("{} processes can be watched; choose one:{}", pids.len(), rows.collect::<String>());
            Err(Failure::new(Exit::Usage, message))
        }
    }
}

const START: &str = "try: start `plimsoll train mnist` in another terminal, or call `plimsoll::memory::live::serve` \
                     in a program of yours";

/// What a process is, where it says so.
fn command_of(pid: u32) -> String {
    let sample = Watcher::attach(pid).and_then(|mut watcher| watcher.sample());
    sample.ok().flatten().map_or_else(|| "(does not answer)".to_owned(), |sample| text::command(&sample))
}

fn cannot_attach(pid: u32, why: &io::Error) -> Failure {
    let message = if why.kind() == ErrorKind::NotFound { format!("{why}\n{START}") } else { why.to_string() };
    Failure::new(Exit::Unreadable, format!("process {pid}: {message}"))
}

fn hung_up(pid: u32) -> Failure {
    Failure::new(
        Exit::Unreadable,
        format!("process {pid} closed the connection: it has ended, or has too many watchers"),
    )
}

fn unreadable(why: &io::Error) -> Failure {
    let message = match why.kind() {
        ErrorKind::TimedOut => "the process does not answer; it may be stopped".to_owned(),
        _ => why.to_string(),
    };
    Failure::new(Exit::Unreadable, message)
}

fn over(pid: u32) {
    output::progress(&format!("process {pid} has ended"));
}
