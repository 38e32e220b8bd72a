//! Library and launcher are to be of one version: each can ask the other.

use std::ffi::{CString, c_char, c_int};
use std::path::Path;

use crate::settings;

/// The version of this crate, as text that ends with a zero.
const TEXT: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");

/// The version of the library, as `0.1.0`: text that lives as long as the process.
#[unsafe(no_mangle)]
pub extern "C" fn plimsoll_standin_version() -> *const c_char {
    TEXT.as_ptr().cast()
}

/// The version of this crate, as `0.1.0`.
pub fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

/// Says on stderr if the program that set up the environment is of another version.
pub(crate) fn compare() {
    let launcher = settings::text(settings::VERSION).unwrap_or_else(|| version().to_owned());
    if launcher != version() {
        settings::say(&format!(
            "the library is version {}, the program that uses it is {launcher}: build both anew",
            version()
        ));
    }
}

/// The version of a library in a file, if it is a stand-in. The library is loaded for that: it does nothing
/// before it is called.
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
        // SAFETY: null becomes None; else the symbol is the function above, of whatever version, and text of
        // C is the same there and here.
        unsafe { std::mem::transmute(symbol) };
    ask.and_then(|ask| ask().read().ok())
}

/// CUDA's version of the driver that is imitated: 13.2, which runs programs of CUDA 12, too.
pub(crate) const DRIVER: c_int = 13020;
