//! Functions that read whole folders inside the C library: `glob` and `scandir`. They are given this library's
//! functions for folders.

use std::ffi::{c_char, c_int, c_void};

use crate::calls::{export, failed, real};
use crate::exports::{Path, lstat, stat};
use crate::folders::{closedir, opendir, readdir};
use crate::sys::{self, *};
use crate::tree::Tree;

/// The C library's `glob_t`.
#[repr(C)]
pub struct Glob {
    count: usize,
    paths: *mut *mut c_char,
    left_out: usize,
    flags: c_int,
    close: unsafe extern "C" fn(*mut c_void) -> c_int,
    read: unsafe extern "C" fn(*mut c_void) -> *mut c_void,
    open: unsafe extern "C" fn(Path) -> *mut c_void,
    lstat: unsafe extern "C" fn(Path, *mut c_void) -> c_int,
    stat: unsafe extern "C" fn(Path, *mut c_void) -> c_int,
}

/// GLOB_ALTDIRFUNC: the structure contains the functions to use.
const OTHER_FUNCTIONS: c_int = 1 << 9;

type Globbing = unsafe extern "C" fn(Path, c_int, *const c_void, *mut c_void) -> c_int;
type Chosen = unsafe extern "C" fn(*const c_void) -> c_int;
type Compared = unsafe extern "C" fn(*const *mut c_void, *const *mut c_void) -> c_int;

/// The offset of the name in a `dirent`, and of its length.
const NAME: usize = 19;
const LENGTH: usize = 16;

export! {
    fn glob, glob64(pattern: Path, flags: c_int, failing: *const c_void, out: *mut c_void) -> c_int {
        let glob: Globbing = real!(c"glob64");
        if flags & OTHER_FUNCTIONS != 0 || !Tree::get().is_some_and(Tree::is_dirty) {
            return glob(pattern, flags, failing, out);
        }
        let inside = &mut *out.cast::<Glob>();
        (inside.close, inside.read, inside.open) = (closedir, readdir, opendir);
        (inside.lstat, inside.stat) = (lstat, stat);
        let done = glob(pattern, flags | OTHER_FUNCTIONS, failing, out);
        inside.flags &= !OTHER_FUNCTIONS;
        done
    }
    fn scandir, scandir64(path: Path, out: *mut *mut *mut c_void, chosen: Option<Chosen>, compared: Option<Compared>) -> c_int {
        let folder = opendir(path);
        if folder.is_null() {
            return -1;
        }
        let mut entries: Vec<*mut c_void> = Vec::new();
        loop {
            let entry = readdir(folder);
            if entry.is_null() {
                break;
            }
            if chosen.is_none_or(|chosen| chosen(entry) != 0) {
                let length = entry.cast::<u8>().add(LENGTH).cast::<u16>().read_unaligned();
                let name = std::ffi::CStr::from_ptr(entry.cast::<c_char>().add(NAME));
                let copy = malloc(usize::from(length).max(NAME + 1 + name.count_bytes()));
                if copy.is_null() {
                    closedir(folder);
                    return failed(12, -1);
                }
                std::ptr::copy_nonoverlapping(entry.cast::<u8>(), copy.cast(), NAME + 1 + name.count_bytes());
                entries.push(copy);
            }
        }
        closedir(folder);
        if let Some(compared) = compared {
            entries.sort_by(|a, b| compared(a, b).cmp(&0));
        }
        let list = malloc((entries.len().max(1)) * size_of::<*mut c_void>()).cast::<*mut c_void>();
        if list.is_null() {
            return failed(12, -1);
        }
        std::ptr::copy_nonoverlapping(entries.as_ptr(), list, entries.len());
        *out = list;
        entries.len() as c_int
    }
    fn readdir_r, readdir64_r(folder: *mut c_void, to: *mut c_void, out: *mut *mut c_void) -> c_int {
        sys::set_errno(0);
        let entry = readdir(folder);
        *out = if entry.is_null() { entry } else { to };
        if entry.is_null() {
            return sys::errno();
        }
        let length = entry.cast::<u8>().add(LENGTH).cast::<u16>().read_unaligned();
        std::ptr::copy_nonoverlapping(entry.cast::<u8>(), to.cast(), usize::from(length));
        0
    }
}
