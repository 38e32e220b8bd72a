//! Address space: ranges for the devices, which no memory stands behind, and memory of the host.
//!
//! Addresses of devices are handed out upwards from [`LOWEST`], or downwards from [`HIGHEST`]. After 64 TiB
//! they begin anew; before that each is handed out once, so that a pointer that is used after its memory was
//! freed faults, too.
//!
//! Note [Up or down]: of two free blocks of one size PyTorch takes the lower one, so that the order of
//! addresses can decide which block is cut. A driver promises no order. Upwards is what is easy to follow;
//! `docs/notes/0008` says what a card did.

use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{PAGE_BYTES, stray};
use crate::error::{Failure, Outcome};
use crate::gpu::{Addresses, setup};

/// Where the devices' addresses begin: far from where Linux puts programs, heaps and libraries.
const LOWEST: u64 = 0x1000_0000_0000;

/// Where they end.
const HIGHEST: u64 = 0x5000_0000_0000;

/// How many ranges that somebody else has are stepped over before a request is given up.
const STEPS: u32 = 4096;

/// How many bytes of addresses have been handed out.
static HANDED_OUT: AtomicU64 = AtomicU64::new(0);

/// Who may touch a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    /// Nobody: a device's memory.
    None,
    /// The host: managed memory.
    Host,
}

/// Whether an address may have been handed out for a device, at any time.
pub(super) fn is_devices(address: u64) -> bool {
    (LOWEST..HIGHEST).contains(&address) && HANDED_OUT.load(Ordering::Relaxed) > 0
}

/// Where the next range of so many bytes begins, if it fits before the end.
fn next(bytes: u64) -> Option<u64> {
    let before = HANDED_OUT.fetch_add(bytes, Ordering::Relaxed) % (HIGHEST - LOWEST);
    let end = before.checked_add(bytes).filter(|end| *end <= HIGHEST - LOWEST)?;
    Some(match setup().addresses {
        Addresses::Up => LOWEST + before,
        Addresses::Down => HIGHEST - end,
    })
}

/// Takes a range of device addresses, of whole pages.
///
/// # Errors
///
/// `OutOfMemory` if the system has no such range left.
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

/// Memory of the host, all zero, wherever the system puts it.
///
/// # Errors
///
/// `OutOfMemory` if the system has none.
pub(super) fn host(bytes: u64) -> Outcome<u64> {
    anonymous(0, bytes, libc::PROT_READ | libc::PROT_WRITE, 0).ok_or(Failure::OutOfMemory)
}

/// Gives a range back.
pub(super) fn unmap(begin: u64, bytes: u64) {
    let Ok(length) = usize::try_from(bytes) else { return };
    // SAFETY: the range was mapped by this file, and the caller has just removed it from its table, where it
    // was once: nothing of ours uses it. That the program does not either is what freeing it says.
    unsafe { libc::munmap(begin as *mut _, length) };
}

fn anonymous(at: u64, bytes: u64, protection: c_int, flags: c_int) -> Option<u64> {
    let length = usize::try_from(bytes).ok()?;
    let flags = flags | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new anonymous mapping; `MAP_FIXED_NOREPLACE`, where an address is given, refuses to replace
    // one that exists.
    let mapped = unsafe {
        libc::mmap(ptr::without_provenance_mut(usize::try_from(at).ok()?), length, protection, flags, -1, 0)
    };
    let mapped = (mapped != libc::MAP_FAILED).then_some(mapped.expose_provenance() as u64)?;
    // Before Linux 4.17 the system takes the address as a wish.
    (at == 0 || mapped == at).then_some(mapped)
}
