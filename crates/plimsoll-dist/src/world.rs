//! All ranks of a job, connected. They find each other through the store, exchange bytes over sockets, and learn from the monitor
//! whether all are still alive.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::communicator::Communicator;
use crate::environment::{Environment, StoreHost};
use crate::error::{Error, Result};
use crate::monitor::{Health, Member, Monitor};
use crate::record::fnv;
use crate::store::{Client, Server};
use crate::transport::Sockets;

/// The first value that a connecting rank sends.
const MAGIC: u64 = u64::from_le_bytes(*b"PLIMSOLL");
/// How long the store may take to record a failure.
const BOARD: Duration = Duration::from_secs(1);
/// How long rank 0 keeps its store open for ranks that finish later.
const LINGER: Duration = Duration::from_secs(10);
/// How long rank 0 keeps its store open after a rank has been lost.
const LINGER_FOR_LOST: Duration = Duration::from_millis(200);

/// Options for joining a world.
#[derive(Clone, Debug)]
pub struct JoinOptions {
    /// The device on which this rank computes, for use in messages.
    pub device: String,
    /// A text that must be the same on all ranks, such as the program's options.
    pub options: String,
    /// How long ranks wait for each other when they join.
    pub timeout: Duration,
    /// How long a collective waits for a rank.
    pub collective_timeout: Duration,
}

impl Default for JoinOptions {
    fn default() -> JoinOptions {
        let minutes = Duration::from_secs(300);
        JoinOptions {
            device: "cpu".to_owned(),
            options: String::new(),
            timeout: minutes,
            collective_timeout: minutes,
        }
    }
}

/// All ranks of a job, as seen from one of them. Dropping it leaves the world. The other ranks treat that as a failure only if
/// they are still waiting for this rank.
///
/// ```
/// use plimsoll_dist::store::Server;
/// use plimsoll_dist::{Environment, JoinOptions, Launcher, StoreHost, World};
/// let store = Server::bind("127.0.0.1:0").unwrap();
/// let port = store.address().port();
/// let environment = move |rank| Environment {
///     launcher: Launcher::Env,
///     rank,
///     size: 2,
///     local_rank: rank,
///     local_size: 2,
///     address: "127.0.0.1".to_owned(),
///     port,
///     store_host: StoreHost::Launcher,
///     run: "/example/".to_owned(),
/// };
/// let join = move |rank| World::join(environment(rank), &JoinOptions::default());
/// let other = std::thread::spawn(move || join(1)?.communicator().barrier());
/// let world = join(0)?;
/// world.communicator().barrier()?;
/// assert_eq!(world.members().len(), 2);
/// other.join().unwrap()?;
/// # Ok::<(), plimsoll_dist::Error>(())
/// ```
#[derive(Debug)]
pub struct World {
    environment: Environment,
    communicator: Arc<Communicator>,
    health: Arc<Health>,
    monitor: Monitor,
    store: Mutex<Client>,
    /// The store, if this rank hosts it.
    server: Option<Server>,
}

