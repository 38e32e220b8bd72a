//! Reads of values that nothing computed: whoever watches a process hears of each, and may say what is read.
//!
//! A copy to the host whose value is not known (`recent.rs`) gives zeros. Code in the process, as `plimsoll predict` has
//! it, registers a listener with [`plimsoll_standin_on_read`], which may write other bytes in their place.
//! [`plimsoll_standin_stack`] names the functions that led to a read: which operator of PyTorch's it is part of.

use std::ffi::{CStr, c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::Mutex;

use crate::lock::locked;

/// Where the value goes, the device address that it is read from, and its bytes. It is called on the thread that reads.
type Listener = extern "C" fn(to: *mut c_void, from: u64, bytes: usize);

static LISTENER: Mutex<Option<Listener>> = Mutex::new(None);

/// Functions of the stack that are named.
const FRAMES: usize = 96;

/// From now on this function hears of every read of a value that is not known; null: nobody does.
#[unsafe(no_mangle)]
extern "C" fn plimsoll_standin_on_read(listener: Option<Listener>) {
    *locked(&LISTENER) = listener;
}

/// Whether anybody hears of reads.
pub(crate) fn is_watched() -> bool {
    locked(&LISTENER).is_some()
}

/// Zeros were copied to the host: the listener may know better.
pub(super) fn unknown(to: *mut u8, from: u64, bytes: usize) {
    // The lock is free again when the listener runs: it may read, too.
    let listener = *locked(&LISTENER);
    if let Some(listener) = listener {
        listener(to.cast(), from, bytes);
    }
}

/// Writes the names of the functions on this thread's stack, the innermost first, one a line, as far as they fit into
/// `room` bytes. Returns how many bytes were written.
#[unsafe(no_mangle)]
extern "C" fn plimsoll_standin_stack(text: *mut u8, room: usize) -> usize {
    let mut frames = [std::ptr::null_mut(); FRAMES];
    // SAFETY: there is room for as many frames as are asked for.
    let found = unsafe { libc::backtrace(frames.as_mut_ptr(), FRAMES as c_int) };
    let mut written = 0;
    for frame in frames.iter().take(usize::try_from(found).unwrap_or(0)) {
        let name = function(*frame);
        if name.is_empty() || written + name.len() + 1 > room {
            continue;
        }
        // SAFETY: the caller says that there is room for so many bytes, and these end before it.
        unsafe {
            text.add(written).copy_from(name.as_ptr(), name.len());
            text.add(written + name.len()).write(b'\n');
        }
        written += name.len() + 1;
    }
    written
}

/// The name of the function that an address belongs to, as its library exports it; empty if it does not.
fn function<'a>(address: *mut c_void) -> &'a [u8] {
    let mut place: MaybeUninit<libc::Dl_info> = MaybeUninit::zeroed();
    // SAFETY: there is room for the answer, which is all zero if there is none.
    let place = unsafe {
        libc::dladdr(address, place.as_mut_ptr());
        place.assume_init()
    };
    if place.dli_sname.is_null() {
        return &[];
    }
    // SAFETY: not null, and then text that ends with a zero and lives as long as its library is loaded.
    unsafe { CStr::from_ptr(place.dli_sname) }.to_bytes()
}
