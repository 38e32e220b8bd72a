//! Stray accesses: the host reads or writes device memory, which also faults on a real system.
//!
//! The report names the address, its allocation, this thread's last call and the functions on its stack. Then the
//! previous signal handler runs (Python's faulthandler, or the system's default).

use std::ffi::{CStr, c_int, c_void};
use std::fmt::{self, Write};
use std::mem::MaybeUninit;
use std::sync::OnceLock;

use super::{Kind, memory_if_free, space};
use crate::call;
use crate::place::LIBRARY;

/// The maximum number of stack frames that are named.
const FRAMES: usize = 12;

/// The previous handler of SIGSEGV.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// Installs the handler.
pub(super) fn watch() {
    BEFORE.get_or_init(|| {
        // SAFETY: an all-zero `sigaction` is a valid one.
        let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
        let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = report;
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
        let mut before = action;
        // SAFETY: both are valid, and the handler has the signature that SA_SIGINFO requires.
        unsafe { libc::sigaction(libc::SIGSEGV, &action, &mut before) };
        before
    });
}

/// The signal handler. It waits for no lock and allocates no memory.
extern "C" fn report(_signal: c_int, info: *mut libc::siginfo_t, _context: *mut c_void) {
    // SAFETY: the system passes a valid `siginfo_t` of a SIGSEGV, which has an address.
    let (address, code) = unsafe { ((*info).si_addr().addr() as u64, (*info).si_code) };
    // If a process sent the signal (`kill`, `raise`), no access repeats on return: it must be sent again.
    let is_sent = code <= 0;
    if !is_sent && space::is_devices(address) {
        let mut text = Text::default();
        // A longer text is truncated.
        let _cut = describe(&mut text, address);
        text.show();
        trace();
    }
    if let Some(before) = BEFORE.get() {
        // SAFETY: the system returned it when our handler was installed. On return the access repeats, and reaches it.
        unsafe { libc::sigaction(libc::SIGSEGV, before, std::ptr::null_mut()) };
        if is_sent {
            // SAFETY: a handler may call `raise`; ours does not block the signal (SA_NODEFER).
            unsafe { libc::raise(libc::SIGSEGV) };
        }
    }
}

fn describe(text: &mut Text, address: u64) -> fmt::Result {
    write!(text, "plimsoll-standin: the host touched {address:#x}, ")?;
    match memory_if_free().map(|memory| memory.find(address)) {
        Some(Some(range)) => {
            let what = match range.kind {
                Kind::Device(_) | Kind::Pool(_) | Kind::Managed(_) => "an allocation",
                Kind::Reserved => "a reservation",
                Kind::Host | Kind::Registered => "memory of the host",
            };
            write!(
                text,
                "{} bytes into {what} of {} bytes on the device",
                address - range.begin,
                range.bytes
            )?;
        }
        Some(None) => write!(text, "device memory that was already freed")?,
        None => write!(text, "memory of the device")?,
    }
    writeln!(
        text,
        ", which has no memory behind it; the last call of this thread was {}; the access came from:",
        call::current()
    )
}

/// Names the functions on the stack.
fn trace() {
    let mut frames = [std::ptr::null_mut(); FRAMES];
    // SAFETY: the buffer has room for as many frames as are requested.
    let found = unsafe { libc::backtrace(frames.as_mut_ptr(), FRAMES as c_int) };
    let mut ours = true;
    for frame in frames.iter().take(usize::try_from(found).unwrap_or(0)) {
        let mut place: MaybeUninit<libc::Dl_info> = MaybeUninit::zeroed();
        // SAFETY: `place` has room for the result, and is all zero if there is none.
        let place = unsafe {
            libc::dladdr(*frame, place.as_mut_ptr());
            place.assume_init()
        };
        // The innermost frames are this file's.
        ours &= name(place.dli_fname).ends_with(LIBRARY);
        if ours {
            continue;
        }
        let mut text = Text::default();
        // A longer text is truncated.
        let _cut = writeln!(text, "  {} in {}", name(place.dli_sname), name(place.dli_fname));
        text.show();
    }
}

/// A string from the loader.
fn name<'a>(text: *const std::ffi::c_char) -> &'a str {
    if text.is_null() {
        return "?";
    }
    // SAFETY: not null, so it is a zero-terminated string that lives as long as its library is loaded.
    unsafe { CStr::from_ptr(text) }.to_str().unwrap_or("?")
}

/// A line of text that allocates nothing.
struct Text {
    bytes: [u8; 480],
    length: usize,
}

impl Default for Text {
    fn default() -> Self {
        Text { bytes: [0; 480], length: 0 }
    }
}

impl Write for Text {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        let room = self.bytes.len() - self.length;
        let taken = more.len().min(room);
        self.bytes[self.length..self.length + taken].copy_from_slice(&more.as_bytes()[..taken]);
        self.length += taken;
        if taken == more.len() { Ok(()) } else { Err(fmt::Error) }
    }
}

impl Text {
    fn show(&self) {
        // SAFETY: `length` bytes are initialized; a signal handler may call `write`.
        unsafe { libc::write(libc::STDERR_FILENO, self.bytes.as_ptr().cast(), self.length) };
    }
}
