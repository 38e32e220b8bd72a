//! The functions that this library replaces: each is looked up once, in the next library that has it ([`real`]).
//!
//! The loader may allocate while it looks them up. Such requests get memory from [`early`], which is never freed.

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use crate::sys;

/// Bytes for requests during the first lookups.
const ROOM: usize = 256 << 10;

#[repr(align(4096))]
struct Early(UnsafeCell<[u8; ROOM]>);

// SAFETY: each request gets a separate part.
unsafe impl Sync for Early {}

static EARLY: Early = Early(UnsafeCell::new([0; ROOM]));
static TAKEN: AtomicUsize = AtomicUsize::new(0);

/// A function that is looked up on first use.
pub(crate) struct Known {
    name: &'static CStr,
    place: AtomicPtr<c_void>,
}

impl Known {
    pub(crate) const fn named(name: &'static CStr) -> Known {
        Known { name, place: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Its address; null if it is being looked up, or no library has it.
    pub(crate) fn place(&self) -> *mut c_void {
        /// An address that stands for a lookup in progress.
        const BUSY: *mut c_void = ptr::without_provenance_mut(1);
        let known = self.place.load(Ordering::Acquire);
        if !known.is_null() {
            return if known == BUSY { ptr::null_mut() } else { known };
        }
        if self.place.compare_exchange(known, BUSY, Ordering::AcqRel, Ordering::Acquire).is_err() {
            return ptr::null_mut();
        }
        let found = sys::next(self.name);
        self.place.store(found, Ordering::Release);
        found
    }
}

/// The replaced function with this name, as an option: `real!(c"free": fn(*mut c_void))`.
macro_rules! real {
    ($name:literal: fn($($kind:ty),*) $(-> $result:ty)?) => {{
        static KNOWN: $crate::real::Known = $crate::real::Known::named($name);
        let place = KNOWN.place();
        // SAFETY: null is `None`, and the next library's function has the type at the use, which is the C library's or CUDA's.
        unsafe { std::mem::transmute::<*mut std::ffi::c_void, Option<unsafe extern "C" fn($($kind),*) $(-> $result)?>>(place) }
    }};
}
pub(crate) use real;

/// Zeroed memory for a request during a lookup; null if there is none left.
pub(crate) fn early(bytes: usize, alignment: usize) -> *mut c_void {
    let alignment = alignment.max(16);
    let taken = bytes.saturating_add(alignment);
    let begin = TAKEN.fetch_add(taken, Ordering::Relaxed);
    if begin.saturating_add(taken) > ROOM {
        return ptr::null_mut();
    }
    let base = EARLY.0.get().cast::<u8>();
    // The array itself begins at a page boundary.
    base.wrapping_add(begin.next_multiple_of(alignment)).cast()
}

/// Whether this is memory of [`early`].
pub(crate) fn is_early(memory: *mut c_void) -> bool {
    let begin = EARLY.0.get().addr();
    (begin..begin + ROOM).contains(&memory.addr())
}

/// The number of bytes from this address in [`early`] to its end.
pub(crate) fn room_after(memory: *mut c_void) -> usize {
    EARLY.0.get().addr() + ROOM - memory.addr()
}
