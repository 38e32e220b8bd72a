//! A rehearsal: a program runs to its end on a device that computes no values. Values that it reads are zeros, and are counted.

use super::Device;
use super::reads::{ReadPlace, Reads, Rehearsal};
use crate::caller;
use crate::error::{Error, Result};
use crate::label;

impl Device {
    /// From now on, reading values of a device that computes none (`item`, `to_vec`, a copy to the host, a file)
    /// returns zeros instead of an error, so that a program runs to its end. Results whose size depends on values have
    /// the size that zeros give: `nonzero` is empty. [`Device::rehearsal`] says how often and where values were read.
    /// Does nothing on a device with values.
    ///
    /// A simulated device asks for the same memory with and without this call. Branches that depend on values may differ from a real run.
    pub fn rehearse(&self) {
        if !self.has_values() {
            self.0.reads.get_or_init(Reads::default);
        }
    }

    /// The values that were read since [`Device::rehearse`]; `None` without it. [`Rehearsal`] has an example.
    pub fn rehearsal(&self) -> Option<Rehearsal> {
        self.0.reads.get().map(Reads::so_far)
    }

    /// Whether values can be read: the device has values, or is rehearsing.
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
        reads.count(ReadPlace { op, label: label::text(owner), at: caller::line(), reads: 1 }, bytes);
    }
}
