//! Ranks that are processes, with a TCP connection between each pair.
//!
//! A message is a header (the collective and its size in bytes) followed by the bytes. The header shows at once if two ranks are
//! in different collectives. A second thread sends while the calling thread receives. Each rank sends to the next rank first and
//! receives from the previous one first, so no two ranks wait for each other.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::Transport;
use crate::error::{Error, Result};
use crate::links::{Links, Use, done};
use crate::monitor::Health;
use crate::record::{Call, Op};

/// How long a read or write blocks before it checks whether a rank is lost.
const LOOK: Duration = Duration::from_millis(50);
/// Shorter messages are sent without a second thread, because they fit into the system's buffers.
const SMALL_BYTES: usize = 16 << 10;
/// The timeout of the first collective is this many times as long, because some ranks build their models faster than
/// others.
const FIRST_FACTOR: u32 = 4;
/// After a rank has waited in vain for its device, it waits this long for the other ranks to report their latest
/// collective.
const ROLL_CALL: Duration = Duration::from_secs(5);
/// Number, operation, bytes and hash, all in little-endian order.
type Header = [[u8; 8]; 4];

/// The connections of one rank to all others.
#[derive(Debug)]
pub struct Sockets {
    rank: usize,
    streams: Vec<Option<TcpStream>>,
    health: Arc<Health>,
    timeout: Duration,
}

/// The state that the two threads of an exchange share.
struct Exchange<'a> {
    call: &'a Call,
    /// The ranks that take part.
    ranks: &'a [usize],
    header: Header,
    start: Instant,
    timeout: Duration,
    /// The timeout of a collective, for use in messages.
    seconds: u64,
    /// Set when receiving fails, so that sending stops.
    is_over: AtomicBool,
}

