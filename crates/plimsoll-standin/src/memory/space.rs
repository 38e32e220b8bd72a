//! Address space: device ranges with no memory behind them, and host memory.
//!
//! Device addresses are assigned downwards from [`HIGHEST`], as a driver does, or upwards from [`LOWEST`], and wrap
//! around after 64 TiB. Before that no address is reused, so an access after free also faults.
//!
//! Note [A driver's addresses]: of two free blocks of the same size, PyTorch takes the one at the lower address. So
//! the order of addresses decides which block is split, and therefore how much memory is cached. A driver guarantees
//! no order. On an H200 (driver 580), `cudaMalloc` takes address space in multiples of 32 MiB, each range below the
//! ones before, and places a smaller request in the remainder of the lowest range that has enough left. The upward
//! order is easier to follow. `docs/measurements/predict.md` compares both with a GPU.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use super::PAGE_BYTES;
use crate::error::{Failure, Outcome};
use crate::gpu::{Addresses, setup};

/// The lowest device address: far from where Linux places programs, heaps and libraries.
const LOWEST: u64 = 0x1000_0000_0000;

/// The end of device addresses.
const HIGHEST: u64 = 0x5000_0000_0000;

/// How many occupied ranges a request skips before it fails.
const STEPS: u32 = 4096;

/// Bytes of address space assigned so far.
static HANDED_OUT: AtomicU64 = AtomicU64::new(0);

/// A driver's ranges are multiples of this. Smaller allocations use the remainder of a range's last chunk.
const CHUNK_BYTES: u64 = 32 << 20;

static RESTS: Mutex<Rests> = Mutex::new(Rests(BTreeMap::new()));

/// Who can access a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    /// No one: device memory.
    None,
    /// The host: managed memory.
    Host,
}

/// Whether an address may ever have been assigned to a device.
pub(super) fn is_devices(address: u64) -> bool {
    (LOWEST..HIGHEST).contains(&address) && HANDED_OUT.load(Ordering::Relaxed) > 0
}

/// The start of the next range of this size, if it fits before the end.
fn next(bytes: u64) -> Option<u64> {
    let before = HANDED_OUT.fetch_add(bytes, Ordering::Relaxed) % (HIGHEST - LOWEST);
    let end = before.checked_add(bytes).filter(|end| *end <= HIGHEST - LOWEST)?;
    Some(match setup().addresses {
        Addresses::Up => LOWEST + before,
        Addresses::Driver => HIGHEST - end,
    })
}

/// The unused ends of the last chunks of allocations: the start and end of each.
struct Rests(BTreeMap<u64, u64>);

impl Rests {
    /// Takes a range from the lowest remainder that is large enough, or from new chunks, which `next`
    /// returns.
    fn take(&mut self, bytes: u64, next: impl FnOnce(u64) -> Option<u64>) -> Option<u64> {
        let fitting =
            self.0.iter().map(|(begin, end)| (*begin, *end)).find(|(begin, end)| end - begin >= bytes);
        let (begin, end) = match fitting {
            Some(rest) => rest,
            None => {
                let whole = bytes.checked_next_multiple_of(CHUNK_BYTES)?;
                let begin = next(whole)?;
                (begin, begin + whole)
            }
        };
        self.0.remove(&begin);
        if begin + bytes < end {
            self.0.insert(begin + bytes, end);
        }
        Some(begin)
    }
}

/// Reserves a range of device addresses, in whole pages.
///
/// # Errors
///
/// `OutOfMemory` if the system has no such range.
pub(super) fn map(bytes: u64, access: Access) -> Outcome<u64> {
    let (protection, flags) = match access {
        Access::None => (libc::PROT_NONE, libc::MAP_NORESERVE),
        Access::Host => (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_NORESERVE),
    };
    for _ in 0..STEPS {
        let begin = match setup().addresses {
            Addresses::Up => next(bytes),
            Addresses::Driver => RESTS.lock().unwrap_or_else(PoisonError::into_inner).take(bytes, next),
        };
        let Some(begin) = begin else { continue };
        debug_assert!(begin.is_multiple_of(PAGE_BYTES));
        if let Some(mapped) = anonymous(begin, bytes, protection, flags | libc::MAP_FIXED_NOREPLACE) {
            return Ok(mapped);
        }
    }
    Err(Failure::OutOfMemory)
}

/// Host memory, zeroed, at an address of the system's choice.
///
/// # Errors
///
/// The system is out of memory.
pub(super) fn host(bytes: u64) -> Outcome<u64> {
    anonymous(0, bytes, libc::PROT_READ | libc::PROT_WRITE, 0).ok_or(Failure::OutOfMemory)
}

/// Releases all complete pages inside a part of [`host`] memory, which read as zeros from then on. Returns their
/// addresses.
pub(super) fn release(begin: u64, bytes: u64) -> Range<u64> {
    // SAFETY: it only reads a setting of the system.
    let page = u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096).max(1);
    let (first, last) = (begin.next_multiple_of(page), (begin + bytes) / page * page);
    let Ok(length) = usize::try_from(last.saturating_sub(first)) else { return 0..0 };
    // SAFETY: these pages are within a private anonymous mapping of this file, which stays mapped.
    let done = length > 0 && unsafe { libc::madvise(first as *mut _, length, libc::MADV_DONTNEED) } == 0;
    if done { first..last } else { 0..0 }
}

/// Releases a range.
pub(super) fn unmap(begin: u64, bytes: u64) {
    let Ok(length) = usize::try_from(bytes) else { return };
    // SAFETY: this file mapped the range, and the caller has just removed its only table entry: nothing of ours uses
    // it. The program promises not to use it by freeing it.
    unsafe { libc::munmap(begin as *mut _, length) };
}

fn anonymous(at: u64, bytes: u64, protection: c_int, flags: c_int) -> Option<u64> {
    let length = usize::try_from(bytes).ok()?;
    let flags = flags | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new anonymous mapping; with an address, `MAP_FIXED_NOREPLACE` never replaces an existing one.
    let mapped = unsafe {
        libc::mmap(ptr::without_provenance_mut(usize::try_from(at).ok()?), length, protection, flags, -1, 0)
    };
    let mapped = (mapped != libc::MAP_FAILED).then_some(mapped.expose_provenance() as u64)?;
    // Before Linux 4.17 the address is only a hint.
    (at == 0 || mapped == at).then_some(mapped)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The addresses of an H200 for a U-Net, without the part that is common to all (note 0008).
    #[test]
    fn small_ranges_are_taken_from_the_lowest_rest_as_by_a_driver() {
        let mib = |number: u64| number << 20;
        let (mut rests, mut lowest) = (Rests(BTreeMap::new()), mib(10_000));
        let mut take = |size| {
            let taken = rests.take(mib(size), |whole| {
                lowest -= whole;
                Some(lowest)
            });
            taken.unwrap() >> 20
        };
        assert_eq!(
            [194, 48, 98].map(&mut take),
            [9_776, 9_712, 9_584],
            "each range below, in multiples of 32 MiB"
        );
        assert_eq!(take(24), 9_584 + 98, "the rest of the lowest");
        assert_eq!(take(46), 9_520, "larger than a chunk: of its own");
        assert_eq!(
            [24, 24].map(&mut take),
            [9_776 + 194, 9_488],
            "the next rest that is large enough, then none is"
        );
        assert_eq!([2, 2].map(&mut take), [9_488 + 24, 9_488 + 26]);
    }
}
