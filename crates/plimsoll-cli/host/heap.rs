//! The C library's functions for the heap, and `_exit`.

use std::ffi::{c_int, c_void};
use std::ptr;

use crate::ledger::{Kind, LARGE, LEDGER, Piece};
use crate::owners::{self, Owner};
use crate::real::{early, is_early, real};
use crate::{moments, sys};

/// Requests of this size are rare enough that we can read the clock.
const MEDIUM: usize = 64 << 10;

const ENOMEM: c_int = 12;

/// Records a request that was answered with this memory.
fn made(memory: *mut c_void, bytes: usize, without: Owner) -> *mut c_void {
    if bytes >= MEDIUM && !memory.is_null() && moments::is_on() {
        // Sampled without it, because none of its pages is resident yet.
        moments::now_and_then();
        if bytes >= LARGE {
            let (begin, bytes, owner) = (memory.addr() as u64, bytes as u64, owners::current(without));
            LEDGER.lock().add(Piece { begin, bytes, kind: Kind::Private, owner });
        }
    }
    memory
}

/// Forgets memory that is about to be freed. Returns its entry, if there is one.
fn ends(memory: *mut c_void) -> Option<Piece> {
    let usable = real!(c"malloc_usable_size": fn(*mut c_void) -> usize)?;
    // SAFETY: the program's own memory, which it is about to free.
    let bytes = if moments::is_on() { unsafe { usable(memory) } } else { 0 };
    if bytes < LARGE {
        if bytes >= MEDIUM {
            moments::now_and_then();
        }
        return None;
    }
    moments::before_free();
    LEDGER.lock().remove(memory.addr() as u64)
}

fn aligned(memory: *mut c_void, bytes: usize) -> *mut c_void {
    made(memory, bytes, Owner::TENSORS)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc(bytes: usize) -> *mut c_void {
    match real!(c"malloc": fn(usize) -> *mut c_void) {
        // SAFETY: passes on the program's own call.
        Some(real) => made(unsafe { real(bytes) }, bytes, Owner::OTHER),
        None => early(bytes, 16),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn calloc(count: usize, bytes: usize) -> *mut c_void {
    match real!(c"calloc": fn(usize, usize) -> *mut c_void) {
        // SAFETY: passes on the program's own call.
        Some(real) => made(unsafe { real(count, bytes) }, count.saturating_mul(bytes), Owner::OTHER),
        None => early(count.saturating_mul(bytes), 16),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn realloc(memory: *mut c_void, bytes: usize) -> *mut c_void {
    let Some(real) = real!(c"realloc": fn(*mut c_void, usize) -> *mut c_void) else {
        return early(bytes, 16);
    };
    if is_early(memory) {
        // SAFETY: `malloc` has no conditions.
        let new = unsafe { malloc(bytes) };
        if !new.is_null() {
            let room = crate::real::room_after(memory).min(bytes);
            // SAFETY: both have that many bytes, and do not overlap.
            unsafe { ptr::copy_nonoverlapping(memory.cast::<u8>(), new.cast::<u8>(), room) };
        }
        return new;
    }
    let before = if memory.is_null() { None } else { ends(memory) };
    // SAFETY: passes on the program's own call.
    let new = unsafe { real(memory, bytes) };
    match before {
        Some(piece) if new.is_null() && bytes > 0 => LEDGER.lock().add(piece),
        Some(piece) => return made(new, bytes, piece.owner),
        None => return made(new, bytes, Owner::OTHER),
    }
    new
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn reallocarray(memory: *mut c_void, count: usize, bytes: usize) -> *mut c_void {
    match count.checked_mul(bytes) {
        // SAFETY: passes on the program's own call.
        Some(bytes) => unsafe { realloc(memory, bytes) },
        None => {
            sys::set_errno(ENOMEM);
            ptr::null_mut()
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn free(memory: *mut c_void) {
    if memory.is_null() || is_early(memory) {
        return;
    }
    ends(memory);
    if let Some(real) = real!(c"free": fn(*mut c_void)) {
        // SAFETY: passes on the program's own call.
        unsafe { real(memory) }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_memalign(memory: *mut *mut c_void, alignment: usize, bytes: usize) -> c_int {
    let Some(real) = real!(c"posix_memalign": fn(*mut *mut c_void, usize, usize) -> c_int) else {
        return ENOMEM;
    };
    // SAFETY: passes on the program's own call.
    let code = unsafe { real(memory, alignment, bytes) };
    if code == 0 {
        // SAFETY: it succeeded, and so wrote the address there.
        aligned(unsafe { *memory }, bytes);
    }
    code
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn aligned_alloc(alignment: usize, bytes: usize) -> *mut c_void {
    match real!(c"aligned_alloc": fn(usize, usize) -> *mut c_void) {
        // SAFETY: passes on the program's own call.
        Some(real) => aligned(unsafe { real(alignment, bytes) }, bytes),
        None => early(bytes, alignment),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn memalign(alignment: usize, bytes: usize) -> *mut c_void {
    match real!(c"memalign": fn(usize, usize) -> *mut c_void) {
        // SAFETY: passes on the program's own call.
        Some(real) => aligned(unsafe { real(alignment, bytes) }, bytes),
        None => early(bytes, alignment),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn _exit(status: c_int) -> ! {
    moments::settle(|_| ());
    sys::exit(status)
}
