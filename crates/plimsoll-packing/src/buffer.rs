//! A buffer with a fixed lifetime ([`Buffer`]), the checks for a list of buffers, and the lower bound of their arena.

use crate::Error;

/// A buffer that needs `size` bytes at all times in `lower..upper`.
///
/// Times are any increasing numbers, such as the index of a request. Two buffers whose lifetimes only touch (one ends
/// at the time at which the other begins) may use the same bytes.
///
/// ```
/// use plimsoll_packing::{Buffer, lower_bound};
///
/// let buffers = [Buffer { lower: 0, upper: 4, size: 512 }, Buffer { lower: 2, upper: 6, size: 1024 }];
/// assert_eq!(lower_bound(&buffers)?, 1536);
/// # Ok::<(), plimsoll_packing::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// The first time at which the buffer is alive.
    pub lower: u64,
    /// The first later time at which the buffer is not alive.
    pub upper: u64,
    /// Its size in bytes. A multiple of the alignment, if offsets must be aligned: see [`pack`](crate::pack).
    pub size: u64,
}

impl Buffer {
    /// Whether both buffers are alive at some time.
    pub fn overlaps(&self, other: &Buffer) -> bool {
        self.lower < other.upper && other.lower < self.upper
    }
}

/// The maximum over time of the total size of all live buffers. No arena can be smaller.
///
/// # Errors
///
/// [`Error::EmptyLifetime`], [`Error::TooLarge`].
pub fn lower_bound(buffers: &[Buffer]) -> Result<u64, Error> {
    peak(buffers).map(|(_, bytes)| bytes)
}

/// The first time at which the total size of all live buffers is largest, and that size; both are 0 without buffers.
///
/// ```
/// use plimsoll_packing::{Buffer, peak};
/// let buffers = [(0, 4, 10), (2, 6, 20), (5, 9, 5)].map(|(lower, upper, size)| Buffer { lower, upper, size });
/// assert_eq!(peak(&buffers)?, (2, 30));
/// # Ok::<(), plimsoll_packing::Error>(())
/// ```
///
/// # Errors
///
/// The same errors as [`lower_bound`].
pub fn peak(buffers: &[Buffer]) -> Result<(u64, u64), Error> {
    check_buffers(buffers)?;
    // Ends come before beginnings at the same time, because lifetimes are half-open.
    let ends = buffers.iter().map(|buffer| (buffer.upper, false, buffer.size));
    let mut events: Vec<(u64, bool, u64)> = ends.collect();
    events.extend(buffers.iter().map(|buffer| (buffer.lower, true, buffer.size)));
    events.sort_unstable();
    let (mut live, mut at, mut most) = (0, 0, 0);
    for (time, begins, size) in events {
        live = if begins { live + size } else { live - size };
        if live > most {
            (at, most) = (time, live);
        }
    }
    Ok((at, most))
}

/// Rejects lists that cannot be packed, so that no sum of sizes overflows later.
pub(crate) fn check_buffers(buffers: &[Buffer]) -> Result<(), Error> {
    let mut sum = 0u64;
    for (index, buffer) in buffers.iter().enumerate() {
        if buffer.lower >= buffer.upper {
            return Err(Error::EmptyLifetime { index, lower: buffer.lower, upper: buffer.upper });
        }
        sum =
            sum.checked_add(buffer.size).filter(|&sum| sum < MOST_BYTES).ok_or(Error::TooLarge { index })?;
    }
    Ok(())
}

/// The sum of all sizes stays below this number, so offsets plus any size fit into 63 bits.
const MOST_BYTES: u64 = 1 << 62;