impl Sockets {
    /// `streams` has a connection to every rank except this one.
    pub(crate) fn new(
        rank: usize,
        streams: Vec<Option<TcpStream>>,
        health: Arc<Health>,
        timeout: Duration,
    ) -> io::Result<Sockets> {
        for stream in streams.iter().flatten() {
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(LOOK))?;
            stream.set_write_timeout(Some(LOOK))?;
        }
        Ok(Sockets { rank, streams, health, timeout })
    }

    /// The other members of `ranks` at distance 1, 2, … ahead: each one's index in `ranks`, its rank and its
    /// connection.
    fn ahead<'a>(
        &'a self,
        ranks: &'a [usize],
    ) -> impl DoubleEndedIterator<Item = (usize, usize, &'a TcpStream)> {
        let own = ranks.iter().position(|rank| *rank == self.rank).unwrap_or(0);
        (1..ranks.len()).filter_map(move |distance| {
            let at = (own + distance) % ranks.len();
            Some((at, ranks[at], self.streams[ranks[at]].as_ref()?))
        })
    }

    /// All addresses of this host, in the protocol that its connections use.
    fn any_address(&self) -> IpAddr {
        let own = self.streams.iter().flatten().find_map(|stream| stream.local_addr().ok());
        match own {
            Some(SocketAddr::V6(_)) => Ipv6Addr::UNSPECIFIED.into(),
            _ => Ipv4Addr::UNSPECIFIED.into(),
        }
    }

    /// All ranks.
    fn all(&self) -> Vec<usize> {
        (0..self.streams.len()).collect()
    }

    fn send_all(&self, exchange: &Exchange<'_>, send: &[&[u8]]) -> Result<()> {
        let header = exchange.header.as_flattened();
        for (at, peer, stream) in self.ahead(exchange.ranks) {
            if send[at].len() < SMALL_BYTES {
                let message = [header, send[at]].concat();
                self.move_bytes(exchange, peer, message.len(), |at| { &*stream }.write(&message[at..]))?;
            } else {
                let bytes = send[at];
                self.move_bytes(exchange, peer, header.len(), |at| { &*stream }.write(&header[at..]))?;
                self.move_bytes(exchange, peer, bytes.len(), |at| { &*stream }.write(&bytes[at..]))?;
            }
        }
        Ok(())
    }

    fn receive_all(&self, exchange: &Exchange<'_>, receive: &mut [&mut [u8]]) -> Result<()> {
        for (at, peer, stream) in self.ahead(exchange.ranks).rev() {
            let mut header = Header::default();
            let into = header.as_flattened_mut();
            self.move_bytes(exchange, peer, into.len(), |at| { &*stream }.read(&mut into[at..]))?;
            if header != exchange.header {
                let (theirs, ours) = (Box::new(called(&header)), Box::new(exchange.call.clone()));
                return Err(Error::Mismatch { rank: peer, theirs, ours });
            }
            let into = &mut *receive[at];
            self.move_bytes(exchange, peer, into.len(), |at| { &*stream }.read(&mut into[at..]))?;
        }
        Ok(())
    }

    /// Reads or writes `total` bytes. Whenever it has blocked for [`LOOK`], it checks whether a rank is lost.
    fn move_bytes(
        &self,
        exchange: &Exchange<'_>,
        peer: usize,
        total: usize,
        mut some: impl FnMut(usize) -> io::Result<usize>,
    ) -> Result<()> {
        let mut done = 0;
        while done < total {
            match some(done) {
                Ok(0) => return Err(self.closed(exchange, peer)),
                Ok(count) => done += count,
                Err(why) if why.kind() == ErrorKind::Interrupted => {}
                Err(why) if matches!(why.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    self.look(exchange, peer)?;
                }
                Err(_) => return Err(self.closed(exchange, peer)),
            }
        }
        Ok(())
    }

    fn look(&self, exchange: &Exchange<'_>, peer: usize) -> Result<()> {
        if let Some(lost) = self.health.lost() {
            return Err(Error::RankLost { lost: Box::new(lost), call: Some(exchange.call.clone()) });
        }
        let (call, seconds) = (exchange.call.clone(), exchange.seconds);
        if exchange.is_over.load(Ordering::SeqCst) {
            return Err(Error::Timeout { rank: peer, call, seconds });
        }
        if exchange.start.elapsed() < exchange.timeout {
            return Ok(());
        }
        // Report the rank and its host to all others, because they may not be waiting for it themselves.
        let why = format!(
            "did not reach {call} within {seconds} s: it may be stopped, overloaded or in other code \
             (PLIMSOLL_COLLECTIVE_TIMEOUT_S sets the time)"
        );
        let lost = self.health.report(peer, &why);
        Err(Error::RankLost { lost: Box::new(lost), call: Some(call) })
    }

    fn closed(&self, exchange: &Exchange<'_>, peer: usize) -> Error {
        let lost = self.health.report(peer, "is gone: its connection closed");
        Error::RankLost { lost: Box::new(lost), call: Some(exchange.call.clone()) }
    }
}

