//! System calls that are made directly, because this library replaces some of the C library's functions with the
//! same names.

use std::ffi::{CStr, c_char, c_int, c_long, c_void};

#[cfg(target_arch = "x86_64")]
mod numbers {
    pub(crate) const OPENAT: c_long = 257;
    pub(crate) const READ: c_long = 0;
    pub(crate) const WRITE: c_long = 1;
    pub(crate) const CLOSE: c_long = 3;
    pub(crate) const MMAP: c_long = 9;
    pub(crate) const MUNMAP: c_long = 11;
    pub(crate) const MREMAP: c_long = 25;
    pub(crate) const MINCORE: c_long = 27;
    pub(crate) const GETPID: c_long = 39;
    pub(crate) const GETPPID: c_long = 110;
    pub(crate) const YIELD: c_long = 24;
    pub(crate) const STATFS: c_long = 137;
    pub(crate) const READLINKAT: c_long = 267;
    pub(crate) const EXIT_GROUP: c_long = 231;
    use super::c_long;
}
#[cfg(target_arch = "aarch64")]
mod numbers {
    pub(crate) const OPENAT: c_long = 56;
    pub(crate) const READ: c_long = 63;
    pub(crate) const WRITE: c_long = 64;
    pub(crate) const CLOSE: c_long = 57;
    pub(crate) const MMAP: c_long = 222;
    pub(crate) const MUNMAP: c_long = 215;
    pub(crate) const MREMAP: c_long = 216;
    pub(crate) const MINCORE: c_long = 232;
    pub(crate) const GETPID: c_long = 172;
    pub(crate) const GETPPID: c_long = 173;
    pub(crate) const YIELD: c_long = 124;
    pub(crate) const STATFS: c_long = 43;
    pub(crate) const READLINKAT: c_long = 78;
    pub(crate) const EXIT_GROUP: c_long = 94;
    use super::c_long;
}
use numbers::*;

const HERE: c_long = -100;
const CREATE: c_long = 0o100 | 0o1000 | 0o1;
const CLOSE_ON_EXEC: c_long = 0o2000000;

/// How many bytes [`mincore`](resident_bytes) covers in one call, at one result byte per page.
const CHUNK: u64 = 16 << 20;

unsafe extern "C" {
    fn syscall(number: c_long, ...) -> c_long;
    fn getenv(name: *const c_char) -> *const c_char;
    fn getpagesize() -> c_int;
    fn __errno_location() -> *mut c_int;
    fn clock_gettime(clock: c_int, time: *mut [c_long; 2]) -> c_int;
    pub(crate) fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
    fn pthread_atfork(before: extern "C" fn(), parent: extern "C" fn(), child: extern "C" fn()) -> c_int;
}

/// The function with this name in the next library that has it.
pub(crate) fn next(name: &CStr) -> *mut c_void {
    // SAFETY: RTLD_NEXT, and a name that ends with NUL.
    unsafe { dlsym(-1_isize as *mut c_void, name.as_ptr()) }
}

/// The number of this thread's last error.
pub(crate) fn errno() -> c_int {
    // SAFETY: the C library returns a pointer to this thread's own value.
    unsafe { *__errno_location() }
}

pub(crate) fn set_errno(code: c_int) {
    // SAFETY: as above.
    unsafe { *__errno_location() = code }
}

/// Ends the process.
pub(crate) fn exit(status: c_int) -> ! {
    loop {
        // SAFETY: it does not return.
        unsafe { syscall(EXIT_GROUP, c_long::from(status)) };
    }
}

/// Registers these functions to be called at each fork.
pub(crate) fn at_fork(before: extern "C" fn(), parent: extern "C" fn(), child: extern "C" fn()) {
    // SAFETY: the functions live as long as this library, which is never unloaded. If it fails, children count on as
    // their parent.
    unsafe { pthread_atfork(before, parent, child) };
}

pub(crate) fn map(arguments: [c_long; 6]) -> *mut c_void {
    let [begin, bytes, protection, flags, file, offset] = arguments;
    // SAFETY: passes on the program's own call.
    unsafe { syscall(MMAP, begin, bytes, protection, flags, file, offset) as *mut c_void }
}

pub(crate) fn unmap(begin: *mut c_void, bytes: usize) -> c_int {
    // SAFETY: passes on the program's own call.
    unsafe { syscall(MUNMAP, begin, bytes) as c_int }
}

