//! What ranks tell each other through files, in the folder by which they share the devices (`share.rs`).
//!
//! A rank counts its calls of a communicator, and leaves with each what is known of the values that it sends
//! (`memory/recent.rs`). Who received them and reads them on the host waits until the sender came so far, as
//! it would for a device; a collective itself waits only for values that it passes on. What a sender, or its order, has
//! of files:
//!
//! ```text
//! SENDER[-RECEIVER]         three numbers: its process, when that began, and how many calls it made
//! SENDER[-RECEIVER].CALL    the values that it sent, where they are known
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

/// How long ranks that do not come are waited for, together.
const PATIENCE: Duration = Duration::from_secs(30);
/// The pauses between two looks, the first and the longest.
const PAUSES: [Duration; 2] = [Duration::from_micros(200), Duration::from_millis(5)];

/// Senders that did not come: each is waited for once.
static MISSING: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

/// Until when to wait for everything that is needed now.
pub(crate) fn deadline() -> Instant {
    Instant::now() + PATIENCE
}

/// A communicator's folder.
#[derive(Debug, Clone)]
pub(super) struct Exchange {
    folder: PathBuf,
}

/// What a rank sends with one of its calls.
#[derive(Debug, Clone)]
pub(crate) struct Message {
    sender: PathBuf,
    call: u64,
}

impl Exchange {
    /// That of a communicator of several processes, by a name that these agree on.
    pub(super) fn named(name: &str) -> Option<Exchange> {
        let folder = share::folder()?.join(name);
        fs::create_dir_all(&folder).ok()?;
        Some(Exchange { folder })
    }

    /// That of a part of the communicator.
    pub(super) fn part(&self, name: &str) -> Option<Exchange> {
        Exchange::named(&format!("{}-{name}", self.folder.file_name()?.to_str()?))
    }

    /// What a rank sends all others with this call.
    pub(super) fn message(&self, rank: u32, call: u64) -> Message {
        Message { sender: self.folder.join(rank.to_string()), call }
    }

    /// What a rank sends one other.
    pub(super) fn message_to(&self, rank: u32, receiver: u32, call: u64) -> Message {
        Message { sender: self.folder.join(format!("{rank}-{receiver}")), call }
    }
}

impl Message {
    /// Sends it.
    pub(super) fn send(&self, known: Option<&[u8]>) {
        // Where the launcher took the folder away, the run is over and nobody reads.
        let _over = self.write(known);
    }

    fn write(&self, known: Option<&[u8]>) -> io::Result<()> {
        if let Some(bytes) = known {
            fs::write(self.values(), bytes)?;
        }
        let [number, began] = share::this().unwrap_or_default();
        let row = [number, began, self.call + 1].map(u64::to_ne_bytes);
        // Whole or not at all: a reader meets either count.
        let new = self.sender.with_extension("new");
        fs::write(&new, row.as_flattened())?;
        fs::rename(new, &self.sender)
    }

    fn values(&self) -> PathBuf {
        let mut path = self.sender.clone().into_os_string();
        path.push(format!(".{}", self.call));
        path.into()
    }

    /// Waits until it was sent: whether it was.
    pub(super) fn wait(&self, until: Instant) -> bool {
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

    /// Waits for it: the values that are known of it.
    pub(crate) fn read(&self, until: Instant) -> Option<Vec<u8>> {
        if self.wait(until) { fs::read(self.values()).ok() } else { None }
    }
}

/// Who sends, and how often it did.
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
        // No process has the number 0.
        fs::write(folder.join("7"), [0; 24]).unwrap();
        assert!(!exchange.message(7, 0).wait(deadline()));
        // One that never came is waited for once, and heard if it comes after all.
        let late = exchange.message(8, 0);
        assert!(!late.wait(Instant::now()) && !late.wait(deadline()));
        late.send(Some(&[3]));
        assert_eq!(late.read(deadline()), Some(vec![3]));
        fs::remove_dir_all(folder).unwrap();
    }
}
