//! Tables of the driver that are not documented (`cuGetExportTable`). NVIDIA's runtime needs them, so that a library with
//! a runtime of its own compiled in (CuPy, NVIDIA's static libraries) cannot start here. The refusal names that library.

use std::ffi::{CStr, c_int, c_void};
use std::mem::MaybeUninit;

use crate::argument::Out;
use crate::call::answer;
use crate::error::{Failure, Library};
use crate::notice;
use crate::place::LIBRARY;

/// How far up the stack the library is looked for.
const FRAMES: usize = 8;

/// Refuses, by the name of the library that asks.
#[unsafe(no_mangle)]
extern "C" fn cuGetExportTable(table: Out<*const c_void>, _id: *const c_void) -> c_int {
    answer(Library::Driver, "cuGetExportTable", || {
        table.offer(std::ptr::null());
        let about = format!("the CUDA runtime that is compiled into {}", caller());
        notice::refuse_because(
            &about,
            "needs tables of the driver that are not documented, and cannot start here",
        );
        Err(Failure::NotSupported)
    })
}

/// The file from which this library was called, without its folder.
fn caller() -> String {
    let mut frames = [std::ptr::null_mut(); FRAMES];
    // SAFETY: there is room for as many frames as are asked for.
    let found = unsafe { libc::backtrace(frames.as_mut_ptr(), FRAMES as c_int) };
    let files = frames.iter().take(usize::try_from(found).unwrap_or(0)).filter_map(|frame| file_of(*frame));
    let others = files.filter(|file| !file.ends_with(LIBRARY) && !file.contains("libcuda.so"));
    let file = others.map(|file| file.rsplit('/').next().unwrap_or_default().to_owned()).next();
    file.unwrap_or_else(|| "an unknown library".to_owned())
}

/// The file whose code is at an address.
fn file_of(address: *const c_void) -> Option<String> {
    let mut place: MaybeUninit<libc::Dl_info> = MaybeUninit::zeroed();
    // SAFETY: there is room for the answer, which is all zero if there is none.
    let name = unsafe {
        libc::dladdr(address, place.as_mut_ptr());
        place.assume_init().dli_fname
    };
    // SAFETY: not null, and then text that ends with a zero and lives as long as its library is loaded.
    (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned())
}
