//! Raw system calls, because this library replaces the C library's functions with these names.

use std::ffi::{CStr, c_char, c_int, c_long, c_void};

pub(crate) type Result<T> = core::result::Result<T, c_int>;

pub(crate) const AT_FDCWD: c_int = -100;
pub(crate) const NOFOLLOW: c_int = 0x100;
pub(crate) const REMOVEDIR: c_int = 0x200;
pub(crate) const SYMLINK_FOLLOW: c_int = 0x400;

pub(crate) const ENOENT: c_int = 2;
pub(crate) const EACCES: c_int = 13;
pub(crate) const EEXIST: c_int = 17;
pub(crate) const ENOTDIR: c_int = 20;
pub(crate) const EISDIR: c_int = 21;
pub(crate) const EINVAL: c_int = 22;
pub(crate) const ENOSPC: c_int = 28;
pub(crate) const ENOTEMPTY: c_int = 39;
pub(crate) const ELOOP: c_int = 40;

pub(crate) const O_ACCMODE: c_int = 3;
pub(crate) const O_WRONLY: c_int = 1;
pub(crate) const O_CREAT: c_int = 0o100;
pub(crate) const O_EXCL: c_int = 0o200;
pub(crate) const O_TRUNC: c_int = 0o1000;
pub(crate) const O_APPEND: c_int = 0o2000;
pub(crate) const O_NONBLOCK: c_int = 0o4000;
pub(crate) const O_CLOEXEC: c_int = 0o2000000;
#[cfg(target_arch = "x86_64")]
mod by_machine {
    pub(crate) const O_DIRECTORY: i32 = 0o200000;
    pub(crate) const O_NOFOLLOW: i32 = 0o400000;
    pub(crate) const OPENAT: i64 = 257;
    pub(crate) const MKDIRAT: i64 = 258;
    pub(crate) const MKNODAT: i64 = 259;
    pub(crate) const FCHOWN: i64 = 93;
    pub(crate) const FCHMOD: i64 = 91;
    pub(crate) const NEWFSTATAT: i64 = 262;
    pub(crate) const UNLINKAT: i64 = 263;
    pub(crate) const LINKAT: i64 = 265;
    pub(crate) const SYMLINKAT: i64 = 266;
    pub(crate) const READLINKAT: i64 = 267;
    pub(crate) const FACCESSAT: i64 = 269;
    pub(crate) const UTIMENSAT: i64 = 280;
    pub(crate) const RENAMEAT2: i64 = 316;
    pub(crate) const STATX: i64 = 332;
    pub(crate) const FACCESSAT2: i64 = 439;
    pub(crate) const GETDENTS64: i64 = 217;
    pub(crate) const READ: i64 = 0;
    pub(crate) const WRITE: i64 = 1;
    pub(crate) const WRITEV: i64 = 20;
    pub(crate) const PWRITE64: i64 = 18;
    pub(crate) const CLOSE: i64 = 3;
    pub(crate) const GETCWD: i64 = 79;
    pub(crate) const CHDIR: i64 = 80;
    pub(crate) const FTRUNCATE: i64 = 77;
    pub(crate) const FALLOCATE: i64 = 285;
    pub(crate) const COPY_FILE_RANGE: i64 = 326;
    pub(crate) const SENDFILE: i64 = 40;
    pub(crate) const GETXATTR: i64 = 191;
    pub(crate) const LGETXATTR: i64 = 192;
    pub(crate) const LISTXATTR: i64 = 194;
    pub(crate) const LLISTXATTR: i64 = 195;
    pub(crate) const STATFS: i64 = 137;
    pub(crate) const FSTATFS: i64 = 138;
    pub(crate) const INOTIFY_ADD_WATCH: i64 = 254;
    pub(crate) const FSETXATTR: i64 = 190;
    pub(crate) const FREMOVEXATTR: i64 = 199;
    pub(crate) const MMAP: i64 = 9;
    pub(crate) const PRCTL: i64 = 157;
    pub(crate) const AUDIT: u32 = 0xc000_003e;
    /// chmod, chown, lchown, utime, setxattr, lsetxattr, removexattr, lremovexattr, utimes, fchownat, futimesat, fchmodat, fchmodat2
    pub(crate) const REFUSED: [u32; 13] = [90, 92, 94, 132, 188, 189, 197, 198, 235, 260, 261, 268, 452];
}
#[cfg(target_arch = "aarch64")]
mod by_machine {
    pub(crate) const O_DIRECTORY: i32 = 0o40000;
    pub(crate) const O_NOFOLLOW: i32 = 0o100000;
    pub(crate) const OPENAT: i64 = 56;
    pub(crate) const MKDIRAT: i64 = 34;
    pub(crate) const MKNODAT: i64 = 33;
    pub(crate) const FCHOWN: i64 = 55;
    pub(crate) const FCHMOD: i64 = 52;
    pub(crate) const NEWFSTATAT: i64 = 79;
    pub(crate) const UNLINKAT: i64 = 35;
    pub(crate) const LINKAT: i64 = 37;
    pub(crate) const SYMLINKAT: i64 = 36;
    pub(crate) const READLINKAT: i64 = 78;
    pub(crate) const FACCESSAT: i64 = 48;
    pub(crate) const UTIMENSAT: i64 = 88;
    pub(crate) const RENAMEAT2: i64 = 276;
    pub(crate) const STATX: i64 = 291;
    pub(crate) const FACCESSAT2: i64 = 439;
    pub(crate) const GETDENTS64: i64 = 61;
    pub(crate) const READ: i64 = 63;
    pub(crate) const WRITE: i64 = 64;
    pub(crate) const WRITEV: i64 = 66;
    pub(crate) const PWRITE64: i64 = 68;
    pub(crate) const CLOSE: i64 = 57;
    pub(crate) const GETCWD: i64 = 17;
    pub(crate) const CHDIR: i64 = 49;
    pub(crate) const FTRUNCATE: i64 = 46;
    pub(crate) const FALLOCATE: i64 = 47;
    pub(crate) const COPY_FILE_RANGE: i64 = 285;
    pub(crate) const SENDFILE: i64 = 71;
    pub(crate) const GETXATTR: i64 = 8;
    pub(crate) const LGETXATTR: i64 = 9;
    pub(crate) const LISTXATTR: i64 = 11;
    pub(crate) const LLISTXATTR: i64 = 12;
    pub(crate) const STATFS: i64 = 43;
    pub(crate) const FSTATFS: i64 = 44;
    pub(crate) const INOTIFY_ADD_WATCH: i64 = 27;
    pub(crate) const FSETXATTR: i64 = 7;
    pub(crate) const FREMOVEXATTR: i64 = 16;
    pub(crate) const MMAP: i64 = 222;
    pub(crate) const PRCTL: i64 = 167;
    pub(crate) const AUDIT: u32 = 0xc000_00b7;
    /// setxattr, lsetxattr, removexattr, lremovexattr, fchmodat, fchownat, fchmodat2
    pub(crate) const REFUSED: [u32; 7] = [5, 6, 14, 15, 53, 54, 452];
}
pub(crate) use by_machine::*;
pub(crate) const OPENAT2: i64 = 437;
pub(crate) const LANDLOCK_CREATE: i64 = 444;
pub(crate) const LANDLOCK_ADD: i64 = 445;
pub(crate) const LANDLOCK_RESTRICT: i64 = 446;

