//! The server: a table of keys and values, with a thread for each connected client.

use std::collections::BTreeMap;
use std::io::{self, BufReader};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use super::wire::{
    Command, MAGIC, Message, NOT_READY, READY, STOP_WAITING, WAIT_CANCELED, read_bytes, read_count, read_i64,
    read_keys, read_u8, read_u32,
};

/// A server for PyTorch's TCPStore protocol. Dropping it closes all connections.
///
/// ```
/// use plimsoll_dist::store::{Client, Server};
/// use std::time::Duration;
/// let server = Server::bind("127.0.0.1:0").unwrap();
/// let mut client = Client::connect("127.0.0.1", server.address().port(), Duration::from_secs(5))?;
/// client.set("/answer", b"42")?;
/// assert_eq!(client.get("/answer", Duration::from_secs(1))?.as_deref(), Some(&b"42"[..]));
/// assert_eq!(client.get("/question", Duration::from_millis(10))?, None);
/// # Ok::<(), plimsoll_dist::Error>(())
/// ```
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    table: Mutex<Table>,
    is_closing: AtomicBool,
}

#[derive(Debug, Default)]
struct Table {
    values: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Clients that are waiting for keys, by client number.
    waiting: BTreeMap<u64, (TcpStream, Vec<Vec<u8>>)>,
    /// All open connections, by client number, so that the server can close them.
    open: BTreeMap<u64, TcpStream>,
}

impl Shared {
    fn table(&self) -> MutexGuard<'_, Table> {
        // Every command leaves the table consistent, so a poisoned lock can still be used.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Server {
    /// Listens at an address; port 0 chooses a free one.
    ///
    /// # Errors
    /// An error of the operating system: for example, the port is in use, or this host does not have the address.
    pub fn bind(address: impl ToSocketAddrs) -> io::Result<Server> {
        let listener = TcpListener::bind(address)?;
        let (address, shared) = (listener.local_addr()?, Arc::new(Shared::default()));
        let of_thread = Arc::clone(&shared);
        let thread = thread::Builder::new().name("plimsoll store".to_owned());
        let accepting = Some(thread.spawn(move || accept(&listener, &of_thread))?);
        Ok(Server { address, shared, accepting })
    }

    /// The address at which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.is_closing.store(true, Ordering::SeqCst);
        // A connection wakes the thread that accepts connections.
        let here = match self.address.ip() {
            ip if ip.is_unspecified() => SocketAddr::from(([127, 0, 0, 1], self.address.port())),
            _ => self.address,
        };
        if TcpStream::connect(here).is_ok()
            && let Some(accepting) = self.accepting.take()
        {
            // Wait for it, so that the port is free when this returns. The thread has no result.
            let _ = accepting.join();
        }
        for stream in self.shared.table().open.values() {
            // This fails if the client has already closed the connection, which is fine.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for (number, stream) in (0..).zip(listener.incoming()) {
        if shared.is_closing.load(Ordering::SeqCst) {
            return;
        }
        let Ok(stream) = stream else { continue };
        let Ok(kept) = stream.try_clone() else { continue };
        shared.table().open.insert(number, kept);
        let of_client = Arc::clone(shared);
        let serve = move || {
            // A client that leaves or speaks a different protocol ends only its own connection.
            let _ = serve(&stream, number, &of_client);
            let mut table = of_client.table();
            table.open.remove(&number);
            table.waiting.remove(&number);
            let _ = stream.shutdown(Shutdown::Both);
        };
        let thread = thread::Builder::new().name("plimsoll store client".to_owned()).stack_size(256 << 10);
        if thread.spawn(serve).is_err() {
            shared.table().open.remove(&number);
        }
    }
}

/// Answers one client until it leaves.
fn serve(stream: &TcpStream, number: u64, shared: &Shared) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut from = BufReader::new(stream);
    let unknown = || io::Error::from(io::ErrorKind::InvalidData);
    if Command::from_wire(read_u8(&mut from)?) != Some(Command::Validate) || read_u32(&mut from)? != MAGIC {
        return Err(unknown());
    }
    loop {
        let command = Command::from_wire(read_u8(&mut from)?).ok_or_else(unknown)?;
        answer(command, &mut from, stream, number, shared)?;
    }
}

