//! Messages between ranks through files, in the folder through which they share the devices (`share.rs`).
//!
//! A rank counts its calls on a communicator, and publishes with each the known values that it sends
//! (`memory/recent.rs`). A receiver that reads them on the host waits for the sender's call, as it would with a real
//! device; a collective waits only for values that it passes on. Each sender, or pair of sender and receiver, has these
//! files:
//!
//! ```text
//! SENDER[-RECEIVER]         three numbers: process ID, start time, number of calls
//! SENDER[-RECEIVER].CALL    the values of this call, where they are known
//! ```

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::lock::locked;
use crate::share;

/// The total time to wait for ranks that do not arrive.
const PATIENCE: Duration = Duration::from_secs(30);
/// The shortest and the longest polling interval.
const PAUSES: [Duration; 2] = [Duration::from_micros(200), Duration::from_millis(5)];

/// Senders that did not arrive: each is waited for only once.
static MISSING: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// The deadline of all current waits.
pub(crate) fn deadline() -> Instant {
    Instant::now() + PATIENCE
}

/// A communicator's folder.
#[derive(Debug, Clone)]
pub(crate) struct Exchange {
    folder: PathBuf,
}

/// A rank's message with one of its calls.
#[derive(Debug, Clone)]
pub(crate) struct Message {
    sender: PathBuf,
    call: u64,
}

impl Exchange {
    /// The folder of a communicator of several processes, under the name that they agree on.
    pub(crate) fn named(name: &str) -> Option<Exchange> {
        let folder = share::folder()?.join(name);
        fs::create_dir_all(&folder).ok()?;
        Some(Exchange { folder })
    }

    /// The folder of a part of the communicator.
    pub(crate) fn part(&self, name: &str) -> Option<Exchange> {
        Exchange::named(&format!("{}-{name}", self.folder.file_name()?.to_str()?))
    }

    /// This rank's message to all others with this call.
    pub(crate) fn message(&self, rank: u32, call: u64) -> Message {
        Message { sender: self.folder.join(rank.to_string()), call }
    }

    /// This rank's message to one other rank.
    pub(crate) fn message_to(&self, rank: u32, receiver: u32, call: u64) -> Message {
        Message { sender: self.folder.join(format!("{rank}-{receiver}")), call }
    }
}

impl Message {
    /// Sends the message.
    pub(crate) fn send(&self, known: Option<&[u8]>) {
        // If the launcher deleted the folder, the run is over and nobody reads.
        let _over = self.write(known);
    }

    fn write(&self, known: Option<&[u8]>) -> io::Result<()> {
        if let Some(bytes) = known {
            fs::write(self.values(), bytes)?;
        }
        let [number, began] = share::this().unwrap_or_default();
        let row = [number, began, self.call + 1].map(u64::to_ne_bytes);
        // The rename is atomic: a reader sees the old count or the new one.
        let new = self.sender.with_extension("new");
        fs::write(&new, row.as_flattened())?;
        fs::rename(new, &self.sender)
    }

    fn values(&self) -> PathBuf {
        let mut path = self.sender.clone().into_os_string();
        path.push(format!(".{}", self.call));
        path.into()
    }

    /// Waits until the message is sent; returns whether it was.
    pub(crate) fn wait(&self, until: Instant) -> bool {
        let is_missing = locked(&MISSING).contains(&self.sender);
        let [mut pause, longest] = PAUSES;
        loop {
            match sender(&self.sender) {
                Some((_, calls)) if calls > self.call => return true,
                Some((process, _)) if !share::is_alive(process) => return false,
                _ if is_missing => return false,
                _ if Instant::now() >= until => {
                    locked(&MISSING).insert(self.sender.clone());
                    return false;
                }
                _ => sleep(pause),
            }
            pause = longest.min(2 * pause);
        }
    }

    /// Waits for the message; returns its values if they are known.
    pub(crate) fn read(&self, until: Instant) -> Option<Vec<u8>> {
        if self.wait(until) { fs::read(self.values()).ok() } else { None }
    }
}

/// The sender, and its number of calls.
fn sender(path: &Path) -> Option<(share::Process, u64)> {
    let row = fs::read(path).ok()?;
    let (row, _) = row.as_chunks::<8>();
    let &[number, began, calls] = row else { return None };
    Some(([number, began].map(u64::from_ne_bytes), u64::from_ne_bytes(calls)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_sent_is_read_by_its_number_and_what_a_dead_rank_did_not_send_is_not_waited_for() {
        let folder = std::env::temp_dir().join(format!("plimsoll-exchange-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let exchange = Exchange { folder: folder.clone() };
        let later = exchange.clone();
        let sender = std::thread::spawn(move || {
            sleep(Duration::from_millis(20));
            later.message(0, 0).send(Some(&[1, 2]));
            later.message(0, 1).send(None);
        });
        assert_eq!(exchange.message(0, 0).read(deadline()), Some(vec![1, 2]));
        let second = exchange.message(0, 1);
        assert_eq!((second.wait(deadline()), second.read(deadline())), (true, None));
        sender.join().unwrap();
        // No process has the ID 0.
        fs::write(folder.join("7"), [0; 24]).unwrap();
        assert!(!exchange.message(7, 0).wait(deadline()));
        // A sender that never arrived is waited for once, but its messages still count if it arrives later.
        let late = exchange.message(8, 0);
        assert!(!late.wait(Instant::now()) && !late.wait(deadline()));
        late.send(Some(&[3]));
        assert_eq!(late.read(deadline()), Some(vec![3]));
        fs::remove_dir_all(folder).unwrap();
    }
}
