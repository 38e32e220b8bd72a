//! Reads of values that were not computed: a listener is notified of each read, and may provide the value.
//!
//! A copy to the host whose value is unknown (`recent.rs`) yields zeros. Code in the process, such as `plimsoll
//! predict`'s, registers a listener with [`plimsoll_standin_on_read`], which may write other bytes over them.
//! [`plimsoll_standin_stack`] names the functions that led to a read, and so the PyTorch operator.

use std::ffi::{CStr, c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::Mutex;

use crate::lock::locked;

/// Arguments: the destination, the device address, and the number of bytes. It is called on the reading thread.
type Listener = extern "C" fn(to: *mut c_void, from: u64, bytes: usize);

static LISTENER: Mutex<Option<Listener>> = Mutex::new(None);

/// The maximum number of stack frames that are named.
const FRAMES: usize = 96;

/// Sets the listener for reads of unknown values; null removes it.
#[unsafe(no_mangle)]
extern "C" fn plimsoll_standin_on_read(listener: Option<Listener>) {
    *locked(&LISTENER) = listener;
}

/// Whether a listener is registered.
pub(crate) fn is_watched() -> bool {
    locked(&LISTENER).is_some()
}

/// Called when zeros were copied to the host; the listener may replace them.
pub(super) fn unknown(to: *mut u8, from: u64, bytes: usize) {
    // The lock is released before the listener runs, because the listener may read as well.
    let listener = *locked(&LISTENER);
    if let Some(listener) = listener {
        listener(to.cast(), from, bytes);
    }
}

/// Writes the names of the functions on this thread's stack, innermost first, one per line, as many as fit into `room`
/// bytes. Returns the number of bytes written.
#[unsafe(no_mangle)]
extern "C" fn plimsoll_standin_stack(text: *mut u8, room: usize) -> usize {
    let mut frames = [std::ptr::null_mut(); FRAMES];
    // SAFETY: the buffer has room for as many frames as are requested.
    let found = unsafe { libc::backtrace(frames.as_mut_ptr(), FRAMES as c_int) };
    let mut written = 0;
    for frame in frames.iter().take(usize::try_from(found).unwrap_or(0)) {
        let name = function(*frame);
        if name.is_empty() || written + name.len() + 1 > room {
            continue;
        }
        // SAFETY: the caller guarantees `room` bytes, and the text is no longer than that.
        unsafe {
            text.add(written).copy_from(name.as_ptr(), name.len());
            text.add(written + name.len()).write(b'\n');
        }
        written += name.len() + 1;
    }
    written
}

/// The exported name of the function at an address; empty if there is none.
fn function<'a>(address: *mut c_void) -> &'a [u8] {
    let mut place: MaybeUninit<libc::Dl_info> = MaybeUninit::zeroed();
    // SAFETY: `info` has room for the result, and is all zero if there is none.
    let place = unsafe {
        libc::dladdr(address, place.as_mut_ptr());
        place.assume_init()
    };
    if place.dli_sname.is_null() {
        return &[];
    }
    // SAFETY: not null, so it is a zero-terminated string that lives as long as its library is loaded.
    unsafe { CStr::from_ptr(place.dli_sname) }.to_bytes()
}