impl Transport for Sockets {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.streams.len()
    }

    fn exchange(&self, call: &Call, send: &[&[u8]], receive: &mut [&mut [u8]]) -> Result<()> {
        self.exchange_among(&self.all(), call, send, receive)
    }

    fn exchange_among(
        &self,
        ranks: &[usize],
        call: &Call,
        send: &[&[u8]],
        receive: &mut [&mut [u8]],
    ) -> Result<()> {
        if let Some(lost) = self.health.lost() {
            return Err(Error::RankLost { lost: Box::new(lost), call: Some(call.clone()) });
        }
        let timeout = self.timeout * if call.number == 0 { FIRST_FACTOR } else { 1 };
        let (header, start, seconds) = (header(call), Instant::now(), timeout.as_secs());
        let is_over = AtomicBool::new(false);
        let exchange = Exchange { call, ranks, header, start, timeout, seconds, is_over };
        if send.iter().all(|bytes| bytes.len() < SMALL_BYTES) {
            self.send_all(&exchange, send)?;
            return self.receive_all(&exchange, receive);
        }
        thread::scope(|scope| {
            let sender = scope.spawn(|| self.send_all(&exchange, send));
            let received = self.receive_all(&exchange, receive);
            exchange.is_over.store(received.is_err(), Ordering::SeqCst);
            let sent = sender.join().unwrap_or_else(|panic| resume_unwind(panic));
            received.and(sent)
        })
    }

    /// Each rank tells the others its new port. The first of them chooses the number that the connections must begin with.
    fn connect_again(&self, ranks: &[usize], call: &Call) -> Result<Arc<dyn Transport>> {
        let listener = done(TcpListener::bind((self.any_address(), 0)))?;
        let port = done(listener.local_addr())?.port();
        let token = RandomState::new().build_hasher().finish();
        let own = [u64::from(port), token].map(u64::to_le_bytes);
        let mut all = vec![own; ranks.len()];
        let mut receive: Vec<&mut [u8]> = all.iter_mut().map(|one| one.as_flattened_mut()).collect();
        self.exchange_among(ranks, call, &vec![own.as_flattened(); ranks.len()], &mut receive)?;
        let mut wanted = Vec::new();
        for (at, peer, stream) in self.ahead(ranks) {
            let port = u64::from_le_bytes(all[at][0]) as u16;
            let address = SocketAddr::new(done(stream.peer_addr())?.ip(), port);
            wanted.push((peer, address.to_string(), Use::Data));
        }
        let (rank, size, token) = (self.rank, self.streams.len(), u64::from_le_bytes(all[0][1]));
        let (until, timeout) = (Instant::now() + self.timeout, self.timeout);
        let links = Links { rank, size, token, until, timeout, listener }.connect(&wanted)?;
        let mut streams: Vec<Option<TcpStream>> = (0..size).map(|_| None).collect();
        for (other, _, stream) in links {
            streams[other] = Some(stream);
        }
        let again = Sockets::new(rank, streams, Arc::clone(&self.health), timeout);
        Ok(Arc::new(done(again)?))
    }

    /// A rank whose device does not finish in time does not know which rank is missing, so all waiting ranks tell each
    /// other their latest collective. A rank that does not answer is stopped or busy; a rank with a different answer is
    /// in another collective.
    fn gave_up(&self, waited: Duration, call: &dyn Fn() -> Option<Call>) -> Option<Error> {
        if let Some(lost) = self.health.lost() {
            return Some(Error::RankLost { lost: Box::new(lost), call: call() });
        }
        if waited < self.timeout {
            return None;
        }
        let (call, ranks) = (call().unwrap_or_else(roll_call), self.all());
        let (header, start, seconds) = (header(&call), Instant::now(), self.timeout.as_secs());
        let is_over = AtomicBool::new(false);
        let (call, ranks, timeout) = (&call, &ranks[..], ROLL_CALL);
        let exchange = Exchange { call, ranks, header, start, timeout, seconds, is_over };
        let none = vec![&[][..]; self.streams.len()];
        let mut receive: Vec<&mut [u8]> = none.iter().map(|_| &mut [][..]).collect();
        let met = self.send_all(&exchange, &none).and_then(|()| self.receive_all(&exchange, &mut receive));
        let here = self.rank;
        Some(met.err().unwrap_or_else(|| Error::Timeout { rank: here, call: call.clone(), seconds }))
    }

    fn close(&self) {
        for stream in self.streams.iter().flatten() {
            // This fails if the connection is already closed, which is fine.
            let _ = stream.shutdown(Shutdown::Write);
        }
    }
}

fn header(call: &Call) -> Header {
    [call.number, call.op.to_wire().into(), call.bytes, call.hash()].map(u64::to_le_bytes)
}

/// The call that a header describes. It has no label, and only a hash of the type.
fn called(header: &Header) -> Call {
    let [number, op, bytes, _] = header.map(u64::from_le_bytes);
    let op = u8::try_from(op).ok().and_then(Op::from_wire).unwrap_or(Op::Barrier);
    let (label, dtype, group) = Default::default();
    Call { number, op, bytes, label, dtype, group }
}

/// A placeholder for ranks that have not called any collective of all ranks.
fn roll_call() -> Call {
    let (number, bytes, label, dtype, group) = Default::default();
    Call { number, op: Op::Barrier, bytes, label, dtype, group }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_says_which_collective_it_is() {
        let (dtype, group) = ("float32".to_owned(), String::new());
        let label = "bucket 1".to_owned();
        let call = Call { number: 258, op: Op::AllToAll, bytes: 65_537, label, dtype, group };
        assert_eq!(
            called(&header(&call)),
            Call { label: String::new(), dtype: String::new(), ..call.clone() }
        );
        assert_ne!(header(&call), header(&Call { dtype: "int64".to_owned(), ..call }));
    }
}
