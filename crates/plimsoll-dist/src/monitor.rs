//! Watches whether all ranks are alive. A thread watches the store's key `failed` and the connections to the two
//! neighbouring ranks, on which nothing is sent until a rank ends. A rank that loses a neighbour, or fails itself, sets
//! that key. So every rank learns of the first failure, and all name the same rank.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::error::{Error, Lost, Result};
use crate::store::Client;

/// How long the thread waits on each connection in turn. It watches three connections, so it sees a failure within 60
/// ms.
const LOOK: Duration = Duration::from_millis(20);
/// The byte that a rank sends to its neighbours before it ends normally.
const BYE: u8 = b'.';

/// One rank, as it introduced itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Member {
    /// The host that the rank runs on.
    pub host: String,
    /// Its process id.
    pub pid: u32,
    /// Its device.
    pub device: String,
}

impl Member {
    pub(crate) fn lost(&self, rank: usize, why: impl Into<String>) -> Lost {
        let Member { host, pid, device } = self.clone();
        Lost { rank, host, pid, device, why: why.into() }
    }
}

/// Whether all ranks are alive, as far as this rank knows.
#[derive(Debug)]
pub struct Health {
    rank: usize,
    members: Vec<Member>,
    state: Mutex<State>,
    changed: Condvar,
    /// The connection to the store, and the key that records a failure for all ranks.
    board: Mutex<(Client, String)>,
    /// The rank that hosts the store, if a rank does.
    store_rank: Option<usize>,
}

#[derive(Debug, Default)]
struct State {
    lost: Option<Lost>,
    is_closed: bool,
}

impl Health {
    /// Starts with no failure. `board` is a connection to the store, and `key` is the key that records a failure.
    pub(crate) fn new(
        rank: usize,
        members: Vec<Member>,
        board: (Client, String),
        store_rank: Option<usize>,
    ) -> Health {
        let state = Mutex::new(State::default());
        Health { rank, members, state, changed: Condvar::new(), board: Mutex::new(board), store_rank }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn members(&self) -> &[Member] {
        &self.members
    }

    /// The lost rank, if there is one.
    pub fn lost(&self) -> Option<Lost> {
        self.state().lost.clone()
    }

    /// Waits until a rank is lost. Returns `None` once this rank has left the world.
    pub fn wait(&self) -> Option<Lost> {
        let waits = |state: &mut State| state.lost.is_none() && !state.is_closed;
        let state = self.changed.wait_while(self.state(), waits);
        state.unwrap_or_else(PoisonError::into_inner).lost.clone()
    }

    /// Tells all ranks that this one cannot continue. `why` is its error, as a sentence. Returns the failure that all
    /// ranks report, which may be an earlier one of another rank.
    pub fn fail(&self, why: &str) -> Lost {
        self.report(self.rank, &format!("failed: {why}"))
    }

    /// Records that a rank is lost, unless one is already recorded as lost. Returns the recorded rank.
    pub(crate) fn report(&self, rank: usize, why: &str) -> Lost {
        if let Some(lost) = self.lost() {
            return lost;
        }
        let lost =
            |rank: usize, why: &str| self.members.get(rank).cloned().unwrap_or_default().lost(rank, why);
        let found = lost(rank, why);
        let first = {
            let mut board = self.board.lock().unwrap_or_else(PoisonError::into_inner);
            let (client, key) = &mut *board;
            client.set_first(key, encoded(&found).as_bytes())
        };
        // If the store cannot be reached, the rank that hosts it was lost first: if it had lost another rank, it would
        // have stayed until all knew about that. If no rank hosts the store, each rank reports what it saw itself.
        let first = match (first, self.store_rank) {
            (Ok(value), _) => decoded(&value).unwrap_or(found),
            (Err(why), Some(host)) if rank != self.rank && host != self.rank && host != rank => {
                lost(host, &format!("is gone: it hosted the {why}"))
            }
            (Err(_), _) => found,
        };
        self.note(first)
    }

    fn note(&self, lost: Lost) -> Lost {
        let mut state = self.state();
        let lost = state.lost.get_or_insert(lost).clone();
        drop(state);
        self.changed.notify_all();
        lost
    }

    fn close(&self) {
        self.state().is_closed = true;
        self.changed.notify_all();
    }
}

fn encoded(lost: &Lost) -> String {
    let Lost { rank, host, pid, device, why } = lost;
    format!("{rank}\n{host}\n{pid}\n{device}\n{why}")
}

fn decoded(value: &[u8]) -> Option<Lost> {
    let text = String::from_utf8_lossy(value);
    let mut fields = text.splitn(5, '\n').map(str::to_owned);
    Some(Lost {
        rank: fields.next()?.parse().ok()?,
        host: fields.next()?,
        pid: fields.next()?.parse().ok()?,
        device: fields.next()?,
        why: fields.next()?,
    })
}

/// The thread that watches the neighbours and the store.
#[derive(Debug)]
pub(crate) struct Monitor {
    health: Arc<Health>,
    neighbours: Vec<TcpStream>,
    is_closing: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// A connection to a neighbour.
struct Neighbour {
    rank: usize,
    stream: TcpStream,
    is_open: bool,
}

impl Monitor {
    /// Starts watching these neighbours and the store. `store_rank` is the rank that hosts the store, if a rank does.
    pub(crate) fn start(
        health: &Arc<Health>,
        neighbours: Vec<(usize, TcpStream)>,
        mut store: Client,
        failed: &str,
        store_rank: Option<usize>,
    ) -> Result<Monitor> {
        let system = |why: std::io::Error| Error::Environment(format!("cannot watch the other ranks: {why}"));
        store.start_waiting(failed)?;
        let mut kept = Vec::new();
        for (_, stream) in &neighbours {
            stream.set_read_timeout(Some(LOOK)).map_err(system)?;
            kept.push(stream.try_clone().map_err(system)?);
        }
        let is_closing = Arc::new(AtomicBool::new(false));
        let open = |(rank, stream)| Neighbour { rank, stream, is_open: true };
        let mut watched: Vec<Neighbour> = neighbours.into_iter().map(open).collect();
        let (of_thread, ending) = (Arc::clone(health), Arc::clone(&is_closing));
        let watch = move || {
            while !ending.load(Ordering::SeqCst) && of_thread.lost().is_none() {
                watched.iter_mut().for_each(|neighbour| neighbour.look(&of_thread, &ending));
                look_at_store(&mut store, store_rank, &of_thread, &ending);
            }
        };
        let thread =
            thread::Builder::new().name("plimsoll monitor".to_owned()).spawn(watch).map_err(system)?;
        Ok(Monitor { health: Arc::clone(health), neighbours: kept, is_closing, thread: Some(thread) })
    }

