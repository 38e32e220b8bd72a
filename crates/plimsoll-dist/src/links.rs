//! Connections between pairs of ranks: the higher rank of a pair connects, and the lower one accepts.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};

/// The first value that a connecting rank sends.
const MAGIC: u64 = u64::from_le_bytes(*b"PLIMSOLL");

/// The purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    Data = 0,
    Monitor = 1,
}

/// Where this rank waits for connections, and for how long.
pub(crate) struct Links {
    pub(crate) rank: usize,
    /// The number of ranks.
    pub(crate) size: usize,
    /// A number that only the ranks of this run know.
    pub(crate) token: u64,
    pub(crate) until: Instant,
    /// How long the ranks will wait for each other; this ends at `until`.
    pub(crate) timeout: Duration,
    pub(crate) listener: TcpListener,
}

/// A connection to make: the other rank, its address, and what the connection is for.
pub(crate) type Wanted = (usize, String, Use);
/// A connection, and the rank at its other end.
pub(crate) type Link = (usize, Use, TcpStream);

impl Links {
    /// Makes these connections, of which each rank must want the same.
    pub(crate) fn connect(self, wanted: &[Wanted]) -> Result<Vec<Link>> {
        let mut links = Vec::new();
        for (other, address, purpose) in wanted.iter().filter(|(other, ..)| *other < self.rank) {
            links.push((*other, *purpose, self.connect_to(*other, address, *purpose)?));
        }
        done(self.listener.set_nonblocking(true))?;
        loop {
            let has = |other, purpose| links.iter().any(|(known, its, _)| (*known, *its) == (other, purpose));
            let missing = wanted.iter().filter(|(other, _, purpose)| !has(*other, *purpose));
            let mut missing: Vec<usize> = missing.map(|(other, ..)| *other).collect();
            missing.dedup();
            if missing.is_empty() {
                return Ok(links);
            }
            match self.accept()? {
                Some(link) => links.push(link),
                None if Instant::now() < self.until => thread::sleep(Duration::from_millis(1)),
                None => return Err(Error::Missing { missing, seconds: self.timeout.as_secs() }),
            }
        }
    }

    fn connect_to(&self, other: usize, address: &str, purpose: Use) -> Result<TcpStream> {
        let failed = |why: io::Error| {
            Error::Environment(format!("cannot connect to rank {other} at {address}: {why}"))
        };
        let mut stream = TcpStream::connect(address).map_err(failed)?;
        let hello = [MAGIC, purpose as u64, self.rank as u64, self.token].map(u64::to_le_bytes);
        stream.write_all(hello.as_flattened()).map_err(failed)?;
        Ok(stream)
    }

    /// Accepts a connection from a higher rank of this run, and closes any other.
    fn accept(&self) -> Result<Option<Link>> {
        let mut stream = match self.listener.accept() {
            Ok((stream, _)) => stream,
            Err(why) if why.kind() == ErrorKind::WouldBlock => return Ok(None),
            Err(why) => return done(Err(why)),
        };
        done(stream.set_nonblocking(false))?;
        done(stream.set_read_timeout(Some(Duration::from_secs(5))))?;
        let mut hello = [[0u8; 8]; 4];
        if stream.read_exact(hello.as_flattened_mut()).is_err() {
            return Ok(None);
        }
        let [magic, purpose, other, token] = hello.map(u64::from_le_bytes);
        if magic != MAGIC || token != self.token {
            return Ok(None);
        }
        let purpose = if purpose == Use::Data as u64 { Use::Data } else { Use::Monitor };
        let other = usize::try_from(other).ok().filter(|other| (self.rank + 1..self.size).contains(other));
        Ok(other.map(|other| (other, purpose, stream)))
    }
}

pub(crate) fn done<T>(outcome: io::Result<T>) -> Result<T> {
    outcome.map_err(|why| Error::Environment(format!("cannot use this host's network: {why}")))
}