unsafe extern "C" {
    fn syscall(number: c_long, ...) -> c_long;
    fn __errno_location() -> *mut c_int;
    fn getenv(name: *const c_char) -> *mut c_char;
    pub(crate) fn setenv(name: *const c_char, value: *const c_char, replace: c_int) -> c_int;
    pub(crate) fn malloc(bytes: usize) -> *mut c_void;
    fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// Makes a system call. Returns the result or the error's number.
macro_rules! call {
    ($number:expr $(, $arg:expr)* $(,)?) => {
        $crate::sys::raw($number, [$($arg as i64),*].as_slice())
    };
}
pub(crate) use call;

pub(crate) fn raw(number: i64, args: &[i64]) -> Result<i64> {
    let arg = |place: usize| args.get(place).copied().unwrap_or(0);
    // SAFETY: the callers pass the arguments that the call with this number expects; unused arguments are ignored.
    let result = unsafe { syscall(number, arg(0), arg(1), arg(2), arg(3), arg(4), arg(5)) };
    if result == -1 { Err(errno()) } else { Ok(result) }
}

pub(crate) fn errno() -> c_int {
    // SAFETY: the C library returns a pointer to this thread's own value.
    unsafe { *__errno_location() }
}

pub(crate) fn set_errno(code: c_int) {
    // SAFETY: as above.
    unsafe { *__errno_location() = code }
}

/// An environment variable.
pub(crate) fn variable(name: &CStr) -> Option<Vec<u8>> {
    // SAFETY: the name ends with NUL; the value is copied at once.
    let value = unsafe { getenv(name.as_ptr()) };
    if value.is_null() {
        return None;
    }
    // SAFETY: not null, and the environment's strings end with NUL.
    Some(unsafe { CStr::from_ptr(value) }.to_bytes().to_vec())
}

/// The function with this name in the next library, which is the C library.
pub(crate) fn next(name: &CStr) -> *mut c_void {
    // SAFETY: RTLD_NEXT, and a name that ends with NUL.
    unsafe { dlsym(-1_isize as *mut c_void, name.as_ptr()) }
}

/// Bytes that end with NUL.
pub(crate) fn terminated(path: &[u8]) -> Vec<u8> {
    let mut bytes = path.to_vec();
    bytes.push(0);
    bytes
}

/// The fields of `struct stat` of 64-bit Linux that are read here.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Stat {
    bytes: [u64; 18],
}