fn answer(
    command: Command,
    from: &mut BufReader<&TcpStream>,
    to: &TcpStream,
    number: u64,
    shared: &Shared,
) -> io::Result<()> {
    match command {
        Command::Validate => Err(io::ErrorKind::InvalidData.into()),
        Command::Set => {
            let (key, value) = (read_bytes(from)?, read_bytes(from)?);
            shared.table().set(key, value);
            Ok(())
        }
        Command::SetMany => {
            let pairs = read_count(from)?;
            for _ in 0..pairs {
                let (key, value) = (read_bytes(from)?, read_bytes(from)?);
                shared.table().set(key, value);
            }
            Ok(())
        }
        Command::Append => {
            let (key, more) = (read_bytes(from)?, read_bytes(from)?);
            let mut table = shared.table();
            let mut value = table.values.remove(&key).unwrap_or_default();
            value.extend(more);
            table.set(key, value);
            Ok(())
        }
        Command::CompareSet => {
            let (key, expected, desired) = (read_bytes(from)?, read_bytes(from)?, read_bytes(from)?);
            let value = shared.table().compare_set(key, expected, desired);
            Message::default().bytes(&value).send(to)
        }
        Command::Get => {
            let key = read_bytes(from)?;
            let value = shared.table().values.get(&key).cloned().unwrap_or_default();
            Message::default().bytes(&value).send(to)
        }
        Command::GetMany => {
            for key in read_keys(from)? {
                let value = shared.table().values.get(&key).cloned().unwrap_or_default();
                Message::default().bytes(&value).send(to)?;
            }
            Ok(())
        }
        Command::Add => {
            let (key, more) = (read_bytes(from)?, read_i64(from)?);
            let sum = shared.table().add(key, more);
            Message::default().i64(sum).send(to)
        }
        Command::Check => {
            let keys = read_keys(from)?;
            let is_ready = shared.table().has_all(&keys);
            Message::default().byte(if is_ready { READY } else { NOT_READY }).send(to)
        }
        Command::Wait => {
            let keys = read_keys(from)?;
            let mut table = shared.table();
            if table.has_all(&keys) {
                return Message::default().byte(STOP_WAITING).send(to);
            }
            table.waiting.insert(number, (to.try_clone()?, keys));
            Ok(())
        }
        Command::CancelWait => {
            // Answer while holding the lock, so that no notice about a key can follow this answer.
            let mut table = shared.table();
            table.waiting.remove(&number);
            Message::default().byte(WAIT_CANCELED).send(to)
        }
        Command::CountKeys => {
            let count = shared.table().values.len();
            Message::default().i64(count as i64).send(to)
        }
        Command::Delete => {
            let key = read_bytes(from)?;
            let deleted = shared.table().values.remove(&key).is_some();
            Message::default().i64(i64::from(deleted)).send(to)
        }
        Command::Ping => {
            let nonce = read_u32(from)?;
            Message::default().u32(nonce).send(to)
        }
    }
}

impl Table {
    fn has_all(&self, keys: &[Vec<u8>]) -> bool {
        keys.iter().all(|key| self.values.contains_key(key))
    }

    fn set(&mut self, key: Vec<u8>, value: Vec<u8>) {
        self.values.insert(key, value);
        let values = &self.values;
        self.waiting.retain(|_, (stream, keys)| {
            let is_ready = keys.iter().all(|key| values.contains_key(key));
            if is_ready {
                // A client that is gone needs no answer.
                let _ = Message::default().byte(STOP_WAITING).send(&*stream);
            }
            !is_ready
        });
    }

    /// Sets a key to `desired` if its value is `expected`; a missing key is set if `expected` is empty. Returns the
    /// key's value afterwards, or `expected` if the key is still missing, like PyTorch.
    fn compare_set(&mut self, key: Vec<u8>, expected: Vec<u8>, desired: Vec<u8>) -> Vec<u8> {
        match self.values.get(&key) {
            None if !expected.is_empty() => expected,
            Some(value) if *value != expected => value.clone(),
            _ => {
                self.set(key, desired.clone());
                desired
            }
        }
    }

    /// Adds to a number, which is stored as text, as in PyTorch.
    fn add(&mut self, key: Vec<u8>, more: i64) -> i64 {
        let text = self.values.get(&key).map(|value| String::from_utf8_lossy(value).into_owned());
        let sum = text.and_then(|text| text.trim().parse::<i64>().ok()).unwrap_or(0).wrapping_add(more);
        self.set(key, sum.to_string().into_bytes());
        sum
    }
}
