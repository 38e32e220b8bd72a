//! The end in the program: [`serve`].
//!
//! One thread waits for who connects, and one for each who is connected; while nobody is, nothing runs. A
//! sample takes the allocator's lock once, for a few sums, and is written with no lock held. So a client may send
//! what it likes, or never read: its own thread waits, at most for [`WRITE_FOR`], and hangs up.

use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use plimsoll_tensor::Device;

use super::{Sample, folder};

/// Who watches at once, at most.
const MOST_WATCHERS: usize = 8;
/// Nobody gets samples faster, however often they ask.
const REST: Duration = Duration::from_millis(50);
/// How often a waiting thread looks whether serving is over.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Who asks nothing for so long is hung up on,
const IDLE_FOR: Duration = Duration::from_secs(120);
/// and so is who does not take an answer.
const WRITE_FOR: Duration = Duration::from_secs(1);

/// A device being served. Dropping it ends that, and takes the socket away.
#[derive(Debug)]
#[must_use = "serving ends when this is dropped"]
pub struct Live {
    path: PathBuf,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Shows the device's memory to whoever of this user asks, until the answer is dropped: `plimsoll top`. While
/// nobody asks it costs a sleeping thread; [`Device::mark_step`] tells it the steps.
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
/// The system's, among them that there is no folder for the socket; a process that serves a device already. A
/// program need not mind them: nothing but the view is missing.
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

/// Listens. What a dead process of the same number left behind makes room.
fn bind(path: &Path) -> io::Result<UnixListener> {
    match UnixListener::bind(path) {
        Err(why) if why.kind() == ErrorKind::AddrInUse => {
            if UnixStream::connect(path).is_ok() {
                return Err(io::Error::new(ErrorKind::AddrInUse, "this process serves a device already"));
            }
            fs::remove_file(path)?;
            UnixListener::bind(path)
        }
        bound => bound,
    }
}

impl Live {
    /// The socket.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        // The thread waits for who connects. If the socket is gone, nobody can wake it, and it sleeps on.
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
            // No descriptors left, most likely: later perhaps.
            thread::sleep(LOOK_EVERY);
            continue;
        };
        if watchers.load(Ordering::Relaxed) == MOST_WATCHERS {
            continue;
        }
        watchers.fetch_add(1, Ordering::Relaxed);
        let one = Leaving(watchers.clone());
        let (device, over) = (device.clone(), over.clone());
        let answer = move || {
            // An error is the client's affair.
            let _ = answer(client, &device, &over);
            drop(one);
        };
        // If there is no thread to be had, the client sees that it was hung up on.
        let _ = thread::Builder::new().name("plimsoll-live".to_owned()).spawn(answer);
    }
}

/// Takes a watcher off the count when it goes.
struct Leaving(Arc<AtomicUsize>);

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Answers lines with samples. Lines that come together get one answer.
fn answer(mut client: UnixStream, device: &Device, over: &AtomicBool) -> io::Result<()> {
    client.set_read_timeout(Some(LOOK_EVERY))?;
    client.set_write_timeout(Some(WRITE_FOR))?;
    let (mut asked, mut chunk) = (Instant::now(), [0; 4096]);
    while !over.load(Ordering::Relaxed) && asked.elapsed() < IDLE_FOR {
        match client.read(&mut chunk) {
            Ok(0) => break,
            Ok(length) if chunk[..length].contains(&b'\n') => {
                asked = Instant::now();
                let mut line = serde_json::to_vec(&Sample::of(device))?;
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

#[cfg(test)]
mod tests;