impl Stat {
    pub(crate) fn of(path: &[u8]) -> Result<Stat> {
        let mut stat = Stat { bytes: [0; 18] };
        let path = terminated(path);
        call!(NEWFSTATAT, AT_FDCWD, path.as_ptr(), &raw mut stat, NOFOLLOW).map(|_| stat)
    }

    pub(crate) fn mode(&self) -> u32 {
        #[cfg(target_arch = "x86_64")]
        return self.bytes[3] as u32;
        #[cfg(target_arch = "aarch64")]
        return self.bytes[2] as u32;
    }

    /// The times of the last access and change, in seconds and nanoseconds.
    pub(crate) fn times(&self) -> [u64; 4] {
        [self.bytes[9], self.bytes[10], self.bytes[11], self.bytes[12]]
    }

    pub(crate) fn is_folder(&self) -> bool {
        self.mode() & 0o170000 == 0o040000
    }

    pub(crate) fn is_link(&self) -> bool {
        self.mode() & 0o170000 == 0o120000
    }

    pub(crate) fn is_file(&self) -> bool {
        self.mode() & 0o170000 == 0o100000
    }
}

/// `/a`, `/a/b` and so on up to the path itself.
pub(crate) fn prefixes(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut end = 0;
    std::iter::from_fn(move || {
        let rest = path.get(end + 1..)?;
        end = rest.iter().position(|byte| *byte == b'/').map_or(path.len(), |next| end + 1 + next);
        Some(&path[..end])
    })
}

/// A path without its last part; empty for entries of the root.
pub(crate) fn parent(path: &[u8]) -> &[u8] {
    &path[..path.iter().rposition(|byte| *byte == b'/').unwrap_or(0)]
}

pub(crate) fn exists(path: &[u8]) -> bool {
    Stat::of(path).is_ok()
}

