//! Shared memory and named semaphores. They are files in `/dev/shm`, which the C library opens itself, without the
//! functions that `exports.rs` replaces. Here they are files in the tree, like all other files, so the program cannot
//! change those of other programs.

use std::collections::BTreeSet;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::calls::{bytes, export, failed, real};
use crate::exports::{Path, link, opened, unlink};
use crate::sys::{self, *};
use crate::tree::Tree;

/// The size of a `sem_t` on 64-bit Linux, in bytes.
const SEMAPHORE: usize = 32;

/// The open semaphores of this process.
static SEMAPHORES: Mutex<BTreeSet<usize>> = Mutex::new(BTreeSet::new());

fn semaphores<T>(work: impl FnOnce(&mut BTreeSet<usize>) -> T) -> T {
    work(&mut SEMAPHORES.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
}

export! {
    fn shm_open(name: *const c_char, flags: c_int, mode: c_uint) -> c_int {
        match path(name, "") {
            Some(path) => opened(AT_FDCWD, path.as_ptr().cast(), flags | O_CLOEXEC | O_NOFOLLOW, mode),
            None => failed(EINVAL, -1),
        }
    }
    fn shm_unlink(name: *const c_char) -> c_int { removed(name, "") }

    // The mode and the value are read only if the flags require them.
    fn sem_open(name: *const c_char, flags: c_int, mode: c_uint, value: c_uint) -> *mut c_void {
        if Tree::get().is_none() {
            let open: unsafe extern "C" fn(*const c_char, c_int, c_uint, c_uint) -> *mut c_void = real!(c"sem_open");
            return open(name, flags, mode, value);
        }
        match path(name, "sem.") {
            Some(path) => semaphore(path, flags, mode, value).unwrap_or_else(|code| failed(code, std::ptr::null_mut())),
            None => failed(EINVAL, std::ptr::null_mut()),
        }
    }
    fn sem_close(semaphore: *mut c_void) -> c_int {
        if semaphores(|all| all.remove(&(semaphore as usize))) {
            return munmap(semaphore, SEMAPHORE);
        }
        let close: unsafe extern "C" fn(*mut c_void) -> c_int = real!(c"sem_close");
        close(semaphore)
    }
    fn sem_unlink(name: *const c_char) -> c_int { removed(name, "sem.") }
}

unsafe extern "C" {
    fn munmap(start: *mut c_void, bytes: usize) -> c_int;
}

/// The file for a name, which ends with NUL. `None` if the name is not valid.
unsafe fn path(name: *const c_char, prefix: &str) -> Option<Vec<u8>> {
    // SAFETY: the caller passes a valid name.
    let name = unsafe { bytes(name) }?;
    let name = &name[name.iter().take_while(|byte| **byte == b'/').count()..];
    let is_valid = !name.is_empty() && name.len() < 250 && !name.contains(&b'/');
    is_valid.then(|| terminated(&[b"/dev/shm/", prefix.as_bytes(), name].concat()))
}

unsafe fn removed(name: *const c_char, prefix: &str) -> c_int {
    // SAFETY: the caller's name; the path ends with NUL.
    unsafe {
        match path(name, prefix) {
            Some(path) => unlink(path.as_ptr().cast()),
            None => failed(ENOENT, -1),
        }
    }
}

/// Opens or creates a semaphore. A new semaphore gets its value before it gets its name.
fn semaphore(path: Vec<u8>, flags: c_int, mode: c_uint, value: c_uint) -> Result<*mut c_void> {
    static MADE: AtomicU32 = AtomicU32::new(0);
    let (makes, excludes) = (flags & O_CREAT != 0, flags & O_EXCL != 0);
    let name = path.as_ptr().cast();
    loop {
        if !(makes && excludes) {
            match file(name, 2 | O_CLOEXEC | O_NOFOLLOW, 0) {
                Ok(fd) => return mapped(fd),
                Err(ENOENT) if makes => {}
                Err(code) => return Err(code),
            }
        }
        if value > i32::MAX as u32 {
            return Err(EINVAL);
        }
        let unique = (std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        let new = terminated(format!("/dev/shm/sem.new-{}-{}", unique.0, unique.1).as_bytes());
        let new: Path = new.as_ptr().cast();
        let fd = file(new, 2 | O_CREAT | O_EXCL | O_CLOEXEC, mode)?;
        let done = call!(FTRUNCATE, fd, SEMAPHORE).and_then(|_| mapped(fd)).and_then(|semaphore| {
            let begin: unsafe extern "C" fn(*mut c_void, c_int, c_uint) -> c_int = real!(c"sem_init");
            // SAFETY: the mapping has the size of a semaphore, and other processes share it. Both paths end with NUL.
            let is_named = unsafe { begin(semaphore, 1, value) == 0 && link(new, name) == 0 };
            if is_named { Ok(semaphore) } else { Err(sys::errno()) }
        });
        // SAFETY: the path ends with NUL.
        unsafe { unlink(new) };
        match done {
            Err(EEXIST) if !excludes => {}
            done => return done,
        }
    }
}

fn file(path: Path, flags: c_int, mode: c_uint) -> Result<c_int> {
    // SAFETY: the path ends with NUL.
    let fd = unsafe { opened(AT_FDCWD, path, flags, mode) };
    if fd < 0 { Err(sys::errno()) } else { Ok(fd) }
}

/// Maps a semaphore's file, and closes it.
fn mapped(fd: c_int) -> Result<*mut c_void> {
    // PROT_READ and PROT_WRITE, MAP_SHARED.
    let found = call!(MMAP, 0, SEMAPHORE, 3, 1, fd, 0);
    sys::close(fd);
    let start = found? as usize;
    semaphores(|all| all.insert(start));
    Ok(start as *mut c_void)
}
