//! The code that every call runs through. It records the call's name, fails the call if a fault is injected, and converts the
//! outcome to the library's status code.
//!
//! - [`calls!`] defines exported functions with a body;
//! - [`nothing!`] defines functions that have nothing to do on this device;
//! - [`makers!`] defines functions that create an opaque object;
//! - `work!` in `stream.rs` defines functions that would launch kernels;
//! - [`unknown!`] defines unsupported functions, which fail and are each reported once.

use std::cell::Cell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Failure, Library, Outcome};
use crate::{fault, notice};

thread_local! {
    /// This thread's last call, for reports of a host access to device memory.
    static CURRENT: Cell<&'static str> = const { Cell::new("none") };
    /// The runtime's last error on this thread, until it is read.
    static LAST_ERROR: Cell<c_int> = const { Cell::new(0) };
}

/// The number of calls of this process so far, from all threads.
static COUNT: AtomicU64 = AtomicU64::new(0);

/// The number of calls that this process has made.
pub(crate) fn count() -> u64 {
    COUNT.load(Ordering::Relaxed)
}

/// This thread's last call.
pub(crate) fn current() -> &'static str {
    CURRENT.get()
}

/// Returns the runtime's last error on this thread and clears it.
pub(crate) fn take_last_error() -> c_int {
    LAST_ERROR.replace(0)
}

/// The runtime's last error on this thread.
pub(crate) fn last_error() -> c_int {
    LAST_ERROR.get()
}

/// Runs one call of `library` and returns its status code.
pub(crate) fn answer(library: Library, name: &'static str, body: impl FnOnce() -> Outcome) -> c_int {
    CURRENT.set(name);
    COUNT.fetch_add(1, Ordering::Relaxed);
    let outcome = match fault::injected(name) {
        Some(code) => Err(Failure::Injected(code)),
        None => body(),
    };
    let code = outcome.err().map_or(0, |failure| failure.code(library));
    if code != 0 && library == Library::Runtime {
        LAST_ERROR.set(code);
    }
    code
}

/// Fails an unsupported call, and reports its name once.
pub(crate) fn refuse(library: Library, name: &'static str) -> c_int {
    answer(library, name, || {
        notice::refuse(name);
        Err(Failure::NotSupported)
    })
}

/// Defines exported functions: `fn name(argument: type, …) { body }`, where the body is an [`Outcome`].
macro_rules! calls {
    ($library:ident: $(
        $(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),* $(,)?) $body:block
    )*) => {$(
        $(#[$doc])*
        #[unsafe(no_mangle)]
        extern "C" fn $name($($argument: $type),*) -> std::ffi::c_int {
            $crate::call::answer($crate::error::Library::$library, stringify!($name), move || $body)
        }
    )*};
}

/// Defines exported functions that succeed and do nothing, for any arguments. They are declared without arguments, because in the
/// C calling conventions of x86-64 and AArch64 a function may ignore the arguments that it is passed.
macro_rules! nothing {
    ($library:ident: $($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name() -> std::ffi::c_int {
            $crate::call::answer($crate::error::Library::$library, stringify!($name), || Ok(()))
        }
    )*};
}

/// Defines exported functions that always fail as unsupported.
macro_rules! unknown {
    ($library:ident: $($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name() -> std::ffi::c_int {
            $crate::call::refuse($crate::error::Library::$library, stringify!($name))
        }
    )*};
}

/// Defines exported functions that create an opaque object: the first argument receives its handle.
macro_rules! makers {
    ($library:ident: $($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name(handle: $crate::argument::Out<u64>) -> std::ffi::c_int {
            $crate::call::answer($crate::error::Library::$library, stringify!($name), move || {
                handle.put($crate::call::new_handle())
            })
        }
    )*};
}

pub(crate) use {calls, makers, nothing, unknown};

/// A handle of an opaque object: never zero, never reused.
pub(crate) fn new_handle() -> u64 {
    // Multiples of 16, as object addresses are. The first values are CUDA's names for the default streams.
    static NEXT: AtomicU64 = AtomicU64::new(0x1000);
    NEXT.fetch_add(16, Ordering::Relaxed)
}
