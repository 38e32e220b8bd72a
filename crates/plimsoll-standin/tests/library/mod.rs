//! The shared library as C programs see it: opened by its file, functions by their names.

#![allow(dead_code)] // not every file of tests needs all of it

use std::ffi::{CString, c_void};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, OnceLock};

/// Status codes of CUDA's calls.
pub(crate) mod error {
    pub(crate) const INVALID_VALUE: i32 = 1;
    pub(crate) const OUT_OF_MEMORY: i32 = 2;
    pub(crate) const INVALID_DEVICE: i32 = 101;
    pub(crate) const NO_KERNEL_IMAGE: i32 = 209;
    pub(crate) const INVALID_HANDLE: i32 = 400;
    pub(crate) const PEER_ACCESS_ALREADY_ENABLED: i32 = 704;
    pub(crate) const NOT_SUPPORTED: i32 = 801;
    pub(crate) const CAPTURE_UNSUPPORTED: i32 = 900;
}

/// The library's file, which Cargo puts beside the tests.
pub(crate) fn path() -> PathBuf {
    let tests = std::env::current_exe().expect("a path");
    tests.with_file_name(plimsoll_standin::place::LIBRARY)
}

/// Opens the library once, in this environment; tests that hold the guard run one after the other.
pub(crate) fn open(environment: &[(&str, &str)]) -> MutexGuard<'static, ()> {
    static OPEN: OnceLock<Mutex<()>> = OnceLock::new();
    let open = OPEN.get_or_init(|| {
        for (variable, value) in environment {
            // SAFETY: every test begins here and waits for this; nothing else reads the environment before.
            unsafe { std::env::set_var(variable, value) };
        }
        let path = CString::new(path().to_str().expect("UTF-8")).expect("no zero");
        // SAFETY: the path ends with a zero.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
        assert!(!handle.is_null(), "{path:?} cannot be opened");
        Mutex::new(())
    });
    open.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// The address of an exported function.
pub(crate) fn symbol(name: &str) -> *mut c_void {
    let text = CString::new(name).expect("no zero");
    // SAFETY: the name ends with a zero.
    let symbol = unsafe { libc::dlsym(libc::RTLD_DEFAULT, text.as_ptr()) };
    assert!(!symbol.is_null(), "{name} is not exported");
    symbol
}

/// Calls a function of the library: `c!(cudaMalloc(&mut address => *mut u64, 512 => usize))`. A second name
/// calls the function at an address.
#[macro_export]
macro_rules! c {
    ($name:ident($($argument:expr => $type:ty),* $(,)?)) => {
        c!(@ $crate::library::symbol(stringify!($name)), $($argument => $type),*)
    };
    (@ $address:expr, $($argument:expr => $type:ty),* $(,)?) => {{
        let address: *mut std::ffi::c_void = $address;
        // SAFETY: the test gives the arguments that the function has in NVIDIA's headers.
        let function: extern "C" fn($($type),*) -> i32 = unsafe { std::mem::transmute(address) };
        function($($argument),*)
    }};
}
