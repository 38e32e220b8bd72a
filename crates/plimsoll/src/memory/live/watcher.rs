//! The end outside the program: [`Watcher`], and which programs can be watched: [`running`].

use std::fs;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use rustix::process::{Pid, test_kill_process};

use super::{SCHEMA, Sample, folder};

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// What an answer may have: many times what one has.
const MOST_BYTES: u64 = 1 << 20;

/// The processes of this user that can be watched, by their numbers. Sockets that dead ones left are taken away.
///
/// # Errors
/// A folder that is there and cannot be read.
pub fn running() -> io::Result<Vec<u32>> {
    let mut pids = Vec::new();
    for folder in folder::candidates() {
        if folder::check(&folder).is_err() {
            continue; // Most likely not there; one that is not the user's own has nothing to say here.
        }
        for entry in fs::read_dir(&folder).map_err(|why| folder::at(&folder, &why))? {
            let path = entry.map_err(|why| folder::at(&folder, &why))?.path();
            let Some(pid) = pid_of(&path) else { continue };
            match UnixStream::connect(&path) {
                Ok(_) => pids.push(pid),
                // One that is being born refuses, too.
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
    /// What has come of an answer.
    line: Vec<u8>,
}

impl Watcher {
    /// Connects to a process.
    ///
    /// # Errors
    /// `NotFound` if no process of that number serves; else the system's.
    pub fn attach(pid: u32) -> io::Result<Watcher> {
        let paths = folder::candidates().into_iter().filter(|folder| folder::check(folder).is_ok());
        for path in paths.map(|folder| folder.join(format!("{pid}.sock"))) {
            match Watcher::connect(&path) {
                Err(why) if matches!(why.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused) => {}
                connected => return connected.map_err(|why| folder::at(&path, &why)),
            }
        }
        Err(io::Error::new(ErrorKind::NotFound, format!("no process {pid} that can be watched")))
    }

    pub(super) fn connect(path: &Path) -> io::Result<Watcher> {
        let socket = UnixStream::connect(path)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.set_write_timeout(Some(PATIENCE))?;
        Ok(Watcher { socket: BufReader::new(socket), line: Vec::new() })
    }

    /// Asks for a sample; none if the process has ended, or has hung up.
    ///
    /// # Errors
    /// `TimedOut` if it does not answer, after which one may ask again; `InvalidData` if it does not answer with a
    /// sample of this version; else the system's.
    pub fn sample(&mut self) -> io::Result<Option<Sample>> {
        match self.ask() {
            Ok(true) => {}
            Ok(false) => return Ok(None),
            Err(why) => {
                return match why.kind() {
                    ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => Ok(None),
                    ErrorKind::WouldBlock => Err(ErrorKind::TimedOut.into()),
                    _ => Err(why),
                };
            }
        }
        let line = std::mem::take(&mut self.line);
        let invalid = |message: String| io::Error::new(ErrorKind::InvalidData, message);
        let sample: Sample =
            serde_json::from_slice(&line).map_err(|why| invalid(format!("not a sample: {why}")))?;
        match sample.schema.as_str() {
            SCHEMA => Ok(Some(sample)),
            other => Err(invalid(format!("the process speaks {other}, this program {SCHEMA}"))),
        }
    }

    /// Sends a line, and waits for one: whether it came whole.
    fn ask(&mut self) -> io::Result<bool> {
        self.socket.get_mut().write_all(b"\n")?;
        let room = MOST_BYTES - self.line.len() as u64;
        self.socket.by_ref().take(room).read_until(b'\n', &mut self.line)?;
        Ok(self.line.ends_with(b"\n"))
    }
}
