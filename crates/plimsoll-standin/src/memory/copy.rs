//! Copies and fills. A copy to the host yields zeros, values that the host sent just before (`recent.rs`), or values
//! that a listener provides (`reads.rs`); a copy to a device does nothing.

use super::reads;
use super::recent::{forget_all, known, recent};
use super::{Kind, memory, space};
use crate::{comm, exchange};

/// CUDA's number for a copy's direction: `cudaMemcpyKind`.
pub(crate) const HOST_TO_DEVICE: i32 = 1;
pub(crate) const DEVICE_TO_HOST: i32 = 2;
pub(crate) const DEVICE_TO_DEVICE: i32 = 3;
pub(crate) const BY_ADDRESS: i32 = 4;

/// The minimum number of bytes for which pages are released instead of written.
const LEAST_RELEASED: usize = 1 << 20;

/// A pointer from a C caller: to host or device memory.
#[derive(Debug, Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Pointer(*mut u8);

impl Pointer {
    /// The address alone.
    pub(crate) fn address(self) -> u64 {
        self.0.addr() as u64
    }

    /// The pointer advanced by this many bytes.
    fn after(self, bytes: usize) -> Self {
        Pointer(self.0.wrapping_add(bytes))
    }

    /// Whether the host can access this address.
    fn is_hosts(self) -> bool {
        let range = memory().find(self.address());
        range.is_none_or(|range| matches!(range.kind, Kind::Host | Kind::Registered | Kind::Managed(_)))
    }
}

/// Copies `bytes` in a direction, which is CUDA's number for it.
pub(crate) fn copy(to: Pointer, from: Pointer, bytes: usize, direction: i32) {
    if bytes == 0 {
        return;
    }
    let (to_host, from_host) = match direction {
        HOST_TO_DEVICE => (false, true),
        DEVICE_TO_HOST => (true, false),
        DEVICE_TO_DEVICE => (false, false),
        BY_ADDRESS => (to.is_hosts(), from.is_hosts()),
        // A copy from host to host.
        _ => (true, true),
    };
    match (to_host, from_host) {
        (false, false) => recent().moved(to.address(), from.address(), bytes),
        // SAFETY: the caller guarantees the length, and this is host memory.
        (false, true) => recent().sent(to.address(), unsafe { std::slice::from_raw_parts(from.0, bytes) }),
        // SAFETY: the caller guarantees the length of both ranges, and both are host memory; they may overlap.
        (true, true) => unsafe { to.0.copy_from(from.0, bytes) },
        (true, false) => {
            let until = exchange::deadline();
            comm::wait_for_others(until);
            match known(from.address(), bytes, until) {
                // SAFETY: the caller guarantees that this many bytes are writable, and this is host memory.
                Some(known) => unsafe { to.0.copy_from(known.as_ptr(), bytes) },
                None => {
                    zero(to, bytes);
                    reads::unknown(to.0, from.address(), bytes);
                }
            }
        }
    }
}

/// Sets host memory to zero. For pinned memory it releases the pages, so that a program that moves its activations to
/// the host uses none of this machine's memory for them.
fn zero(to: Pointer, bytes: usize) {
    let range = if bytes < LEAST_RELEASED { None } else { memory().find(to.address()) };
    let end = to.address() + bytes as u64;
    let is_pinned = range.is_some_and(|it| matches!(it.kind, Kind::Host) && end <= it.begin + it.bytes);
    let released = if is_pinned { space::release(to.address(), bytes as u64) } else { 0..0 };
    let offset = |address: u64| usize::try_from(address - to.address()).unwrap_or(bytes);
    let (before, after) = match released.is_empty() {
        true => (bytes, bytes),
        false => (offset(released.start), offset(released.end)),
    };
    // SAFETY: the caller of `copy` guarantees that this many bytes are writable, and this is host memory.
    unsafe {
        to.0.write_bytes(0, before);
        to.after(after).0.write_bytes(0, bytes - after);
    }
}

/// Copies rows of `width` bytes that are `to_pitch` and `from_pitch` bytes apart.
pub(crate) fn copy_rows(
    (to, to_pitch): (Pointer, usize),
    (from, from_pitch): (Pointer, usize),
    (width, rows): (usize, usize),
    direction: i32,
) {
    for row in 0..rows {
        copy(to.after(row * to_pitch), from.after(row * from_pitch), width, direction);
    }
}

/// Fills `bytes` with a value, if this is host memory.
pub(crate) fn fill(to: Pointer, value: u8, bytes: usize) {
    forget_all();
    let range = memory().find(to.address());
    if range.is_some_and(|range| matches!(range.kind, Kind::Managed(_) | Kind::Host)) {
        // SAFETY: the caller guarantees that this many bytes are writable, and this is host memory.
        unsafe { to.0.write_bytes(value, bytes) };
    }
}
