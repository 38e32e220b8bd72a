//! The limit on the reserved bytes: [`MemoryLimit`].
//!
//! In PyTorch: `set_fraction`, `allowed_memory_maximum`.

use crate::config::Config;
use crate::error::Error;

/// The limit on the reserved bytes, if there is one.
#[derive(Debug)]
pub(crate) struct MemoryLimit(Option<u64>);

impl MemoryLimit {
    /// The limit from `per_process_memory_fraction`.
    pub(crate) fn of_config(config: &Config, total_bytes: u64) -> Self {
        Self::of_fraction(config.per_process_memory_fraction(), total_bytes)
    }

    fn of_fraction(fraction: f64, total_bytes: u64) -> Self {
        Self((fraction < 1.0).then(|| fraction_of(fraction, total_bytes)))
    }

    /// Sets or removes the limit.
    pub(crate) fn set(&mut self, limit_bytes: Option<u64>) {
        self.0 = limit_bytes;
    }

    /// Limits the reserved bytes to a fraction of the device's memory; 1 removes the limit.
    ///
    /// # Errors
    /// [`Error::InvalidFraction`] outside 0 to 1; the limit does not change.
    pub(crate) fn set_fraction(&mut self, fraction: f64, total_bytes: u64) -> Result<(), Error> {
        if !(0.0..=1.0).contains(&fraction) {
            return Err(Error::InvalidFraction(fraction));
        }
        *self = Self::of_fraction(fraction, total_bytes);
        Ok(())
    }

    /// The limit, bytes.
    #[inline]
    pub(crate) fn bytes(&self) -> Option<u64> {
        self.0
    }

    /// Whether this many reserved bytes are allowed.
    pub(crate) fn allows(&self, reserved_bytes: u64) -> bool {
        self.0.is_none_or(|limit_bytes| reserved_bytes <= limit_bytes)
    }

    /// The limit that the garbage collection threshold is a fraction of, if both are set.
    #[inline]
    pub(crate) fn collected(&self, config: &Config) -> Option<u64> {
        self.0.filter(|_| config.garbage_collection_threshold() > 0.0)
    }
}

/// A fraction of a device's memory, rounded down to bytes.
pub(crate) fn fraction_of(fraction: f64, total_bytes: u64) -> u64 {
    (fraction * total_bytes as f64) as u64
}
