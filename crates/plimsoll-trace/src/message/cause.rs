//! Whether memory was short or fragmented, judged from a message alone: [`Shortage`].

use super::wording::OutOfMemory;
use crate::failure::Cause;

/// Why a request was not served, with the figures behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shortage {
    /// Capacity, fragmentation, a limit, or unknown.
    pub cause: Cause,
    /// Free memory that the request could have used if it were contiguous: the GPU's free memory, and what the
    /// allocator caches.
    pub free_bytes: Option<u64>,
    /// The possible error of the missing or spare bytes, because the message's figures have only two decimals. A cause
    /// that rests on fewer bytes than this is a guess.
    pub rounding_bytes: u64,
    /// Whether other processes use at least as much memory as was missing.
    pub held_by_others: bool,
}

impl OutOfMemory {
    /// Why the request was not served.
    pub fn shortage(&self) -> Shortage {
        let unknown =
            Shortage { cause: Cause::Unknown, free_bytes: None, rounding_bytes: 0, held_by_others: false };
        let Some(requested) = self.requested_bytes else { return unknown };
        let Some(free_bytes) = self.available_bytes() else { return unknown };
        let others: u64 = self.true_others().iter().map(|(_, bytes)| bytes).sum();
        let cause = if requested <= free_bytes {
            Cause::Fragmentation { spare_bytes: free_bytes - requested }
        } else if self.is_limited() {
            Cause::Limit { short_bytes: requested - free_bytes }
        } else {
            Cause::Capacity { short_bytes: requested - free_bytes }
        };
        let held_by_others = matches!(cause, Cause::Capacity { short_bytes } if others >= short_bytes);
        let figures = [self.requested_bytes, self.free_bytes, self.allocated_bytes, self.reserved_bytes];
        let rounding_bytes = figures.into_iter().flatten().map(rounding).sum();
        Shortage { cause, free_bytes: Some(free_bytes), rounding_bytes, held_by_others }
    }

    /// Cached memory, plus what the device or the limit leaves.
    fn available_bytes(&self) -> Option<u64> {
        // The limit of Metal's allocator also counts memory that other parts of the process use.
        let used = self.process_bytes.filter(|_| self.capacity_bytes.is_none()).or(self.allocated_bytes);
        let of_limit = self.limit_bytes.zip(used);
        let of_limit = of_limit.map(|(limit, used)| limit.saturating_sub(used));
        let of_device = self.free_bytes.zip(self.cached_bytes()).map(|(free, cached)| free + cached);
        match (of_device, of_limit) {
            (Some(device), Some(limit)) => Some(device.min(limit)),
            (device, limit) => device.or(limit),
        }
    }

    /// Whether the limit leaves less memory than the device.
    fn is_limited(&self) -> bool {
        let device = self.free_bytes.zip(self.cached_bytes()).map(|(free, cached)| free + cached);
        self.limit_bytes.is_some() && device.is_none_or(|device| self.available_bytes() < Some(device))
    }
}

/// Half a unit of the last decimal that PyTorch prints for a size of this magnitude.
fn rounding(bytes: u64) -> u64 {
    let unit = [1u64 << 30, 1 << 20, 1 << 10].into_iter().find(|unit| bytes >= *unit);
    unit.map_or(0, |unit| unit / 200)
}
