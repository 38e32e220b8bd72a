//! A rehearsal: a program runs to its end on a device that computes no values. Values that it reads are zeros, and are counted.

use std::fmt;
use std::panic::Location;
use std::sync::{Mutex, MutexGuard, PoisonError};

use plimsoll_alloc::Bytes;

use super::Device;
use crate::caller;
use crate::error::{Error, Result};
use crate::label;

/// How many places are listed.
const PLACES: usize = 16;

/// The values that a program has read in a rehearsal: [`Device::rehearsal`].
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
    /// The operation that read them, such as `item`.
    pub op: &'static str,
    /// The owner of the values of the first read: a layer, a parameter or an operation.
    pub label: String,
    /// The line of the program; `None` if it is not known.
    pub at: Option<&'static Location<'static>>,
    /// How many times it read values.
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
}

impl Device {
    /// From now on, reading values of a device that computes none (`item`, `to_vec`, a copy to the host, a file) gives zeros instead of
    /// an error, so that a program runs to its end. Results whose size depends on values have the size that zeros give: `nonzero` is
    /// empty. [`Device::rehearsal`] says how often and where values were read. Does nothing on a device with values.
    ///
    /// A simulated device asks for the same memory with and without this call. Branches that depend on values may differ from a real run.
    pub fn rehearse(&self) {
        if !self.has_values() {
            self.0.reads.get_or_init(Reads::default);
        }
    }

    /// The values that were read since [`Device::rehearse`]; `None` without it. [`Rehearsal`] has an example.
    pub fn rehearsal(&self) -> Option<Rehearsal> {
        self.0.reads.get().map(|reads| reads.lock().clone())
    }

    /// Whether values can be read: it has some, or is rehearsing.
    pub(crate) fn has_readable_values(&self) -> bool {
        self.has_values() || self.0.reads.get().is_some()
    }

    /// Checks that `op` can read values of this device.
    ///
    /// # Errors
    /// A device that computes no values and is not rehearsing.
    pub(crate) fn want_readable(&self, op: &'static str) -> Result<()> {
        if self.has_readable_values() {
            return Ok(());
        }
        Err(Error::NoValues { op, device: self.name().to_owned() })
    }

    /// Counts a read of values that are zeros.
    pub(crate) fn count_read(&self, op: &'static str, owner: label::LabelId, bytes: u64) {
        let Some(reads) = self.0.reads.get() else { return };
        let (label, at) = (label::text(owner), caller::line());
        let mut rehearsal = reads.lock();
        rehearsal.reads += 1;
        rehearsal.bytes += bytes;
        let places = &mut rehearsal.places;
        match places.iter().position(|place| (place.op, place.at) == (op, at)) {
            Some(known) => places[known].reads += 1,
            None if places.len() < PLACES => places.push(ReadPlace { op, label, at, reads: 1 }),
            None => {}
        }
    }
}
