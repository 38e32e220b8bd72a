//! Whether memory was short or fragmented, judged from a message alone: [`Shortage`].

use super::wording::OutOfMemory;
use crate::failure::Cause;

/// The reason why a request failed, with its figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shortage {
    /// Capacity, fragmentation, a limit, or unknown.
    pub cause: Cause,
    /// Free memory that the request could have used if it were contiguous: the GPU's free memory, and the memory that
    /// the allocator caches.
    pub free_bytes: Option<u64>,
    /// The possible error in the missing or spare bytes, because the message's figures have only two decimals. If a
    /// cause is based on a difference of fewer bytes than this, it is uncertain.
    pub rounding_bytes: u64,
    /// Whether other processes use at least as much memory as was missing.
    pub held_by_others: bool,
    /// The number of bytes that the GPU lacked; `None` if it had enough, or if that is unknown.
    pub device_short_bytes: Option<u64>,
    /// The number of bytes by which the process's limit was too low; `None` if the limit was high enough, or if there
    /// is no limit. If the GPU also lacked memory, neither a higher limit nor a larger GPU is enough.
    pub limit_short_bytes: Option<u64>,
}

impl OutOfMemory {
    /// The reason why the request failed.
    pub fn shortage(&self) -> Shortage {
        let unknown = Shortage {
            cause: Cause::Unknown,
            free_bytes: None,
            rounding_bytes: 0,
            held_by_others: false,
            device_short_bytes: None,
            limit_short_bytes: None,
        };
        let Some(requested) = self.requested_bytes else { return unknown };
        let limit = self.limit_left_bytes();
        let device =
            self.device_left_bytes().or_else(|| self.most_left_bytes().filter(|most| *most < requested));
        let is_limit_short = limit.is_some_and(|limit| limit < requested);
        if device.is_none() && self.capacity_bytes.is_some() && !is_limit_short {
            return unknown;
        }
        let Some(free_bytes) = device.into_iter().chain(limit).min() else { return unknown };
        let figures = [self.requested_bytes, self.free_bytes, self.allocated_bytes, self.reserved_bytes];
        let rounding_bytes: u64 = figures.into_iter().flatten().map(rounding).sum();
        let short =
            |left: Option<u64>| left.map(|left| requested.saturating_sub(left)).filter(|short| *short > 0);
        let (device_short_bytes, limit_short_bytes) = (short(device), short(limit));
        let cause = match (device_short_bytes, limit_short_bytes) {
            (None, None) => Cause::Fragmentation { spare_bytes: free_bytes - requested },
            (None, Some(short_bytes)) => Cause::Limit { short_bytes },
            (Some(device), Some(short_bytes)) if device < short_bytes => Cause::Limit { short_bytes },
            (Some(short_bytes), _) => Cause::Capacity { short_bytes },
        };
        let others = self.least_others_bytes();
        let held_by_others = matches!(cause, Cause::Capacity { short_bytes } if others >= short_bytes);
        Shortage {
            cause,
            free_bytes: Some(free_bytes),
            rounding_bytes,
            held_by_others,
            device_short_bytes,
            limit_short_bytes,
        }
    }

    /// The device's free memory, plus the memory that the allocator caches.
    fn device_left_bytes(&self) -> Option<u64> {
        self.free_bytes.zip(self.cached_bytes()).map(|(free, cached)| free + cached)
    }

    /// The most memory that the device may have left, if the message does not say how much the allocator reserves.
    fn most_left_bytes(&self) -> Option<u64> {
        self.capacity_bytes
            .filter(|_| self.reserved_bytes.is_none())
            .zip(self.allocated_bytes)
            .map(|(capacity, own)| capacity.saturating_sub(own))
    }

    /// The bytes between the memory in tensors and the limit.
    fn limit_left_bytes(&self) -> Option<u64> {
        // The limit of Metal's allocator also counts memory that the process uses outside the allocator.
        let used = self.process_bytes.filter(|_| self.capacity_bytes.is_none()).or(self.allocated_bytes);
        self.limit_bytes.zip(used).map(|(limit, used)| limit.saturating_sub(used))
    }
}

/// Half a unit of the last decimal that PyTorch prints for a size of this magnitude.
fn rounding(bytes: u64) -> u64 {
    let unit = [1u64 << 30, 1 << 20, 1 << 10].into_iter().find(|unit| bytes >= *unit);
    unit.map_or(0, |unit| unit / 200)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_and_the_gpu_may_both_be_short() {
        let check = |free: u64, allowed: u64, cause: Cause, device: Option<u64>, limit: Option<u64>| {
            let text = format!(
                "CUDA out of memory. Tried to allocate 1024.00 MiB (GPU 0; 80.00 GiB total capacity; 60.00 GiB already allocated; {free}.00 MiB \
                 free; {allowed}.00 MiB allowed; 60.00 GiB reserved in total by PyTorch)"
            );
            let found = OutOfMemory::parse(&text).expect("a message").shortage();
            let mib = |bytes: Option<u64>| bytes.map(|bytes| bytes >> 20);
            assert_eq!(
                (found.cause, mib(found.device_short_bytes), mib(found.limit_short_bytes)),
                (cause, device, limit),
                "{text}"
            );
        };
        let (limit, capacity) = (
            |mib: u64| Cause::Limit { short_bytes: mib << 20 },
            |mib: u64| Cause::Capacity { short_bytes: mib << 20 },
        );
        // 60 GiB is 61,440 MiB.
        check(600, 61_940, limit(524), Some(424), Some(524));
        check(300, 61_940, capacity(724), Some(724), Some(524));
        check(2000, 61_940, limit(524), None, Some(524));
        check(300, 65_000, capacity(724), Some(724), None);
        check(2000, 65_000, Cause::Fragmentation { spare_bytes: 976 << 20 }, None, None);
    }
}
