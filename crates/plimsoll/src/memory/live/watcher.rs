//! The client: [`Watcher`], and the list of programs that can be watched: [`running`].

use std::fs;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::process::{Pid, test_kill_process};
use serde::{Deserialize, Serialize};

use super::{SCHEMA, Sample, folder, growth};

/// The timeout for an answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// The timeout for a snapshot, which may be hundreds of megabytes.
const SNAPSHOT_PATIENCE: Duration = Duration::from_secs(120);
/// The line that asks for a snapshot.
pub(super) const SNAPSHOT: &[u8] = b"snapshot";
/// The schema version of the answer to it.
pub(super) const SNAPSHOT_SCHEMA: &str = "plimsoll.snapshot/1";
/// The maximum size of an answer, far above the usual size.
const MOST_BYTES: u64 = 1 << 20;

/// The answer to a request for a snapshot.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Written {
    pub(super) schema: String,
    pub(super) path: Option<PathBuf>,
    pub(super) error: Option<String>,
}

/// The ids of this user's processes that can be watched. Sockets of dead processes are removed.
///
/// # Errors
/// If an existing folder cannot be read.
pub fn running() -> io::Result<Vec<u32>> {
    let mut pids = Vec::new();
    for folder in folder::candidates() {
        if folder::check(&folder).is_err() {
            continue; // Usually it does not exist; another user's folder is ignored.
        }
        for entry in fs::read_dir(&folder).map_err(|why| folder::at(&folder, &why))? {
            let path = entry.map_err(|why| folder::at(&folder, &why))?.path();
            let Some(pid) = pid_of(&path) else { continue };
            match UnixStream::connect(&path) {
                Ok(_) => pids.push(pid),
                // A process that is starting also refuses connections.
                Err(why) if why.kind() == ErrorKind::ConnectionRefused && is_dead(pid) => {
                    let _ = fs::remove_file(&path);
                }
                Err(_) => {}
            }
        }
    }
    pids.sort_unstable();
    pids.dedup();
    Ok(pids)
}

fn pid_of(path: &Path) -> Option<u32> {
    let name = path.file_name()?.to_str()?;
    name.strip_suffix(".sock")?.parse().ok()
}

fn is_dead(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_none_or(|pid| test_kill_process(pid) == Err(rustix::io::Errno::SRCH))
}

/// A connection to a program that [`serve`](super::serve)s.
#[derive(Debug)]
pub struct Watcher {
    socket: BufReader<UnixStream>,
    /// The part of an answer received so far.
    line: Vec<u8>,
}

impl Watcher {
    /// Connects to a process.
    ///
    /// # Errors
    /// `NotFound` if no process with this id serves; other I/O errors.
    pub fn attach(pid: u32) -> io::Result<Watcher> {
        let paths = folder::candidates().into_iter().filter(|folder| folder::check(folder).is_ok());
        for path in paths.map(|folder| folder.join(format!("{pid}.sock"))) {
            match Watcher::connect(&path) {
                Err(why) if matches!(why.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {}
                connected => return connected.map_err(|why| folder::at(&path, &why)),
            }
        }
        Err(io::Error::new(ErrorKind::NotFound, "there is no such process, or it cannot be watched"))
    }

    pub(super) fn connect(path: &Path) -> io::Result<Watcher> {
        let socket = UnixStream::connect(path)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.set_write_timeout(Some(PATIENCE))?;
        Ok(Watcher { socket: BufReader::new(socket), line: Vec::new() })
    }

    /// Requests a sample; None if the process has ended or closed the connection.
    ///
    /// # Errors
    /// `TimedOut` if it does not answer (the caller may retry); `InvalidData` if the answer is not a
    /// sample of this version; other I/O errors.
    pub fn sample(&mut self) -> io::Result<Option<Sample>> {
        if !self.answered(b"\n")? {
            return Ok(None);
        }
        let line = std::mem::take(&mut self.line);
        let invalid = |message: String| io::Error::new(ErrorKind::InvalidData, message);
        let sample: Sample =
            serde_json::from_slice(&line).map_err(|why| invalid(format!("not a sample: {why}")))?;
        match sample.schema.as_str() {
            // A PyTorch program leaves computing the growth to its clients.
            SCHEMA if sample.growth_bytes_per_step.is_none() => {
                let growth = growth(&sample.step_levels, sample.steps);
                Ok(Some(Sample { growth_bytes_per_step: growth, ..sample }))
            }
            SCHEMA => Ok(Some(sample)),
            other => Err(invalid(format!("the process uses schema {other}, this program {SCHEMA}"))),
        }
    }

    /// Asks the process to write a memory snapshot now. Returns the file's path, for `plimsoll explain`.
    ///
    /// # Errors
    /// `NotFound` if the process has ended, `Unsupported` if it cannot write snapshots, `TimedOut` if it does not
    /// answer, or an error that it reports.
    pub fn snapshot(&mut self) -> io::Result<PathBuf> {
        self.socket.get_ref().set_read_timeout(Some(SNAPSHOT_PATIENCE))?;
        let is_answered = self.answered(&[SNAPSHOT, b"\n"].concat());
        self.socket.get_ref().set_read_timeout(Some(PATIENCE))?;
        if !is_answered? {
            return Err(io::Error::new(ErrorKind::NotFound, "the process has ended"));
        }
        let line = std::mem::take(&mut self.line);
        let unsupported = || {
            let message = "the process answers with a sample: its version of plimsoll cannot write snapshots";
            io::Error::new(ErrorKind::Unsupported, message)
        };
        let answer: Written = serde_json::from_slice(&line).map_err(|_| unsupported())?;
        match (answer.schema.as_str(), answer.path) {
            (SNAPSHOT_SCHEMA, Some(path)) => Ok(path),
            (SNAPSHOT_SCHEMA, None) => Err(io::Error::other(answer.error.unwrap_or_default())),
            _ => Err(unsupported()),
        }
    }

    /// Sends a line and waits for the answer. Returns false if the process has ended or closed the connection.
    fn answered(&mut self, line: &[u8]) -> io::Result<bool> {
        self.ask(line).or_else(|why| match why.kind() {
            ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => Ok(false),
            ErrorKind::WouldBlock => Err(ErrorKind::TimedOut.into()),
            _ => Err(why),
        })
    }

    /// Sends a line and waits for the answer. Returns whether the answer is complete.
    fn ask(&mut self, line: &[u8]) -> io::Result<bool> {
        self.socket.get_mut().write_all(line)?;
        let left_bytes = MOST_BYTES - self.line.len() as u64;
        self.socket.by_ref().take(left_bytes).read_until(b'\n', &mut self.line)?;
        Ok(self.line.ends_with(b"\n"))
    }
}
