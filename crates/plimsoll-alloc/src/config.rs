//! The allocator's options: [`Config`]. A value of it is always valid; the setters refuse what is not.

use crate::error::Error;
use crate::size::{LARGE_SEGMENT_BYTES, MIN_BLOCK_BYTES, MIN_OWN_SEGMENT_BYTES};

/// The allocator's options. The default is PyTorch's.
///
/// ```
/// # use plimsoll_alloc::Config;
/// assert_eq!(Config::default().large_segment_bytes(), 20 << 20);
/// let config = Config::default().with_large_segment_bytes(64 << 20)?;
/// assert_eq!(config.large_segment_bytes(), 64 << 20);
/// # Ok::<(), plimsoll_alloc::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    large_segment_bytes: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self { large_segment_bytes: LARGE_SEGMENT_BYTES }
    }
}

impl Config {
    /// Sets the size of the segments that serve blocks between 1 MiB and 10 MiB, bytes.
    /// As PyTorch: `large_segment_size_mb`.
    ///
    /// # Errors
    /// [`Error::InvalidLargeSegment`] unless it is more than 10 MiB (every such block must fit in one) and
    /// a multiple of 512.
    pub fn with_large_segment_bytes(self, bytes: u64) -> Result<Self, Error> {
        if bytes <= MIN_OWN_SEGMENT_BYTES || !bytes.is_multiple_of(MIN_BLOCK_BYTES) {
            return Err(Error::InvalidLargeSegment { bytes });
        }
        Ok(Self { large_segment_bytes: bytes })
    }

    /// The size of the segments that serve blocks between 1 MiB and 10 MiB, bytes.
    pub fn large_segment_bytes(&self) -> u64 {
        self.large_segment_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_segment_must_hold_every_block_that_is_cut_from_one() {
        let set = |bytes| Config::default().with_large_segment_bytes(bytes);
        assert_eq!(set(10 << 20), Err(Error::InvalidLargeSegment { bytes: 10 << 20 }));
        assert_eq!(set((20 << 20) + 1), Err(Error::InvalidLargeSegment { bytes: (20 << 20) + 1 }));
        assert_eq!(set(11 << 20).map(|config| config.large_segment_bytes()), Ok(11 << 20));
    }
}
