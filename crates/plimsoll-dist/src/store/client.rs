//! A client of a store, which may be ours or torchrun's.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use super::wire::{
    Command, MAGIC, Message, READY, STOP_WAITING, WAIT_CANCELED, read_bytes, read_i64, read_u8,
};
use crate::error::{Error, Result};

/// The default for [`Client::answer_within`].
const ANSWER: Duration = Duration::from_secs(60);

/// A connection to a store. Each call blocks until the store answers.
#[derive(Debug)]
pub struct Client {
    stream: TcpStream,
    address: String,
    /// How long the server may take to answer a command that it should answer immediately.
    answer: Duration,
}

impl Client {
    /// Connects. If nobody listens yet, retries for `timeout`.
    ///
    /// # Errors
    /// If nobody listened within `timeout`.
    pub fn connect(host: &str, port: u16, timeout: Duration) -> Result<Client> {
        let (start, address) = (Instant::now(), format!("{host}:{port}"));
        let stream = loop {
            match TcpStream::connect((host, port)) {
                Ok(stream) => break stream,
                Err(why) if start.elapsed() >= timeout => {
                    let why = format!("{why}; is rank 0, or its launcher, running there?");
                    return Err(Error::Store { address, why });
                }
                Err(_) => thread::sleep(Duration::from_millis(20)),
            }
        };
        let client = Client { stream, address, answer: ANSWER };
        client.done(client.stream.set_nodelay(true))?;
        client.done(client.stream.set_read_timeout(Some(ANSWER)))?;
        client.send(&Message::of(Command::Validate).u32(MAGIC))?;
        Ok(client)
    }

    /// Sets how long the server may take to answer a command that it should answer immediately. The default is one
    /// minute.
    ///
    /// # Errors
    /// I/O errors.
    pub fn answer_within(mut self, answer: Duration) -> Result<Client> {
        self.answer = answer;
        self.done(self.stream.set_read_timeout(Some(answer)))?;
        Ok(self)
    }

    /// This host's address on the connection to the store. Other ranks can connect to it.
    ///
    /// # Errors
    /// I/O errors.
    pub fn local_ip(&self) -> Result<IpAddr> {
        self.done(self.stream.local_addr()).map(|address| address.ip())
    }

    /// Sets a value.
    ///
    /// # Errors
    /// If the store is gone.
    pub fn set(&mut self, key: &str, value: &[u8]) -> Result<()> {
        self.send(&Message::of(Command::Set).bytes(key.as_bytes()).bytes(value))
    }

    /// Sets a value unless the key already has one. Returns the key's value afterwards.
    ///
    /// # Errors
    /// If the store is gone.
    pub fn set_first(&mut self, key: &str, value: &[u8]) -> Result<Vec<u8>> {
        self.send(&Message::of(Command::CompareSet).bytes(key.as_bytes()).bytes(b"").bytes(value))?;
        self.done(read_bytes(&mut &self.stream))
    }

    /// Adds to a number, which starts at 0. Returns the sum.
    ///
    /// # Errors
    /// If the store is gone.
    pub fn add(&mut self, key: &str, more: i64) -> Result<i64> {
        self.send(&Message::of(Command::Add).bytes(key.as_bytes()).i64(more))?;
        self.done(read_i64(&mut &self.stream))
    }

    /// Whether a key exists.
    ///
    /// # Errors
    /// If the store is gone.
    pub fn has(&mut self, key: &str) -> Result<bool> {
        self.send(&Message::of(Command::Check).u64(1).bytes(key.as_bytes()))?;
        self.done(read_u8(&mut &self.stream)).map(|answer| answer == READY)
    }

    /// Waits for a value and returns it. Returns `None` if nobody sets it within `timeout`.
    ///
    /// # Errors
    /// If the store is gone.
    pub fn get(&mut self, key: &str, timeout: Duration) -> Result<Option<Vec<u8>>> {
        self.start_waiting(key)?;
        if !self.is_there(timeout)? {
            self.send(&Message::of(Command::CancelWait))?;
            // If the key was set just before the cancellation, its answer arrives first.
            if self.done(read_u8(&mut &self.stream))? == WAIT_CANCELED {
                return Ok(None);
            }
            self.done(read_u8(&mut &self.stream))?;
        }
        self.send(&Message::of(Command::Get).bytes(key.as_bytes()))?;
        self.done(read_bytes(&mut &self.stream)).map(Some)
    }

    /// Asks the store to send a notice when a key exists; [`Client::is_there`] waits for it. Until the notice arrives,
    /// this connection can do nothing else.
    ///
    /// # Errors
    /// If the store is gone.
    pub fn start_waiting(&mut self, key: &str) -> Result<()> {
        self.send(&Message::of(Command::Wait).u64(1).bytes(key.as_bytes()))
    }

    /// Waits at most `timeout` for the notice requested by [`Client::start_waiting`]. Returns whether the key exists.
    ///
    /// # Errors
    /// If the store is gone.
    pub fn is_there(&mut self, timeout: Duration) -> Result<bool> {
        let timeout = timeout.max(Duration::from_millis(1));
        self.done(self.stream.set_read_timeout(Some(timeout)))?;
        let answer = loop {
            match read_u8(&mut &self.stream) {
                Err(why) if why.kind() == ErrorKind::Interrupted => {}
                other => break other,
            }
        };
        self.done(self.stream.set_read_timeout(Some(self.answer)))?;
        match answer {
            Err(why) if matches!(why.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => Ok(false),
            other => self.done(other).map(|answer| answer == STOP_WAITING),
        }
    }

    fn send(&self, message: &Message) -> Result<()> {
        self.done(message.send(&self.stream))
    }

    fn done<T>(&self, outcome: io::Result<T>) -> Result<T> {
        outcome.map_err(|why| {
            let why = match why.kind() {
                ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
                    "it closed the connection".to_owned()
                }
                ErrorKind::WouldBlock | ErrorKind::TimedOut => "it does not answer".to_owned(),
                _ => why.to_string(),
            };
            Error::Store { address: self.address.clone(), why }
        })
    }
}
