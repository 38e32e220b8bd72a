//! Version checks: library and launcher must have the same version.

use std::ffi::{CString, c_char, c_int};
use std::path::Path;

use crate::settings;

/// The crate's version as a zero-terminated string.
const TEXT: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");

/// The library's version, such as `0.1.0`: a static string.
#[unsafe(no_mangle)]
pub extern "C" fn plimsoll_standin_version() -> *const c_char {
    TEXT.as_ptr().cast()
}

/// The crate's version, such as `0.1.0`.
pub fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

/// Warns on stderr if the program that set up the environment has another version.
pub(crate) fn compare() {
    let launcher = settings::text(settings::VERSION).unwrap_or_else(|| version().to_owned());
    if launcher != version() {
        settings::say(&format!(
            "the library has version {}, but the program that uses it has {launcher}: rebuild both",
            version()
        ));
    }
}

/// The version of a library file, if it is a stand-in. This loads the library, which does nothing until it is called.
pub fn version_of(library: &Path) -> Option<String> {
    let path = CString::new(library.to_str()?).ok()?;
    // SAFETY: the path ends with a zero.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if handle.is_null() {
        return None;
    }
    // SAFETY: the handle is not null and stays open; the name ends with a zero.
    let symbol = unsafe { libc::dlsym(handle, c"plimsoll_standin_version".as_ptr()) };
    let ask: Option<extern "C" fn() -> crate::argument::Text> =
        // SAFETY: null becomes None; otherwise the symbol is the function above, in any version. A C string has
        // the same form in all versions.
        unsafe { std::mem::transmute(symbol) };
    ask.and_then(|ask| ask().read().ok())
}

/// The simulated driver's CUDA version: 13.2, which also runs programs built for CUDA 12.
pub(crate) const DRIVER: c_int = 13020;
