//! All ranks of a job, connected. They find each other through the store, exchange bytes over sockets, and learn from the monitor
//! whether all are still alive.

use std::io::ErrorKind;
use std::net::TcpListener;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::communicator::Communicator;
use crate::environment::{Environment, StoreHost};
use crate::error::{Error, Result};
use crate::links::{Links, Use, Wanted, done};
use crate::monitor::{Health, Member, Monitor};
use crate::record::fnv;
use crate::store::{Client, Server};
use crate::transport::Sockets;

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
    /// rank has a different number of ranks, different options or a different version of this library.
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
            size,
            options: format!("{}\n{}", env!("CARGO_PKG_VERSION"), options.options),
        };
        store.set(&key(&format!("rank/{rank}")), own.encoded().as_bytes())?;
        let others = introductions(&mut store, &key, (rank, &own), until, options.timeout);
        let all = match &others {
            Err(Error::WorldSize { theirs, .. }) => Some(size.max(*theirs)),
            Err(Error::Options { .. }) => Some(size),
            _ => None,
        };
        if let Some(all) = all {
            leave(&mut store, &key("left"), all, hosts, || true);
        }
        let others = others?;
        let token = fnv(0, environment.run.as_bytes());
        let links = Links { rank, size, token, until, timeout: options.timeout, listener };
        let (mut data, mut neighbours): (Vec<_>, _) = ((0..size).map(|_| None).collect(), Vec::new());
        for (other, purpose, stream) in links.connect(&wanted(rank, &others))? {
            match purpose {
                Use::Data => data[other] = Some(stream),
                Use::Monitor => neighbours.push((other, stream)),
            }
        }
        let members: Vec<Member> = others.into_iter().map(|other| other.member).collect();
        // If the store's host hangs, this rank must still be able to report a failure, so it waits at most `BOARD`.
        let board = connect()?.answer_within(BOARD)?;
        let store_rank = (environment.store_host == StoreHost::FirstRank).then_some(0);
        let health = Arc::new(Health::new(rank, members, (board, key("failed")), store_rank));
        let monitor = Monitor::start(&health, neighbours, connect()?, &key("failed"), store_rank)?;
        let sockets = Sockets::new(rank, data, Arc::clone(&health), options.collective_timeout);
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
    /// The number of ranks that this rank expects.
    size: usize,
    options: String,
}

impl Introduction {
    fn encoded(&self) -> String {
        let Introduction { member: Member { host, pid, device }, address, size, options } = self;
        format!("{host}\n{pid}\n{device}\n{address}\n{size}\n{options}")
    }

    fn decoded(value: &[u8]) -> Option<Introduction> {
        let text = String::from_utf8_lossy(value);
        let mut fields = text.splitn(6, '\n').map(str::to_owned);
        let member =
            Member { host: fields.next()?, pid: fields.next()?.parse().ok()?, device: fields.next()? };
        let (address, size) = (fields.next()?, fields.next()?.parse().ok()?);
        Some(Introduction { member, address, size, options: fields.next()? })
    }

    /// Whether `other` was started as this rank was. `ranks` are the numbers of the other rank and of this one.
    fn agrees(&self, other: &Introduction, ranks: (usize, usize)) -> Result<()> {
        let ((rank, own_rank), (theirs, ours)) = (ranks, (other.size, self.size));
        if theirs != ours {
            return Err(Error::WorldSize { rank, theirs, own_rank, ours });
        }
        if other.options != self.options {
            let shown = |text: &str| text.replacen('\n', " ", 1);
            let (theirs, ours) = (shown(&other.options), shown(&self.options));
            return Err(Error::Options { rank, theirs, own_rank, ours });
        }
        Ok(())
    }
}

/// Waits for all ranks to introduce themselves, and compares each with this one, `own`, as soon as it has: ranks that expect
/// more ranks than were started do not wait for them.
fn introductions(
    store: &mut Client,
    key: &dyn Fn(&str) -> String,
    (own_rank, own): (usize, &Introduction),
    until: Instant,
    timeout: Duration,
) -> Result<Vec<Introduction>> {
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    for rank in 0..own.size {
        match store.get(&key(&format!("rank/{rank}")), until.saturating_duration_since(Instant::now()))? {
            None => missing.push(rank),
            Some(value) => {
                let other = Introduction::decoded(&value).ok_or_else(|| {
                    Error::Environment(format!(
                        "rank {rank} sent an unknown introduction: does it run another version?"
                    ))
                })?;
                own.agrees(&other, (rank, own_rank))?;
                found.push(other);
            }
        }
    }
    if missing.is_empty() { Ok(found) } else { Err(Error::Missing { missing, seconds: timeout.as_secs() }) }
}

/// The connections of this rank: one to each other rank, and one more to each of its two neighbours.
fn wanted(rank: usize, all: &[Introduction]) -> Vec<Wanted> {
    let (size, mut wanted) = (all.len(), Vec::new());
    for (other, it) in all.iter().enumerate().filter(|(other, _)| *other != rank) {
        wanted.push((other, it.address.clone(), Use::Data));
        if (rank + 1) % size == other || (other + 1) % size == rank {
            wanted.push((other, it.address.clone(), Use::Monitor));
        }
    }
    wanted
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

fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    if name.trim().is_empty() { "localhost".to_owned() } else { name.trim().to_owned() }
}