pub(crate) fn open(path: &[u8], flags: c_int, mode: u32) -> Result<c_int> {
    let path = terminated(path);
    call!(OPENAT, AT_FDCWD, path.as_ptr(), flags | O_CLOEXEC, mode).map(|fd| fd as c_int)
}

/// Whether a path on the disk contains no links; `None` if that cannot be determined.
pub(crate) fn has_no_links(path: &[u8], follows: bool) -> Option<bool> {
    const PATH: c_int = 0o10000000;
    const NO_LINKS: u64 = 0x6;
    let flags = PATH | O_CLOEXEC | if follows { 0 } else { O_NOFOLLOW };
    let how = [flags as u64, 0, NO_LINKS];
    let path = terminated(path);
    match call!(OPENAT2, AT_FDCWD, path.as_ptr(), how.as_ptr(), 24) {
        Ok(fd) => {
            close(fd as c_int);
            Some(true)
        }
        // The parts before the missing one are not links.
        Err(ENOENT) => Some(true),
        Err(ELOOP) => Some(false),
        Err(_) => None,
    }
}

pub(crate) fn close(fd: c_int) {
    let _closed = call!(CLOSE, fd);
}

pub(crate) fn mkdir(path: &[u8], mode: u32) -> Result<()> {
    let path = terminated(path);
    call!(MKDIRAT, AT_FDCWD, path.as_ptr(), mode).map(|_| ())
}

/// Makes a folder, unless it exists.
pub(crate) fn mkdir_unless_there(path: &[u8], mode: u32) -> Result<()> {
    match mkdir(path, mode) {
        Err(EEXIST) => Ok(()),
        made => made,
    }
}

pub(crate) fn unlink(path: &[u8], flags: c_int) -> Result<()> {
    let path = terminated(path);
    call!(UNLINKAT, AT_FDCWD, path.as_ptr(), flags).map(|_| ())
}

pub(crate) fn rename(from: &[u8], to: &[u8]) -> Result<()> {
    let (from, to) = (terminated(from), terminated(to));
    call!(RENAMEAT2, AT_FDCWD, from.as_ptr(), AT_FDCWD, to.as_ptr(), 0).map(|_| ())
}

pub(crate) fn read_link(path: &[u8]) -> Result<Vec<u8>> {
    let (path, mut buffer) = (terminated(path), vec![0_u8; 4096]);
    let length = call!(READLINKAT, AT_FDCWD, path.as_ptr(), buffer.as_mut_ptr(), buffer.len())?;
    buffer.truncate(length as usize);
    Ok(buffer)
}

/// The names in a folder, each with its type.
pub(crate) fn entries(path: &[u8]) -> Result<Vec<(Vec<u8>, u8, u64)>> {
    let fd = open(path, O_DIRECTORY, 0)?;
    let (mut found, mut buffer) = (Vec::new(), vec![0_u64; 4096]);
    let ended = loop {
        let length = match call!(GETDENTS64, fd, buffer.as_mut_ptr(), buffer.len() * 8) {
            Ok(0) => break Ok(()),
            Ok(length) => length as usize,
            Err(why) => break Err(why),
        };
        // SAFETY: the kernel has written that many bytes of the buffer.
        let bytes = unsafe { std::slice::from_raw_parts(buffer.as_ptr().cast::<u8>(), length) };
        let mut place = 0;
        while place + 19 <= length {
            let entry = &bytes[place..];
            let size = usize::from(u16::from_ne_bytes([entry[16], entry[17]]));
            let inode = u64::from_ne_bytes(entry[..8].try_into().unwrap_or_default());
            let name = &entry[19..size];
            let name = &name[..name.iter().position(|byte| *byte == 0).unwrap_or(name.len())];
            if name != b"." && name != b".." {
                found.push((name.to_vec(), entry[18], inode));
            }
            place += size;
        }
    };
    close(fd);
    ended.map(|()| found)
}
