//! The wire format of PyTorch's TCPStore: one byte for the command, little-endian numbers, and strings and values preceded by
//! their length in 64 bits.

use std::io::{self, Read, Write};

/// The number that a client sends first, after [`Command::Validate`].
pub(super) const MAGIC: u32 = 0x3C85_F7CE;
/// The longest key or value that is accepted. A longer one means that the peer speaks a different protocol.
const MOST_BYTES: u64 = 1 << 30;
/// The maximum number of keys in one command.
const MOST_KEYS: u64 = 1 << 20;

/// The answer to [`Command::Wait`] once all keys exist.
pub(super) const STOP_WAITING: u8 = 0;
/// The answer to [`Command::CancelWait`].
pub(super) const WAIT_CANCELED: u8 = 1;
/// The answer to [`Command::Check`] if all keys exist.
pub(super) const READY: u8 = 0;
/// The answer to [`Command::Check`] if a key is missing.
pub(super) const NOT_READY: u8 = 1;

/// A request from a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Command {
    Validate = 0,
    Set = 1,
    CompareSet = 2,
    Get = 3,
    Add = 4,
    Check = 5,
    Wait = 6,
    CountKeys = 7,
    Delete = 8,
    Append = 9,
    GetMany = 10,
    SetMany = 11,
    CancelWait = 12,
    Ping = 13,
}

impl Command {
    const ALL: [Command; 14] = [
        Command::Validate,
        Command::Set,
        Command::CompareSet,
        Command::Get,
        Command::Add,
        Command::Check,
        Command::Wait,
        Command::CountKeys,
        Command::Delete,
        Command::Append,
        Command::GetMany,
        Command::SetMany,
        Command::CancelWait,
        Command::Ping,
    ];

    pub(super) fn from_wire(byte: u8) -> Option<Command> {
        Command::ALL.get(usize::from(byte)).copied()
    }
}

/// A message under construction, which is then sent in one piece.
#[derive(Default)]
pub(super) struct Message(Vec<u8>);

impl Message {
    pub(super) fn of(command: Command) -> Message {
        Message(vec![command as u8])
    }

    pub(super) fn byte(mut self, byte: u8) -> Message {
        self.0.push(byte);
        self
    }

    pub(super) fn u32(mut self, number: u32) -> Message {
        self.0.extend(number.to_le_bytes());
        self
    }

    pub(super) fn u64(mut self, number: u64) -> Message {
        self.0.extend(number.to_le_bytes());
        self
    }

    pub(super) fn i64(mut self, number: i64) -> Message {
        self.0.extend(number.to_le_bytes());
        self
    }

    pub(super) fn bytes(self, bytes: &[u8]) -> Message {
        let mut message = self.u64(bytes.len() as u64);
        message.0.extend(bytes);
        message
    }

    pub(super) fn send(&self, mut to: impl Write) -> io::Result<()> {
        to.write_all(&self.0)?;
        to.flush()
    }
}

pub(super) fn read_u8(from: &mut impl Read) -> io::Result<u8> {
    read_array::<1>(from).map(|[byte]| byte)
}

pub(super) fn read_u32(from: &mut impl Read) -> io::Result<u32> {
    read_array(from).map(u32::from_le_bytes)
}

pub(super) fn read_i64(from: &mut impl Read) -> io::Result<i64> {
    read_array(from).map(i64::from_le_bytes)
}

/// Reads a string or value. Memory is allocated as bytes arrive, so a bogus length does not allocate any.
pub(super) fn read_bytes(from: &mut impl Read) -> io::Result<Vec<u8>> {
    let length = read_length(from, MOST_BYTES)?;
    let mut bytes = Vec::new();
    from.take(length).read_to_end(&mut bytes)?;
    if bytes.len() as u64 == length { Ok(bytes) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

/// Reads the number of keys or pairs.
pub(super) fn read_count(from: &mut impl Read) -> io::Result<u64> {
    read_length(from, MOST_KEYS)
}

/// Reads a list of keys, preceded by their number.
pub(super) fn read_keys(from: &mut impl Read) -> io::Result<Vec<Vec<u8>>> {
    let count = read_count(from)?;
    (0..count).map(|_| read_bytes(from)).collect()
}

fn read_length(from: &mut impl Read, most: u64) -> io::Result<u64> {
    let length = read_array(from).map(u64::from_le_bytes)?;
    if length <= most {
        return Ok(length);
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidData,
        format!("a length of {length}: this is not PyTorch's store protocol"),
    ))
}

fn read_array<const N: usize>(from: &mut impl Read) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}
