//! Ranks that are threads of one process, for tests and for trying out a program before it runs on several devices.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::Transport;
use crate::error::{Error, Lost, Result};
use crate::record::Call;

/// One rank of several in this process.
///
/// ```
/// use plimsoll_dist::transport::{Threads, Transport};
/// use std::time::Duration;
/// let ranks = Threads::ranks(4, Duration::from_secs(60));
/// assert_eq!(ranks.iter().map(|rank| rank.rank()).collect::<Vec<_>>(), [0, 1, 2, 3]);
/// ```
#[derive(Debug)]
pub struct Threads {
    rank: usize,
    size: usize,
    timeout: Duration,
    mail: Shared,
}

/// The mail of all ranks, which is signalled when it changes.
type Shared = Arc<(Mutex<Mail>, Condvar)>;

/// The bytes, and the collective call to which they belong.
type Message = (Call, Vec<u8>);

/// Messages that were sent and not yet received.
#[derive(Debug, Default)]
struct Mail {
    /// The queued messages, by sender and receiver.
    boxes: BTreeMap<(usize, usize), VecDeque<Message>>,
    /// The ranks that were dropped or closed, in that order.
    gone: Vec<usize>,
    /// The mail of ranks that were connected once more.
    others: Vec<Shared>,
}

impl Threads {
    /// Creates `size` ranks, one for each thread. If a rank does not arrive at a collective within `timeout`, all
    /// others return an error.
    pub fn ranks(size: usize, timeout: Duration) -> Vec<Threads> {
        let mail = Shared::default();
        (0..size).map(|rank| Threads { rank, size, timeout, mail: Arc::clone(&mail) }).collect()
    }

    fn receive_from(&self, peer: usize, call: &Call, into: &mut [u8], until: Instant) -> Result<()> {
        let (mail, changed) = &*self.mail;
        let mut mail = mail.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some((theirs, bytes)) =
                mail.boxes.get_mut(&(peer, self.rank)).and_then(VecDeque::pop_front)
            {
                if theirs.hash() != call.hash() || bytes.len() != into.len() {
                    let (theirs, ours) = (Box::new(theirs), Box::new(call.clone()));
                    return Err(Error::Mismatch { rank: peer, theirs, ours });
                }
                into.copy_from_slice(&bytes);
                return Ok(());
            }
            if mail.gone.contains(&peer) {
                // Name the first rank that left, because the others left as a consequence.
                let rank = mail.gone[0];
                let why = "is gone: its thread ended".to_owned();
                let lost = Lost { rank, host: String::new(), pid: 0, device: String::new(), why };
                return Err(Error::RankLost { lost: Box::new(lost), call: Some(call.clone()) });
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Error::Timeout {
                    rank: peer,
                    call: call.clone(),
                    seconds: self.timeout.as_secs(),
                });
            }
            (mail, _) = changed.wait_timeout(mail, left).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Transport for Threads {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn exchange(&self, call: &Call, send: &[&[u8]], receive: &mut [&mut [u8]]) -> Result<()> {
        let all: Vec<usize> = (0..self.size).collect();
        self.exchange_among(&all, call, send, receive)
    }

    fn exchange_among(
        &self,
        ranks: &[usize],
        call: &Call,
        send: &[&[u8]],
        receive: &mut [&mut [u8]],
    ) -> Result<()> {
        let until = Instant::now() + self.timeout;
        let others = || ranks.iter().copied().enumerate().filter(|(_, peer)| *peer != self.rank);
        let messages: Vec<_> = others().map(|(at, peer)| (peer, (call.clone(), send[at].to_vec()))).collect();
        {
            let mut mail = self.mail.0.lock().unwrap_or_else(PoisonError::into_inner);
            for (peer, message) in messages {
                mail.boxes.entry((self.rank, peer)).or_default().push_back(message);
            }
        }
        self.mail.1.notify_all();
        others().try_for_each(|(at, peer)| self.receive_from(peer, call, receive[at], until))
    }

    /// The first of the ranks makes the new mail, and tells the others where it is.
    fn connect_again(&self, ranks: &[usize], call: &Call) -> Result<Arc<dyn Transport>> {
        let lock = || self.mail.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut place = [0; 8];
        if ranks.first() == Some(&self.rank) {
            let mut mail = lock();
            mail.others.push(Shared::default());
            place = (mail.others.len() as u64 - 1).to_le_bytes();
        }
        let mut places = vec![place; ranks.len()];
        let mut receive: Vec<&mut [u8]> = places.iter_mut().map(|place| &mut place[..]).collect();
        self.exchange_among(ranks, call, &vec![&place[..]; ranks.len()], &mut receive)?;
        let mail = Arc::clone(&lock().others[u64::from_le_bytes(places[0]) as usize]);
        let Threads { rank, size, timeout, .. } = *self;
        Ok(Arc::new(Threads { rank, size, timeout, mail }))
    }

    fn close(&self) {
        let mut mail = self.mail.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !mail.gone.contains(&self.rank) {
            mail.gone.push(self.rank);
        }
        drop(mail);
        self.mail.1.notify_all();
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.close();
    }
}