impl World {
    /// Joins the other ranks, and waits until all have joined.
    ///
    /// # Errors
    /// If the store cannot be reached or its port is taken, some ranks do not join in time (the error names them), or a
    /// rank has different options or a different version of this library.
    pub fn join(environment: Environment, options: &JoinOptions) -> Result<World> {
        let Environment { rank, size, port, .. } = environment;
        let until = Instant::now() + options.timeout;
        let hosts = rank == 0 && environment.store_host == StoreHost::FirstRank;
        let server = hosts.then(|| host(&environment.address, port)).transpose()?;
        let connect = || Client::connect(&environment.address, port, options.timeout);
        let mut store = connect()?;
        let key = |name: &str| format!("{}{name}", environment.run);
        let listener = done(TcpListener::bind((store.local_ip()?, 0)))?;
        let own = Introduction {
            member: Member { host: host_name(), pid: std::process::id(), device: options.device.clone() },
            address: done(listener.local_addr())?.to_string(),
            options: format!("{}\n{}", env!("CARGO_PKG_VERSION"), options.options),
        };
        store.set(&key(&format!("rank/{rank}")), own.encoded().as_bytes())?;
        let others = introductions(&mut store, &key, size, until, options.timeout)?;
        if let Some((other, their)) =
            others.iter().enumerate().find(|(_, other)| other.options != own.options)
        {
            let shown = |text: &str| text.replacen('\n', " ", 1);
            let (theirs, ours) = (shown(&their.options), shown(&own.options));
            leave(&mut store, &key("left"), size, hosts, || true);
            return Err(Error::Options { rank: other, theirs, own_rank: rank, ours });
        }
        let token = fnv(0, environment.run.as_bytes());
        let links =
            Links { rank, size, token, until, timeout: options.timeout, listener }.connect(&others)?;
        let members: Vec<Member> = others.into_iter().map(|other| other.member).collect();
        // If the store's host hangs, this rank must still be able to report a failure, so it waits at most `BOARD`.
        let board = connect()?.answer_within(BOARD)?;
        let store_rank = (environment.store_host == StoreHost::FirstRank).then_some(0);
        let health = Arc::new(Health::new(rank, members, (board, key("failed")), store_rank));
        let monitor = Monitor::start(&health, links.neighbours, connect()?, &key("failed"), store_rank)?;
        let sockets = Sockets::new(rank, links.data, Arc::clone(&health), options.collective_timeout);
        let communicator = Arc::new(Communicator::new(done(sockets)?));
        Ok(World { environment, communicator, health, monitor, store: Mutex::new(store), server })
    }

    /// This rank, the number of ranks, and the store's address.
    pub fn environment(&self) -> &Environment {
        &self.environment
    }

    /// All ranks, in rank order.
    pub fn members(&self) -> &[Member] {
        self.health.members()
    }

    /// The communicator for collectives among all ranks.
    pub fn communicator(&self) -> &Arc<Communicator> {
        &self.communicator
    }

    /// Whether all ranks are alive. A program also reports its own failure here.
    pub fn health(&self) -> &Arc<Health> {
        &self.health
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.communicator.close();
        if thread::panicking() {
            self.health.fail("it panicked");
            return;
        }
        if self.health.lost().is_some() {
            // The others look up in this rank's store which rank is lost. They check every 60 ms.
            if self.server.is_some() {
                thread::sleep(LINGER_FOR_LOST);
            }
            return; // the lost rank may be the store's host
        }
        self.monitor.say_goodbye();
        let mut store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        let closed = format!("{}closed", self.environment.run);
        let hosts = self.server.is_some();
        leave(&mut store, &closed, self.environment.size, hosts, || self.health.lost().is_none());
    }
}

/// Counts this rank as gone. The rank that hosts the store leaves last, because the others still read the store: it
/// waits for them as long as `waits` is true, but at most [`LINGER`].
fn leave(store: &mut Client, key: &str, size: usize, hosts: bool, waits: impl Fn() -> bool) {
    let (start, size) = (Instant::now(), i64::try_from(size).unwrap_or(i64::MAX));
    let mut count = store.add(key, 1);
    while hosts && matches!(count, Ok(count) if count < size) && waits() && start.elapsed() < LINGER {
        thread::sleep(Duration::from_millis(5));
        count = store.add(key, 0);
    }
}

/// The information about itself that a rank shares with the others through the store.
#[derive(Clone, Debug)]
struct Introduction {
    member: Member,
    address: String,
    options: String,
}

impl Introduction {
    fn encoded(&self) -> String {
        let Introduction { member: Member { host, pid, device }, address, options } = self;
        format!("{host}\n{pid}\n{device}\n{address}\n{options}")
    }

