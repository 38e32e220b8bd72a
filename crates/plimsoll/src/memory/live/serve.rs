//! The server, in the program: [`serve`].
//!
//! One thread accepts connections, and each client has a thread; without clients, nothing runs. A sample takes the allocator's
//! lock once, for a few sums, and is written after the lock is released. So a client that sends garbage or never reads delays
//! only its own thread, which waits at most [`WRITE_FOR`] and then disconnects.

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use plimsoll_tensor::Device;

use super::watcher::{SNAPSHOT, SNAPSHOT_SCHEMA, Written};
use super::{Sample, folder};
use crate::memory::save_snapshot;

/// The maximum number of clients.
const MOST_WATCHERS: usize = 8;
/// The minimum time between samples for a client.
const REST: Duration = Duration::from_millis(50);
/// How often a waiting thread checks whether to stop.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// A client that sends nothing for this time is disconnected,
const IDLE_FOR: Duration = Duration::from_secs(120);
/// and so is one that does not read an answer.
const WRITE_FOR: Duration = Duration::from_secs(1);

/// A running server. Dropping it stops the server and removes the socket.
#[derive(Debug)]
#[must_use = "serving ends when this is dropped"]
pub struct Live {
    path: PathBuf,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Serves samples of the device's memory to this user's processes (`plimsoll top`), until the result is dropped.
/// Without clients it costs a sleeping thread. [`Device::mark_step`] marks the steps.
///
/// ```
/// use plimsoll::memory::live::{self, Watcher};
/// use plimsoll::{Device, SimConfig};
///
/// let device = Device::sim(SimConfig::new(1 << 30));
/// let live = live::serve(&device)?;
/// let sample = Watcher::attach(std::process::id())?.sample()?.expect("this process is still here");
/// assert_eq!(sample.capacity_bytes, 1 << 30);
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// I/O errors, for example if there is no usable folder for the socket, or if the process already serves a device. A
/// program can ignore these errors; then it only lacks the live view.
pub fn serve(device: &Device) -> io::Result<Live> {
    serve_at(device, folder::own()?.join(format!("{}.sock", std::process::id())))
}

fn serve_at(device: &Device, path: PathBuf) -> io::Result<Live> {
    let listener = bind(&path).map_err(|why| folder::at(&path, &why))?;
    let over = Arc::new(AtomicBool::new(false));
    let (device, ending) = (device.clone(), over.clone());
    let accept = move || accept(&listener, &device, &ending);
    match thread::Builder::new().name("plimsoll-live".to_owned()).spawn(accept) {
        Ok(thread) => Ok(Live { path, over, thread: Some(thread) }),
        Err(why) => {
            let _ = fs::remove_file(&path);
            Err(why)
        }
    }
}

/// Listens on the socket. Replaces the socket of a dead process with the same id.
fn bind(path: &Path) -> io::Result<UnixListener> {
    match UnixListener::bind(path) {
        Err(why) if why.kind() == ErrorKind::AddrInUse => {
            if UnixStream::connect(path).is_ok() {
                return Err(io::Error::new(ErrorKind::AddrInUse, "this process already serves a device"));
            }
            fs::remove_file(path)?;
            UnixListener::bind(path)
        }
        bound => bound,
    }
}

impl Live {
    /// The socket's path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        // This wakes the thread, which waits for connections. If the socket file is gone, the thread cannot be woken and keeps
        // sleeping.
        if UnixStream::connect(&self.path).is_ok() {
            let _ = self.thread.take().map(JoinHandle::join);
        }
        let _ = fs::remove_file(&self.path);
    }
}

fn accept(listener: &UnixListener, device: &Device, over: &Arc<AtomicBool>) {
    let watchers = Arc::new(AtomicUsize::new(0));
    for client in listener.incoming() {
        if over.load(Ordering::Relaxed) {
            return;
        }
        let Ok(client) = client else {
            // Probably out of file descriptors: retry later.
            thread::sleep(LOOK_EVERY);
            continue;
        };
        if watchers.load(Ordering::Relaxed) == MOST_WATCHERS {
            continue;
        }
        watchers.fetch_add(1, Ordering::Relaxed);
        let one = ClientGuard(watchers.clone());
        let (device, over) = (device.clone(), over.clone());
        let answer = move || {
            // An error affects only this client.
            let _ = answer(client, &device, &over);
            drop(one);
        };
        // If no thread can be started, the client is disconnected.
        let _ = thread::Builder::new().name("plimsoll-live".to_owned()).spawn(answer);
    }
}

/// Decrements the number of clients when dropped.
struct ClientGuard(Arc<AtomicUsize>);

impl Drop for ClientGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Answers lines with samples. Lines that arrive together get one answer.
fn answer(mut client: UnixStream, device: &Device, over: &AtomicBool) -> io::Result<()> {
    client.set_read_timeout(Some(LOOK_EVERY))?;
    client.set_write_timeout(Some(WRITE_FOR))?;
    let (mut asked, mut chunk) = (Instant::now(), [0; 4096]);
    while !over.load(Ordering::Relaxed) && asked.elapsed() < IDLE_FOR {
        match client.read(&mut chunk) {
            Ok(0) => break,
            Ok(length) if chunk[..length].contains(&b'\n') => {
                asked = Instant::now();
                let mut line = match chunk[..length].trim_ascii() {
                    SNAPSHOT => serde_json::to_vec(&written(device))?,
                    _ => serde_json::to_vec(&Sample::of(device))?,
                };
                line.push(b'\n');
                client.write_all(&line)?;
                thread::sleep(REST);
            }
            Ok(_) => thread::sleep(REST),
            Err(why)
                if matches!(
                    why.kind(),
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
                ) => {}
            Err(why) => return Err(why),
        }
    }
    Ok(())
}

/// Writes a snapshot to the working directory, under an unused name.
fn written(device: &Device) -> Written {
    let name = |nth: u32| format!("snapshot-{}-{nth}.pickle", std::process::id());
    let path = std::env::current_dir().map(|folder| {
        let free = (1..).map(|nth| folder.join(name(nth))).find(|path| !path.exists());
        free.unwrap_or_else(|| folder.join(name(0)))
    });
    let saved = path.and_then(|path| save_snapshot(device, &path).map(|_| path));
    let (path, error) = match saved {
        Ok(path) => (Some(path), None),
        Err(why) => (None, Some(why.to_string())),
    };
    Written { schema: SNAPSHOT_SCHEMA.to_owned(), path, error }
}

#[cfg(test)]
mod tests;
