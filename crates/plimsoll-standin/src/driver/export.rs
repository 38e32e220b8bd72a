//! The driver's undocumented tables (`cuGetExportTable`). NVIDIA's runtime needs them, so a library that contains its own
//! copy of the runtime (CuPy, NVIDIA's static libraries) cannot start here. The error names that library.

use std::ffi::{CStr, c_int, c_void};
use std::mem::MaybeUninit;

use crate::argument::Out;
use crate::call::answer;
use crate::error::{Failure, Library};
use crate::notice;
use crate::place::LIBRARY;

/// The number of stack frames to search for the library.
const FRAMES: usize = 8;

/// Fails as unsupported, and reports the calling library.
#[unsafe(no_mangle)]
extern "C" fn cuGetExportTable(table: Out<*const c_void>, _id: *const c_void) -> c_int {
    answer(Library::Driver, "cuGetExportTable", || {
        table.offer(std::ptr::null());
        let about = format!("the CUDA runtime inside {}", caller());
        notice::refuse_because(&about, "needs undocumented tables of the driver, and cannot start here");
        Err(Failure::NotSupported)
    })
}

/// The name of the file that called this library.
fn caller() -> String {
    let mut frames = [std::ptr::null_mut(); FRAMES];
    // SAFETY: the buffer has room for as many frames as are requested.
    let found = unsafe { libc::backtrace(frames.as_mut_ptr(), FRAMES as c_int) };
    let files = frames.iter().take(usize::try_from(found).unwrap_or(0)).filter_map(|frame| file_of(*frame));
    let others = files.filter(|file| !file.ends_with(LIBRARY) && !file.contains("libcuda.so"));
    let file = others.map(|file| file.rsplit('/').next().unwrap_or_default().to_owned()).next();
    file.unwrap_or_else(|| "an unknown library".to_owned())
}

/// The file that contains the code at an address.
fn file_of(address: *const c_void) -> Option<String> {
    let mut place: MaybeUninit<libc::Dl_info> = MaybeUninit::zeroed();
    // SAFETY: `place` has room for the result, and is all zero if there is none.
    let name = unsafe {
        libc::dladdr(address, place.as_mut_ptr());
        place.assume_init().dli_fname
    };
    // SAFETY: not null, so it is a zero-terminated string that lives as long as its library is loaded.
    (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned())
}
