//! The shared library as C programs use it: opened by file name, with functions looked up by name.

use std::ffi::{CString, c_void};
use std::path::PathBuf;
use std::process::Command;

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

/// The library's file, which Cargo puts next to the tests.
pub(crate) fn path() -> PathBuf {
    let tests = std::env::current_exe().expect("a path");
    tests.with_file_name(plimsoll_standin::place::LIBRARY)
}

/// The environment variable that is set in a test's own process.
pub(crate) const ALONE: &str = "PLIMSOLL_TEST_ALONE";

/// Opens the library in a separate process for this test. The first call starts that process in this environment,
/// expects the test to pass there, and returns false.
pub(crate) fn opened(test: &str, environment: &[(&str, &str)]) -> bool {
    if std::env::var_os(ALONE).is_some() {
        let path = CString::new(path().to_str().expect("UTF-8")).expect("no zero");
        // SAFETY: the path ends with a zero.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
        assert!(!handle.is_null(), "{path:?} cannot be opened");
        return true;
    }
    let mut command = Command::new(std::env::current_exe().expect("a path"));
    command.args(["--exact", test, "--nocapture"]).env(ALONE, "1").envs(environment.iter().copied());
    let output = command.output().expect("the test can be run");
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
    false
}

/// The name of the enclosing test, as the test program knows it.
#[macro_export]
macro_rules! test_name {
    () => {{
        fn here() {}
        let path = std::any::type_name_of_val(&here).trim_end_matches("::here");
        path.split_once("::").expect("a crate's name").1
    }};
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
        $crate::c!(@ $crate::library::symbol(stringify!($name)), $($argument => $type),*)
    };
    (@ $address:expr, $($argument:expr => $type:ty),* $(,)?) => {{
        let address: *mut std::ffi::c_void = $address;
        // SAFETY: the test passes the argument types that the function has in NVIDIA's headers.
        let function: extern "C" fn($($type),*) -> i32 = unsafe { std::mem::transmute(address) };
        function($($argument),*)
    }};
}
