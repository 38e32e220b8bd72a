//! Driver functions by name: `cudaGetDriverEntryPoint` and `cuGetProcAddress` find the functions that this library
//! exports.
//!
//! For a name that it does not export they return a function that fails as unsupported under that name: a program may
//! look up functions that it never calls.

use std::ffi::{CString, c_int, c_void};
use std::sync::Mutex;

use crate::argument::{Out, Text};
use crate::call::{calls, refuse};
use crate::error::{Failure, Library, Outcome};
use crate::lock::locked;

/// The address of a function.
pub(crate) type Symbol = *const c_void;

/// CUDA's number for "found".
const FOUND: c_int = 0;

calls! { Runtime:
    fn cudaGetDriverEntryPoint(name: Text, address: Out<Symbol>, _flags: u64, result: Out<c_int>) {
        result.offer(FOUND);
        address.put(address_of(&name.read()?)?)
    }
    fn cudaGetDriverEntryPointByVersion(
        name: Text, address: Out<Symbol>, _version: u32, _flags: u64, result: Out<c_int>,
    ) {
        result.offer(FOUND);
        address.put(address_of(&name.read()?)?)
    }
}

/// The driver function with this name, in the newest supported version.
///
/// # Errors
///
/// `NotFound` if the program looked up more unsupported names than there are placeholder functions.
pub(crate) fn address_of(name: &str) -> Outcome<Symbol> {
    let forms = [format!("{name}_v2"), name.to_owned()];
    let found = forms.iter().find_map(|form| exported(form));
    found.map_or_else(|| unknown(name), Ok)
}

/// A function that this library exports.
fn exported(name: &str) -> Option<Symbol> {
    let name = CString::new(name).ok()?;
    // SAFETY: the handle is open, and the name ends with a zero.
    let symbol = unsafe { libc::dlsym(own_library()?, name.as_ptr()) };
    (!symbol.is_null()).then_some(symbol.cast_const())
}

/// The loader's handle of this library.
fn own_library() -> Option<*mut c_void> {
    let mut place = std::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    let here = own_library as fn() -> Option<*mut c_void>;
    // SAFETY: `info` has room for the result; it is read only on success.
    let path = unsafe {
        if libc::dladdr(here as *const c_void, place.as_mut_ptr()) == 0 {
            return None;
        }
        place.assume_init().dli_fname
    };
    // SAFETY: the path is that of a loaded library; this opens one more handle to it.
    let handle = unsafe { libc::dlopen(path, libc::RTLD_NOLOAD | libc::RTLD_LAZY) };
    (!handle.is_null()).then_some(handle)
}

/// The maximum number of unsupported names that can be distinguished.
const SLOTS: usize = 64;

/// The unsupported names that were looked up, by placeholder function.
static NAMES: Mutex<Vec<&'static str>> = Mutex::new(Vec::new());

/// The placeholder function for an unsupported name.
fn unknown(name: &str) -> Outcome<Symbol> {
    let mut names = locked(&NAMES);
    let slot = names.iter().position(|known| *known == name).unwrap_or(names.len());
    let function = FUNCTIONS.get(slot).ok_or(Failure::NotFound)?;
    if slot == names.len() {
        names.push(String::leak(name.to_owned()));
    }
    Ok(*function as Symbol)
}

/// Fails as unsupported, under the name with this number.
extern "C" fn slot<const NUMBER: usize>() -> c_int {
    let name = locked(&NAMES).get(NUMBER).copied();
    refuse(Library::Driver, name.unwrap_or("a call of the driver"))
}

macro_rules! slots {
    ($($number:literal)*) => { [$(slot::<$number>),*] };
}

static FUNCTIONS: [extern "C" fn() -> c_int; SLOTS] = slots!(
    0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31
    32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63
);
