//! CUDA's functions that allocate pinned memory, and its copies; all are passed on to the stand-in.

use std::ffi::{c_int, c_uint, c_void};

use crate::ledger::{Kind, LARGE, LEDGER, Piece};
use crate::moments;
use crate::owners::Owner;
use crate::real::real;

/// CUDA's number for a copy from the device to the host.
const TO_HOST: c_int = 2;

/// The error if there is no stand-in: CUDA's `cudaErrorUnknown`.
const UNKNOWN: c_int = 999;

/// Records pinned memory of any size; a call that returned this code has written its address.
unsafe fn pinned(code: c_int, memory: *mut *mut c_void, bytes: usize) -> c_int {
    if code == 0 && moments::is_on() {
        // SAFETY: it succeeded, and so wrote the address there.
        let begin = unsafe { *memory }.addr() as u64;
        LEDGER.lock().add(Piece { begin, bytes: bytes as u64, kind: Kind::Pinned, owner: Owner::PINNED });
        moments::now_and_then();
    }
    code
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaHostAlloc(memory: *mut *mut c_void, bytes: usize, flags: c_uint) -> c_int {
    let real = real!(c"cudaHostAlloc": fn(*mut *mut c_void, usize, c_uint) -> c_int);
    // SAFETY: passes on the program's own call.
    real.map_or(UNKNOWN, |real| unsafe { pinned(real(memory, bytes, flags), memory, bytes) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaMallocHost(memory: *mut *mut c_void, bytes: usize) -> c_int {
    let real = real!(c"cudaMallocHost": fn(*mut *mut c_void, usize) -> c_int);
    // SAFETY: passes on the program's own call.
    real.map_or(UNKNOWN, |real| unsafe { pinned(real(memory, bytes), memory, bytes) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudaMemcpyAsync(
    to: *mut c_void,
    from: *const c_void,
    bytes: usize,
    direction: c_int,
    stream: *mut c_void,
) -> c_int {
    copied(to, bytes, direction);
    let real = real!(c"cudaMemcpyAsync": fn(*mut c_void, *const c_void, usize, c_int, *mut c_void) -> c_int);
    // SAFETY: passes on the program's own call.
    real.map_or(UNKNOWN, |real| unsafe { real(to, from, bytes, direction, stream) })
}

/// From now on, a CPU tensor without a named owner belongs to the copies.
fn copied(to: *mut c_void, bytes: usize, direction: c_int) {
    if direction == TO_HOST && bytes >= LARGE && moments::is_on() {
        let (mut ledger, to) = (LEDGER.lock(), to.addr() as u64);
        if ledger.at(to).is_some_and(|piece| piece.owner == Owner::TENSORS) {
            ledger.own(to, Owner::COPIES, None);
        }
    }
}
