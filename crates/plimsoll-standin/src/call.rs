//! How every call is made: named for whoever asks later, failed if a fault is to be injected, its outcome
//! turned into the number of its library.
//!
//! - [`calls!`] defines exported functions with a body;
//! - [`nothing!`] defines those that have nothing to do on a device that computes nothing, [`work!`] those
//!   that would have it compute, [`makers!`] those that make an object that is only handed back;
//! - [`unknown!`] defines those that are not imitated: each names itself once and is refused.

use std::cell::Cell;
use std::ffi::c_int;

use crate::error::{Failure, Library, Outcome};
use crate::{fault, notice};

thread_local! {
    /// The call that this thread made last, for the report of a stray access.
    static CURRENT: Cell<&'static str> = const { Cell::new("none") };
    /// The runtime's last error on this thread, until it is asked for.
    static LAST_ERROR: Cell<c_int> = const { Cell::new(0) };
}

/// The call that this thread made last.
pub(crate) fn current() -> &'static str {
    CURRENT.get()
}

/// The runtime's last error on this thread, which is forgotten by this.
pub(crate) fn take_last_error() -> c_int {
    LAST_ERROR.replace(0)
}

/// The runtime's last error on this thread.
pub(crate) fn last_error() -> c_int {
    LAST_ERROR.get()
}

/// Runs one call of `library`, and says how it ended by that library's number.
pub(crate) fn answer(library: Library, name: &'static str, body: impl FnOnce() -> Outcome) -> c_int {
    CURRENT.set(name);
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

/// Refuses a call that is not imitated, and tells so once per name.
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

/// Defines exported functions that succeed and do nothing, whatever their arguments: in the C calling
/// conventions of x86-64 and AArch64 a function need not take those it was given.
macro_rules! nothing {
    ($library:ident: $($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name() -> std::ffi::c_int {
            $crate::call::answer($crate::error::Library::$library, stringify!($name), || Ok(()))
        }
    )*};
}

/// Defines exported functions that would have a library's kernels run, which do nothing, whatever their
/// arguments.
macro_rules! work {
    ($library:ident: $($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name() -> std::ffi::c_int {
            $crate::call::answer($crate::error::Library::$library, stringify!($name), || {
                $crate::stream::kernel_somewhere();
                Ok(())
            })
        }
    )*};
}

/// Defines exported functions that are refused, whatever their arguments.
macro_rules! unknown {
    ($library:ident: $($name:ident)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name() -> std::ffi::c_int {
            $crate::call::refuse($crate::error::Library::$library, stringify!($name))
        }
    )*};
}

/// Defines exported functions that make an opaque object: their first argument is the place for its handle.
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

pub(crate) use {calls, makers, nothing, unknown, work};

/// A handle of something that is only ever handed back: never zero, never the same twice.
pub(crate) fn new_handle() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    // Multiples of 16, as addresses of objects are; the first ones are the names of CUDA's default streams.
    static NEXT: AtomicU64 = AtomicU64::new(0x1000);
    NEXT.fetch_add(16, Ordering::Relaxed)
}
