//! The signals with which a user ends a program: [`Signals`].
//!
//! While the user's program runs, [`Session::supervised`](super::session::Session::supervised) handles them. At any
//! other time, these signals end this program, as they do by default, but the session's folder is removed first.
//! Signals that this program ignored at its start (SIGHUP under `nohup`, SIGINT of a background job) stay ignored.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator;
use signal_hook::low_level::emulate_default_handler;

/// Catches signals until this program ends. Each signal either ends this program, or [`Signals::heard`] returns true.
pub(super) struct Signals {
    heard: Arc<AtomicBool>,
    is_running: Arc<AtomicBool>,
}

impl Signals {
    /// Starts to catch signals, and removes this folder before one of them ends the program.
    ///
    /// # Errors
    /// I/O errors.
    pub(super) fn hear(folder: PathBuf) -> io::Result<Signals> {
        let [heard, is_running] = [false, false].map(|it| Arc::new(AtomicBool::new(it)));
        let signals = Signals { heard: Arc::clone(&heard), is_running: Arc::clone(&is_running) };
        let ignored = ignored(&fs::read_to_string("/proc/self/status")?);
        let wanted =
            [SIGINT, SIGTERM, SIGHUP, SIGQUIT].into_iter().filter(|signal| !ignored.contains(signal));
        let wanted: Vec<i32> = wanted.collect();
        // The flag is registered before the thread's handler, so it is set when the thread wakes up.
        for &signal in &wanted {
            signal_hook::flag::register(signal, Arc::clone(&heard))?;
        }
        let mut arriving = iterator::Signals::new(&wanted)?;
        thread::Builder::new().spawn(move || {
            for signal in arriving.forever() {
                if !is_running.load(Ordering::SeqCst) && heard.swap(false, Ordering::SeqCst) {
                    let _absent = fs::remove_dir_all(&folder);
                    let _ends = emulate_default_handler(signal);
                }
            }
        })?;
        Ok(signals)
    }

    /// Runs work that a signal must not interrupt immediately. Also returns whether a signal arrived meanwhile and was
    /// not handled.
    pub(super) fn during<T>(&self, work: impl FnOnce() -> T) -> (T, bool) {
        self.is_running.store(true, Ordering::SeqCst);
        let done = work();
        // With these two lines in this order, a signal that arrives between them is handled here or by the thread.
        self.is_running.store(false, Ordering::SeqCst);
        (done, self.heard())
    }

    /// Acts as if a signal had arrived, so that the run ends.
    pub(super) fn raise(&self) {
        self.heard.store(true, Ordering::SeqCst);
    }

    /// Whether a signal arrived since the last call.
    pub(super) fn heard(&self) -> bool {
        self.heard.swap(false, Ordering::SeqCst)
    }
}

/// The signals that a process ignores, from its `/proc/N/status`.
fn ignored(status: &str) -> Vec<i32> {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    (1..=64).filter(|signal| mask >> (signal - 1) & 1 == 1).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_process_ignores_is_read_from_its_status() {
        assert_eq!(ignored("Name:\tplimsoll\nSigIgn:\t0000000000001003\nSigCgt:\t4\n"), [SIGHUP, SIGINT, 13]);
        assert_eq!(ignored("Name:\tplimsoll\n"), [0; 0]);
    }
}
