//! Why buffers cannot be packed, or why a packing is wrong: [`Error`].

use std::fmt;

/// A list of buffers that cannot be packed, or a packing that is not valid.
///
/// ```
/// use plimsoll_packing::{Buffer, Error, lower_bound};
///
/// let error = lower_bound(&[Buffer { lower: 3, upper: 3, size: 1 }]).unwrap_err();
/// assert_eq!(error, Error::EmptyLifetime { index: 0, lower: 3, upper: 3 });
/// assert_eq!(error.to_string(), "buffer 0 has the empty lifetime 3..3");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// A buffer ends before it begins, or at the same time.
    EmptyLifetime {
        /// The buffer's index.
        index: usize,
        /// The first time at which it is alive.
        lower: u64,
        /// The end of its lifetime.
        upper: u64,
    },
    /// The sizes of all buffers add up to 2^62 bytes or more.
    TooLarge {
        /// The first buffer at which the sum becomes too large.
        index: usize,
    },
    /// There are 2^32 - 1 buffers or more.
    TooMany {
        /// The number of buffers.
        buffers: usize,
    },
    /// A packing has too few or too many offsets.
    WrongLength {
        /// The number of buffers.
        buffers: usize,
        /// The number of offsets.
        offsets: usize,
    },
    /// Two buffers that are alive at the same time share bytes.
    Overlap {
        /// The buffer with the lower offset.
        first: usize,
        /// The other buffer.
        second: usize,
    },
    /// A buffer ends after the arena.
    OutsideArena {
        /// The buffer's index.
        index: usize,
        /// The size of the arena.
        bytes: u64,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::EmptyLifetime { index, lower, upper } => {
                write!(f, "buffer {index} has the empty lifetime {lower}..{upper}")
            }
            Error::TooLarge { index } => {
                write!(f, "the sizes of buffers 0 to {index} add up to 2^62 bytes or more")
            }
            Error::TooMany { buffers } => write!(f, "{buffers} buffers are too many; the limit is 2^32 - 2"),
            Error::WrongLength { buffers, offsets } => {
                write!(f, "{buffers} buffers need as many offsets, not {offsets}")
            }
            Error::Overlap { first, second } => {
                write!(f, "buffers {first} and {second} are alive at the same time and share bytes")
            }
            Error::OutsideArena { index, bytes } => {
                write!(f, "buffer {index} ends after the arena of {bytes} bytes")
            }
        }
    }
}

impl std::error::Error for Error {}