pub(crate) fn remap(
    begin: *mut c_void,
    old: usize,
    new: usize,
    flags: c_int,
    to: *mut c_void,
) -> *mut c_void {
    // SAFETY: passes on the program's own call.
    unsafe { syscall(MREMAP, begin, old, new, c_long::from(flags), to) as *mut c_void }
}

pub(crate) fn process() -> u32 {
    // SAFETY: it takes no arguments and cannot fail.
    unsafe { syscall(GETPID) as u32 }
}

pub(crate) fn parent() -> u32 {
    // SAFETY: as above.
    unsafe { syscall(GETPPID) as u32 }
}

pub(crate) fn give_way() {
    // SAFETY: as above.
    unsafe { syscall(YIELD) };
}

/// Nanoseconds on a monotonic clock.
pub(crate) fn now_ns() -> u64 {
    let mut time = [0; 2];
    // SAFETY: room for the result; clock 1 is the monotonic one.
    unsafe { clock_gettime(1, &raw mut time) };
    time[0] as u64 * 1_000_000_000 + time[1] as u64
}

/// The current value of an environment variable.
pub(crate) fn variable(name: &CStr) -> Option<&'static [u8]> {
    // SAFETY: the name ends with NUL; the result is null or ends with NUL, and is read at once.
    unsafe {
        let value = getenv(name.as_ptr());
        (!value.is_null()).then(|| CStr::from_ptr(value).to_bytes())
    }
}

/// Reads the start of a file.
pub(crate) fn read<'buffer>(path: &CStr, buffer: &'buffer mut [u8]) -> &'buffer [u8] {
    // SAFETY: the path ends with NUL, and the kernel writes at most as many bytes as there is room.
    let length = unsafe {
        let file = syscall(OPENAT, HERE, path.as_ptr(), CLOSE_ON_EXEC, 0);
        if file < 0 {
            return &[];
        }
        let length = syscall(READ, file, buffer.as_mut_ptr(), buffer.len());
        syscall(CLOSE, file);
        length
    };
    &buffer[..usize::try_from(length).unwrap_or(0)]
}

/// Writes a file, in one write.
pub(crate) fn write(path: &CStr, bytes: &[u8]) {
    // SAFETY: the path ends with NUL, and the bytes are valid. A full disk must not stop the program.
    unsafe {
        let file = syscall(OPENAT, HERE, path.as_ptr(), CREATE | CLOSE_ON_EXEC, 0o600);
        if file >= 0 {
            syscall(WRITE, file, bytes.as_ptr(), bytes.len());
            syscall(CLOSE, file);
        }
    }
}

/// The path that a link points to.
pub(crate) fn link<'buffer>(path: &CStr, buffer: &'buffer mut [u8]) -> &'buffer [u8] {
    // SAFETY: as in `read`.
    let length = unsafe { syscall(READLINKAT, HERE, path.as_ptr(), buffer.as_mut_ptr(), buffer.len()) };
    &buffer[..usize::try_from(length).unwrap_or(0)]
}

/// The bytes in use of the file system at a path.
pub(crate) fn used_bytes(path: &CStr) -> u64 {
    let mut fields = [0_u64; 32];
    // SAFETY: the path ends with NUL, and there is more room than `struct statfs` has bytes.
    let code = unsafe { syscall(STATFS, path.as_ptr(), &raw mut fields) };
    // Its fields: type, block size, blocks, free blocks.
    if code == 0 { fields[2].saturating_sub(fields[3]) * fields[1] } else { 0 }
}

pub(crate) fn page_bytes() -> u64 {
    // SAFETY: it takes no arguments and cannot fail.
    unsafe { getpagesize() as u64 }.max(1)
}

/// The resident bytes of a mapped range. Parts that are not mapped count as not resident.
pub(crate) fn resident_bytes(begin: u64, bytes: u64) -> u64 {
    let page = page_bytes();
    let (first, last) = (begin / page * page, (begin + bytes).next_multiple_of(page));
    let mut pages = [0_u8; (CHUNK / 4096) as usize];
    let mut found = 0;
    let mut at = first;
    while at < last {
        let length = (last - at).min(CHUNK);
        let count = (length / page) as usize;
        // SAFETY: it only queries addresses, and there is room for one byte per page.
        let code = unsafe { syscall(MINCORE, at, length, pages.as_mut_ptr()) };
        if code == 0 {
            found += pages[..count].iter().map(|it| u64::from(it & 1)).sum::<u64>();
        }
        at += length;
    }
    found * page
}
