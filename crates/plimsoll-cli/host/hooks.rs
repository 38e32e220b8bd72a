//! Functions that our Python code in the process calls, for owners, phases, and memory that belongs to our hooks.

use std::ffi::{CStr, c_char, c_int};

use crate::ledger::LEDGER;
use crate::owners::{self, NAMES, Owner};
use crate::resident::Counters;
use crate::sample::SAMPLES;
use crate::{file, moments};

/// The number that stands for no owner.
const NONE: c_int = -1;

/// The owner with this name.
///
/// # Safety
/// The name ends with NUL.
unsafe fn named(name: *const c_char) -> Owner {
    // SAFETY: the caller guarantees this.
    NAMES.lock().numbered(unsafe { CStr::from_ptr(name) }.to_bytes())
}

/// From now on, the large requests of this thread belong to this owner. Returns the number of the previous owner, for
/// `plimsoll_host_leave`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_host_enter(name: *const c_char) -> c_int {
    // SAFETY: the caller guarantees this.
    let before = owners::enter(Some(unsafe { named(name) }));
    before.map_or(NONE, |owner| c_int::from(owner.0))
}

/// Goes back to an owner.
#[unsafe(no_mangle)]
pub extern "C" fn plimsoll_host_leave(before: c_int) {
    owners::enter(u16::try_from(before).ok().map(Owner));
}

/// Records that the large piece at this address belongs to this owner.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_host_own(begin: u64, name: *const c_char) {
    // SAFETY: the caller guarantees this.
    let owner = unsafe { named(name) };
    LEDGER.lock().own(begin, owner, None);
}

/// Begins a phase: 0 before the first step, 1 the steps, 2 after them.
#[unsafe(no_mangle)]
pub extern "C" fn plimsoll_host_phase(phase: c_int) {
    moments::settle(|samples| samples.enter(usize::try_from(phase).unwrap_or(0)));
}

/// Called when our hooks are about to do something that uses memory. Nothing is sampled until `plimsoll_host_resume`,
/// which needs the result of this call.
#[unsafe(no_mangle)]
pub extern "C" fn plimsoll_host_pause() -> u64 {
    let mut samples = SAMPLES.lock();
    samples.depth += 1;
    Counters::now(samples.is_forked).anonymous
}

/// Ends `plimsoll_host_pause`: memory that has become resident since then is not counted.
#[unsafe(no_mangle)]
pub extern "C" fn plimsoll_host_resume(before: u64) {
    let mut samples = SAMPLES.lock();
    samples.depth = samples.depth.saturating_sub(1);
    if samples.depth == 0 {
        let now = Counters::now(samples.is_forked).anonymous;
        samples.ours += now.saturating_sub(before);
    }
}

/// Sets how many events the recording of PyTorch's allocator has so far.
#[unsafe(no_mangle)]
pub extern "C" fn plimsoll_host_events(count: u64) {
    SAMPLES.lock().events = count;
}

/// From now on nothing is counted, because our hooks are writing their reports.
#[unsafe(no_mangle)]
pub extern "C" fn plimsoll_host_end() {
    moments::settle(|samples| samples.is_over = true);
}

/// Called in a fork that continues as the program itself and was made without fork handlers: threads that held a lock do not
/// exist in it. Its file is in this folder.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plimsoll_host_continue(folder: *const c_char) {
    moments::release();
    moments::own();
    // SAFETY: the caller passes a text that ends with NUL.
    file::set_folder(unsafe { CStr::from_ptr(folder) }.to_bytes());
}

/// Sets how many bytes an event in the recording of PyTorch's allocator takes. Called after `plimsoll_host_end`.
#[unsafe(no_mangle)]
pub extern "C" fn plimsoll_host_event_bytes(bytes: u64) {
    moments::settle(|samples| samples.event_bytes = bytes);
}
