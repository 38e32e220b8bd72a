//! How a function of the C library is replaced: access to the original ([`real`]), and system calls on the file that
//! the program sees at a path.

use std::ffi::{CStr, c_char, c_int, c_long};

use crate::sys::{self, *};
use crate::tree::{Place, Tree};

/// The C library's function with this name.
macro_rules! real {
    ($name:expr) => {{
        static KNOWN: std::sync::atomic::AtomicPtr<std::ffi::c_void> =
            std::sync::atomic::AtomicPtr::new(std::ptr::null_mut());
        let mut known = KNOWN.load(std::sync::atomic::Ordering::Relaxed);
        if known.is_null() {
            known = $crate::sys::next($name);
            KNOWN.store(known, std::sync::atomic::Ordering::Relaxed);
        }
        // SAFETY: the C library has this function, and the type at the use is its type.
        unsafe { std::mem::transmute(known) }
    }};
}
pub(crate) use real;

/// The bytes of a path; `None` for null.
pub(crate) unsafe fn bytes<'path>(path: *const c_char) -> Option<&'path [u8]> {
    // SAFETY: the caller's path ends with NUL.
    (!path.is_null()).then(|| unsafe { CStr::from_ptr(path) }.to_bytes())
}

pub(crate) fn failed<T>(code: c_int, value: T) -> T {
    sys::set_errno(code);
    value
}

pub(crate) fn returned(result: Result<i64>) -> c_long {
    result.unwrap_or_else(|code| failed(code, -1))
}

/// Makes a system call on the file that the program sees at a path.
pub(crate) unsafe fn found(
    folder: c_int,
    path: *const c_char,
    follows: bool,
    call: impl FnOnce(c_int, *const c_char) -> Result<i64>,
) -> c_long {
    // SAFETY: the caller passes a valid path.
    let resolved = Tree::get().filter(|tree| tree.is_dirty()).zip(unsafe { bytes(path) });
    let resolved = resolved.and_then(|(tree, path)| Some((tree, tree.resolve(folder, path, follows)?)));
    returned(match resolved {
        None => call(folder, path),
        Some((_, Err(why))) => Err(why),
        Some((_, Ok(Place::Real(real)))) => call(AT_FDCWD, terminated(&real).as_ptr().cast()),
        Some((tree, Ok(Place::Seen(seen)))) => call(AT_FDCWD, terminated(&tree.found(&seen)).as_ptr().cast()),
    })
}

/// Exports functions, each under several names.
macro_rules! export {
    ($($(#[$note:meta])* fn $($name:ident),+ ($($arg:ident: $kind:ty),*) -> $result:ty $body:block)*) => {
        $(export! { @each [$($name),+] ($($arg: $kind),*) -> $result $body })*
    };
    (@each [$($name:ident),+] $args:tt -> $result:ty $body:block) => {
        $(export! { @one $name $args -> $result $body })+
    };
    (@one $name:ident ($($arg:ident: $kind:ty),*) -> $result:ty $body:block) => {
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $kind),*) -> $result {
            // SAFETY: the arguments are those that the program passes to the C library's function with this name.
            #[allow(unused_unsafe, reason = "some bodies only compute")]
            unsafe { $body }
        }
    };
}

pub(crate) use export;