    /// Says goodbye to the neighbours, so that they do not mistake the end of this rank for a failure.
    pub(crate) fn say_goodbye(&mut self) {
        for stream in &mut self.neighbours {
            // A neighbour that is gone does not need it.
            let _ = stream.write_all(&[BYE]);
        }
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.is_closing.store(true, Ordering::SeqCst);
        self.health.close();
        if let Some(thread) = self.thread.take() {
            // The thread returns nothing, and a panic in it has already been printed.
            let _ = thread.join();
        }
        for stream in &self.neighbours {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Neighbour {
    fn look(&mut self, health: &Health, ending: &AtomicBool) {
        if !self.is_open {
            return;
        }
        let mut byte = [0];
        match self.stream.read(&mut byte) {
            Ok(1) if byte[0] == BYE => self.is_open = false,
            Err(why)
                if matches!(
                    why.kind(),
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
                ) => {}
            _ => {
                self.is_open = false;
                if !ending.load(Ordering::SeqCst) {
                    health.report(self.rank, "is gone: its connection closed");
                }
            }
        }
    }
}

fn look_at_store(store: &mut Client, store_rank: Option<usize>, health: &Health, ending: &AtomicBool) {
    match store.is_there(LOOK) {
        Ok(false) => {}
        // `report` returns the failure recorded in the store.
        Ok(true) => drop(health.report(health.rank, "failed: another rank failed")),
        Err(_) if ending.load(Ordering::SeqCst) => {}
        Err(why) => {
            match store_rank {
                Some(rank) => health.report(rank, &format!("is gone: it hosted the {why}")),
                None => health.report(
                    health.rank,
                    &format!("cannot continue: its launcher is gone, which hosted the {why}"),
                ),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_rank_survives_the_store() {
        let member = Member { host: "b".to_owned(), pid: 7, device: "cpu".to_owned() };
        let lost = member.lost(3, "out of memory\non two lines");
        assert_eq!(decoded(encoded(&lost).as_bytes()), Some(lost));
        assert_eq!(decoded(b"x"), None);
    }
}
