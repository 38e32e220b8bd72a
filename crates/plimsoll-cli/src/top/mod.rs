//! `plimsoll top`: shows a running program's memory as it changes; for a job, all of its ranks on this
//! machine.
//!
//! A file uses only files above it:
//!
//! | file | contents |
//! |---|---|
//! | `text.rs`, `job.rs` | a sample as text, for one process and for a job |
//! | `process.rs`, `watched.rs` | a process; those that are watched: one, or the ranks of a job |
//! | `palette.rs`, `gauge.rs`, `view.rs`, `screen.rs` | the colours, the contents of the screen, the terminal and its keys |
//! | `prometheus.rs`, `http.rs` | the figures for `--prometheus`, and the server |

mod gauge;
mod http;
mod job;
mod palette;
mod process;
mod prometheus;
mod screen;
mod text;
mod view;
mod watched;

use std::io::{self, IsTerminal};
use std::thread;
use std::time::Duration;

use clap::Args;
use plimsoll::memory::live::Sample;
use serde_json::json;

use self::process::{hung_up, over, said, unreadable};
use self::watched::Watched;
use crate::exit::{Answer, Exit, Failure};
use crate::output;

pub(crate) use self::http::beside;
pub(crate) use self::prometheus::{ADDRESS, address};

#[derive(Args)]
pub(crate) struct TopArgs {
    /// The process to watch [default: the only one, or the ranks of the only job]
    #[arg(value_name = "PID")]
    pid: Option<u32>,
    /// Seconds between samples
    #[arg(long, value_name = "SECONDS", default_value = "0.5", value_parser = seconds)]
    interval: Duration,
    /// Print sizes in bytes, not in MiB and GiB
    #[arg(long)]
    bytes: bool,
    /// Make the process write a memory snapshot now, and print the file's name
    #[arg(long)]
    snapshot: bool,
    /// Serve the metrics of all watchable processes to Prometheus [default: 127.0.0.1:9466]
    #[arg(long, value_name = "ADDR", num_args = 0..=1, default_missing_value = ADDRESS, value_parser = address,
          conflicts_with_all = ["snapshot", "json", "pid"])]
    prometheus: Option<std::net::SocketAddr>,
    /// Serve on the socket that is stdin, until this process ends (from `run`)
    #[arg(long, value_name = "PID", hide = true)]
    until: Option<u32>,
    /// Print one sample as a line of JSON
    #[arg(long)]
    json: bool,
    /// How many samples to print, one per line
    #[arg(long, value_name = "N", default_value_t = 1, requires = "json",
          value_parser = clap::value_parser!(u64).range(1..))]
    samples: u64,
}

fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.05..=60.0).contains(&seconds) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("an interval must be from 0.05 to 60 seconds".to_owned()),
    }
}

/// Shows the process, until it ends or the user quits.
pub(crate) fn run(args: &TopArgs) -> Result<Answer, Failure> {
    if let Some(pid) = args.until {
        return http::until(pid).map(|()| Answer::default());
    }
    if let Some(address) = args.prometheus {
        return http::serve(address).map(|()| Answer::default());
    }
    let mut watched = match args.pid {
        Some(pid) => Watched::one(pid)?,
        None => Watched::all()?,
    };
    if args.snapshot {
        return snapshots(&mut watched, args.json);
    }
    let first = watched.samples()?;
    if first.is_empty() {
        return Err(hung_up(watched.pids()[0]));
    }
    if args.json {
        return lines(&mut watched, first, args).map(|()| Answer::default());
    }
    if !io::stdout().is_terminal() {
        return Ok(job::render(&first, args.bytes).into());
    }
    match screen::watch(watched, first, args.interval, args.bytes).map_err(|why| unreadable(&why))? {
        None => Ok(Answer::default()),
        Some(last) => {
            last.iter().for_each(|sample| over(sample.pid));
            Ok(job::render(&last, args.bytes).into())
        }
    }
}

/// The name of each written file, a line each.
fn snapshots(watched: &mut Watched, is_json: bool) -> Result<Answer, Failure> {
    let mut written = Vec::new();
    for (pid, watcher) in watched.each() {
        let path = watcher.snapshot().map_err(|why| {
            Failure::new(Exit::Unreadable, format!("process {pid} wrote no snapshot: {}", said(&why)))
        })?;
        written.push((pid, path));
    }
    let line = |(pid, path): &(u32, std::path::PathBuf)| match is_json {
        true => json!({ "schema": "plimsoll.snapshot/1", "pid": pid, "path": path }).to_string(),
        false => path.display().to_string(),
    };
    Ok(written.iter().map(line).collect::<Vec<_>>().join("\n").into())
}

/// Prints the requested number of samples, a line for each process, or until all processes end or the reader is
/// gone.
fn lines(watched: &mut Watched, first: Vec<Sample>, args: &TopArgs) -> Result<(), Failure> {
    let (mut samples, mut left) = (first, args.samples);
    loop {
        for sample in &samples {
            let line = serde_json::to_string(sample).map_err(|why| unreadable(&why.into()))?;
            if !output::line(&line)? {
                return Ok(());
            }
        }
        left -= 1;
        if left == 0 {
            return Ok(());
        }
        thread::sleep(args.interval);
        let next = watched.samples()?;
        let has_ended = |sample: &&Sample| !next.iter().any(|it| it.pid == sample.pid);
        samples.iter().filter(has_ended).for_each(|sample| over(sample.pid));
        if next.is_empty() {
            return Ok(());
        }
        samples = next;
    }
}