    fn decoded(value: &[u8]) -> Option<Introduction> {
        let text = String::from_utf8_lossy(value);
        let mut fields = text.splitn(5, '\n').map(str::to_owned);
        let member =
            Member { host: fields.next()?, pid: fields.next()?.parse().ok()?, device: fields.next()? };
        Some(Introduction { member, address: fields.next()?, options: fields.next()? })
    }
}

/// Waits for all ranks to introduce themselves.
fn introductions(
    store: &mut Client,
    key: &dyn Fn(&str) -> String,
    size: usize,
    until: Instant,
    timeout: Duration,
) -> Result<Vec<Introduction>> {
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    for rank in 0..size {
        match store.get(&key(&format!("rank/{rank}")), until.saturating_duration_since(Instant::now()))? {
            None => missing.push(rank),
            Some(value) => found.push(Introduction::decoded(&value).ok_or_else(|| {
                Error::Environment(format!(
                    "rank {rank} sent an unknown introduction: does it run another version?"
                ))
            })?),
        }
    }
    if missing.is_empty() { Ok(found) } else { Err(Error::Missing { missing, seconds: timeout.as_secs() }) }
}

/// This rank's connections.
struct Linked {
    data: Vec<Option<TcpStream>>,
    neighbours: Vec<(usize, TcpStream)>,
}

/// Sets up the connections: for each pair of ranks, the higher one connects and the lower one accepts.
struct Links {
    rank: usize,
    size: usize,
    token: u64,
    until: Instant,
    /// How long the ranks will wait for each other; this ends at `until`.
    timeout: Duration,
    listener: TcpListener,
}

/// The purpose of a connection.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Data = 0,
    Monitor = 1,
}

impl Links {
    fn connect(self, others: &[Introduction]) -> Result<Linked> {
        let Links { rank, size, .. } = self;
        let mut data: Vec<Option<TcpStream>> = (0..size).map(|_| None).collect();
        let mut neighbours = Vec::new();
        let is_neighbour =
            |other: usize| other != rank && ((rank + 1) % size == other || (other + 1) % size == rank);
        for (other, introduction) in others.iter().enumerate().take(rank) {
            data[other] = Some(self.connect_to(other, &introduction.address, Use::Data)?);
            if is_neighbour(other) {
                neighbours.push((other, self.connect_to(other, &introduction.address, Use::Monitor)?));
            }
        }
        done(self.listener.set_nonblocking(true))?;
        loop {
            let is_watched =
                |other| !is_neighbour(other) || neighbours.iter().any(|(known, _)| *known == other);
            let is_missing = |other: &usize| data[*other].is_none() || !is_watched(*other);
            let missing: Vec<usize> = (rank + 1..size).filter(is_missing).collect();
            if missing.is_empty() {
                return Ok(Linked { data, neighbours });
            }
            match self.accept()? {
                Some((other, Use::Data, stream)) => data[other] = Some(stream),
                Some((other, Use::Monitor, stream)) => neighbours.push((other, stream)),
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
    fn accept(&self) -> Result<Option<(usize, Use, TcpStream)>> {
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

/// Listens at the address that was given to the ranks. If this host cannot bind it, listens on all of its addresses.
fn host(address: &str, port: u16) -> Result<Server> {
    let bound = Server::bind((address, port)).or_else(|why| match why.kind() {
        ErrorKind::AddrInUse => Err(why),
        _ => Server::bind(("0.0.0.0", port)),
    });
    bound.map_err(|why| Error::Store {
        address: format!("{address}:{port}"),
        why: format!("rank 0 cannot listen there: {why}; set MASTER_PORT to a free port of rank 0's host"),
    })
}

fn done<T>(outcome: io::Result<T>) -> Result<T> {
    outcome.map_err(|why| Error::Environment(format!("cannot use this host's network: {why}")))
}

fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    if name.trim().is_empty() { "localhost".to_owned() } else { name.trim().to_owned() }
}
