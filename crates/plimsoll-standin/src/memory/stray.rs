//! Stray accesses: the host reads or writes a device's memory, which a real system answers with a fault, too.
//!
//! The report names the address, what it belongs to, the call that this thread made last and the functions on
//! its stack; then the signal goes on to whoever had it before (Python's faulthandler, or the system).

use std::ffi::{CStr, c_int, c_void};
use std::fmt::{self, Write};
use std::mem::MaybeUninit;
use std::sync::OnceLock;

use super::{Kind, memory_if_free, space};
use crate::call;
use crate::place::LIBRARY;

/// How many functions of the stack are named.
const FRAMES: usize = 12;

/// What handled SIGSEGV before.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// From now on stray accesses are reported.
pub(super) fn watch() {
    BEFORE.get_or_init(|| {
        // SAFETY: an all-zero `sigaction` is a valid one.
        let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
        let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = report;
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER;
        let mut before = action;
        // SAFETY: both are valid, and the handler has the form that SA_SIGINFO promises.
        unsafe { libc::sigaction(libc::SIGSEGV, &action, &mut before) };
        before
    });
}

/// The handler. It takes no lock that may be held and asks for no memory.
extern "C" fn report(_signal: c_int, info: *mut libc::siginfo_t, _context: *mut c_void) {
    // SAFETY: the system passes a valid `siginfo_t` of a SIGSEGV, which has an address.
    let (address, code) = unsafe { ((*info).si_addr().addr() as u64, (*info).si_code) };
    // Sent by a process (`kill`, `raise`): no access will be made again, so that the signal is sent again.
    let is_sent = code <= 0;
    if !is_sent && space::is_devices(address) {
        let mut text = Text::default();
        // Text that is too long is cut.
        let _cut = describe(&mut text, address);
        text.show();
        trace();
    }
    if let Some(before) = BEFORE.get() {
        // SAFETY: what the system gave when our handler was installed. An access is made again on return, and
        // goes there.
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
        Some(None) => write!(text, "memory of the device that was freed")?,
        None => write!(text, "memory of the device")?,
    }
    writeln!(
        text,
        ", which nothing stands behind; the last call of this thread was {}; it came from:",
        call::current()
    )
}

/// Names the functions on the stack.
fn trace() {
    let mut frames = [std::ptr::null_mut(); FRAMES];
    // SAFETY: there is room for as many frames as are asked for.
    let found = unsafe { libc::backtrace(frames.as_mut_ptr(), FRAMES as c_int) };
    let mut ours = true;
    for frame in frames.iter().take(usize::try_from(found).unwrap_or(0)) {
        let mut place: MaybeUninit<libc::Dl_info> = MaybeUninit::zeroed();
        // SAFETY: there is room for the answer, which is all zero if there is none.
        let place = unsafe {
            libc::dladdr(*frame, place.as_mut_ptr());
            place.assume_init()
        };
        // The first functions are this file's.
        ours &= name(place.dli_fname).ends_with(LIBRARY);
        if ours {
            continue;
        }
        let mut text = Text::default();
        // Text that is too long is cut.
        let _cut = writeln!(text, "  {} in {}", name(place.dli_sname), name(place.dli_fname));
        text.show();
    }
}

/// Text of the loader's tables.
fn name<'a>(text: *const std::ffi::c_char) -> &'a str {
    if text.is_null() {
        return "?";
    }
    // SAFETY: not null, and then text that ends with a zero and lives as long as its library is loaded.
    unsafe { CStr::from_ptr(text) }.to_str().unwrap_or("?")
}

/// A line that needs no memory but its own.
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
        // SAFETY: the bytes are there; a handler may call `write`.
        unsafe { libc::write(libc::STDERR_FILENO, self.bytes.as_ptr().cast(), self.length) };
    }
}
