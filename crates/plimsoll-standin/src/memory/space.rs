//! Address space: device ranges without memory behind them, and host memory.
//!
//! Device addresses are handed out upwards from [`LOWEST`], or downwards from [`HIGHEST`], and wrap around after 64
//! TiB. Before that no address is reused, so that an access after free faults, too.
//!
//! Note [Up or down]: of two free blocks of the same size PyTorch takes the one at the lower address, so the order of
//! addresses can decide which block is split. A driver guarantees no order. Upwards is the easiest to follow;
//! `docs/notes/0008` compares it with a GPU.

use std::ffi::c_int;
use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{PAGE_BYTES, stray};
use crate::error::{Failure, Outcome};
use crate::gpu::{Addresses, setup};

/// The lowest device address: far from where Linux places programs, heaps and libraries.
const LOWEST: u64 = 0x1000_0000_0000;

/// The end of device addresses.
const HIGHEST: u64 = 0x5000_0000_0000;

/// How many occupied ranges a request skips before it fails.
const STEPS: u32 = 4096;

/// Bytes of address space handed out so far.
static HANDED_OUT: AtomicU64 = AtomicU64::new(0);

/// Who can access a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    /// No one: device memory.
    None,
    /// The host: managed memory.
    Host,
}

/// Whether an address may ever have been handed out for a device.
pub(super) fn is_devices(address: u64) -> bool {
    (LOWEST..HIGHEST).contains(&address) && HANDED_OUT.load(Ordering::Relaxed) > 0
}

/// The start of the next range of this size, if it fits before the end.
fn next(bytes: u64) -> Option<u64> {
    let before = HANDED_OUT.fetch_add(bytes, Ordering::Relaxed) % (HIGHEST - LOWEST);
    let end = before.checked_add(bytes).filter(|end| *end <= HIGHEST - LOWEST)?;
    Some(match setup().addresses {
        Addresses::Up => LOWEST + before,
        Addresses::Down => HIGHEST - end,
    })
}

/// Reserves a range of device addresses, in whole pages.
///
/// # Errors
///
/// `OutOfMemory` if the system has no such range.
pub(super) fn map(bytes: u64, access: Access) -> Outcome<u64> {
    stray::watch();
    let (protection, flags) = match access {
        Access::None => (libc::PROT_NONE, libc::MAP_NORESERVE),
        Access::Host => (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_NORESERVE),
    };
    for _ in 0..STEPS {
        let Some(begin) = next(bytes) else { continue };
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
/// `OutOfMemory` if the system has none.
pub(super) fn host(bytes: u64) -> Outcome<u64> {
    anonymous(0, bytes, libc::PROT_READ | libc::PROT_WRITE, 0).ok_or(Failure::OutOfMemory)
}

/// Gives back the whole pages of a part of [`host`] memory, which read as zeros from then on. Returns their addresses.
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
