//! The values that a program has read in a rehearsal, and where.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use plimsoll_alloc::Bytes;

use crate::caller::Line;

/// How many places are listed.
const PLACES: usize = 16;

/// The values that a program has read in a rehearsal: [`Device::rehearsal`](crate::Device::rehearsal).
///
/// ```
/// use plimsoll_tensor::{Device, SimConfig, Tensor};
/// let device = Device::sim(SimConfig::new(1 << 30));
/// device.rehearse();
/// let loss = Tensor::ones(&[8], &device)?.sum()?;
/// assert_eq!(loss.item::<f32>()?, 0.0);
/// let rehearsal = device.rehearsal().unwrap();
/// assert_eq!((rehearsal.reads, rehearsal.bytes, rehearsal.places[0].op), (1, 4, "item"));
/// # Ok::<(), plimsoll_tensor::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rehearsal {
    /// How many times values were read.
    pub reads: u64,
    /// The bytes of these values, all of them zeros.
    pub bytes: u64,
    /// The first 16 places where values were read, in the order of their first read.
    pub places: Vec<ReadPlace>,
}

/// A place in the program that read values: see [`Rehearsal`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReadPlace {
    /// The operation that read the values, such as `item`.
    pub op: &'static str,
    /// The owner of the values of the first read: a layer, a parameter or an operation.
    pub label: String,
    /// The line of the program; `None` if it is not known.
    pub at: Option<Line>,
    /// The number of times that this line read values.
    pub reads: u64,
}

impl fmt::Display for Rehearsal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.reads == 0 {
            return f.write_str("no value was read");
        }
        let (reads, bytes) = (times(self.reads), Bytes(self.bytes));
        write!(f, "values were read {reads} ({bytes}): all of them zeros, because the device computes none")?;
        for place in &self.places {
            write!(f, "\n  {place}")?;
        }
        let listed: u64 = self.places.iter().map(|place| place.reads).sum();
        match self.reads - listed {
            0 => Ok(()),
            rest => write!(f, "\n  {} at other places", times(rest)),
        }
    }
}

impl fmt::Display for ReadPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ReadPlace { op, label, at, reads } = self;
        match at {
            Some(at) => write!(f, "{}:{}: ", at.file(), at.line())?,
            None => f.write_str("unknown line: ")?,
        }
        write!(f, "{op} of {label}, {}", times(*reads))
    }
}

fn times(reads: u64) -> String {
    if reads == 1 { "once".to_owned() } else { format!("{reads} times") }
}

/// The reads of a device that is rehearsing.
#[derive(Default)]
pub(super) struct Reads(Mutex<Rehearsal>);

impl Reads {
    fn lock(&self) -> MutexGuard<'_, Rehearsal> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a read of `bytes` at a place.
    pub(super) fn count(&self, place: ReadPlace, bytes: u64) {
        let mut rehearsal = self.lock();
        rehearsal.reads += 1;
        rehearsal.bytes += bytes;
        let places = &mut rehearsal.places;
        match places.iter().position(|known| (known.op, known.at) == (place.op, place.at)) {
            Some(known) => places[known].reads += 1,
            None if places.len() < PLACES => places.push(place),
            None => {}
        }
    }

    pub(super) fn so_far(&self) -> Rehearsal {
        self.lock().clone()
    }
}
