//! Streaming a device's history to a file, for runs of any length: [`stream_history`].
//!
//! The allocator keeps entries in its ring; a thread takes them every few milliseconds and writes them to the log in frames
//! (format: `plimsoll_trace::log`). So no allocation waits for a disk, and memory use is bounded; entries that do not fit are
//! dropped, counted and reported.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use plimsoll_tensor::Device;
use plimsoll_tensor::history::{Entry, HistoryOptions};
use plimsoll_trace::log::{Facts, Writer};

use super::snapshot::DeviceNames;

/// The size of the ring: more entries than an allocator can make in [`LOOK_EVERY`].
const RING_ENTRIES: usize = 1 << 18;
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// A frame is written after this number of entries,
const FRAME_ENTRIES: usize = 8192;
/// or after this time, which limits how much is lost in a crash.
const FRAME_EVERY: Duration = Duration::from_secs(1);

/// A log being written. Dropping it ends the log; [`HistoryLog::finish`] ends it and returns errors.
#[derive(Debug)]
#[must_use = "the log ends when this is dropped"]
pub struct HistoryLog {
    /// Dropping it stops the thread.
    stop: Option<SyncSender<()>>,
    thread: Option<JoinHandle<io::Result<u64>>>,
}

/// Writes the device's history to a log until the result is dropped. Use it instead of [`record_history`](super::record_history),
/// not together with it: it removes the entries that the other records.
///
/// The log grows by a few bytes for each event, is complete up to the last second if the program crashes, and
/// is read like a snapshot.
///
/// ```
/// use plimsoll::memory;
/// use plimsoll::{Device, SimConfig, Tensor};
///
/// let device = Device::sim(SimConfig::new(1 << 30));
/// let path = std::env::temp_dir().join(format!("plimsoll-log-{}", std::process::id()));
/// let log = memory::stream_history(&device, &path)?;
/// let x = Tensor::zeros(&[1024, 1024], &device)?;
/// assert_eq!(log.finish()?, 2); // segment_alloc, alloc
/// # std::fs::remove_file(&path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// I/O errors, or if the device already has memory allocated, because a log starts with an empty allocator.
pub fn stream_history(device: &Device, path: impl AsRef<Path>) -> io::Result<HistoryLog> {
    if device.memory_reserved() > 0 {
        let message = "the device already has memory: start the log earlier, or empty the cache";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    let facts = Facts {
        config: device.allocator_config(),
        device: device.name().to_owned(),
        capacity_bytes: device.memory_info().total_bytes,
        limit_bytes: device.memory_limit(),
    };
    let writer = Writer::new(File::create(path)?, &facts)?;
    device.record_history(HistoryOptions { max_entries: RING_ENTRIES, ..HistoryOptions::default() });
    let (stop, stopped) = mpsc::sync_channel(0);
    let device = device.clone();
    let thread = thread::Builder::new().name("plimsoll-log".to_owned()).spawn(move || {
        let mut log = Log { writer, device, entries: Vec::new(), lost: 0, written: 0, last: Instant::now() };
        let done = log.follow(&stopped);
        // Also after an error: nobody would take the entries.
        log.device.stop_history();
        done.and_then(|()| log.end())
    })?;
    Ok(HistoryLog { stop: Some(stop), thread: Some(thread) })
}

impl HistoryLog {
    /// Ends the log, and returns its number of entries.
    ///
    /// # Errors
    /// The first I/O error since the log started.
    pub fn finish(mut self) -> io::Result<u64> {
        self.join()
    }

    fn join(&mut self) -> io::Result<u64> {
        drop(self.stop.take());
        let outcome = self.thread.take().map(JoinHandle::join);
        outcome.unwrap_or(Ok(Ok(0))).unwrap_or_else(|_| Err(io::Error::other("the log's thread panicked")))
    }
}

impl Drop for HistoryLog {
    fn drop(&mut self) {
        // Callers that need errors call `finish`.
        let _ = self.join();
    }
}

/// The state of the thread.
struct Log {
    writer: Writer<File>,
    device: Device,
    /// Entries taken from the ring and not yet written.
    entries: Vec<Entry>,
    lost: u64,
    written: u64,
    last: Instant,
}

impl Log {
    /// Writes entries until the log is to end, and takes the last ones.
    fn follow(&mut self, stopped: &Receiver<()>) -> io::Result<()> {
        // Nothing is sent: closing the channel ends the log.
        while stopped.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Timeout) {
            self.look()?;
        }
        self.look()
    }

    fn look(&mut self) -> io::Result<()> {
        let (entries, lost) = self.device.take_history();
        self.lost += lost;
        self.entries.extend(entries);
        let due = self.last.elapsed() >= FRAME_EVERY && !self.entries.is_empty();
        if due || self.entries.len() >= FRAME_ENTRIES { self.write() } else { Ok(()) }
    }

    fn write(&mut self) -> io::Result<()> {
        self.writer.append(&self.entries, self.lost, &DeviceNames(&self.device))?;
        self.written += self.entries.len() as u64;
        self.entries.clear();
        (self.lost, self.last) = (0, Instant::now());
        Ok(())
    }

    fn end(mut self) -> io::Result<u64> {
        self.write()?;
        self.writer.end()?.sync_all()?;
        Ok(self.written)
    }
}
