//! Functions that choose a file name themselves, and functions for sockets, whose addresses are paths.

use std::ffi::{c_char, c_int, c_uint, c_void};

use crate::calls::{bytes, export, failed, real};
use crate::exports::{mkdirat, opened};
use crate::sys::{self, *};
use crate::tree::{Place, Tree};

export! {
    fn mkstemp, mkstemp64(template: *mut c_char) -> c_int { made(template, 0, 0) }
    fn mkostemp, mkostemp64(template: *mut c_char, flags: c_int) -> c_int { made(template, 0, flags) }
    fn mkstemps, mkstemps64(template: *mut c_char, end: c_int) -> c_int { made(template, end, 0) }
    fn mkostemps, mkostemps64(template: *mut c_char, end: c_int, flags: c_int) -> c_int { made(template, end, flags) }
    fn mkdtemp(template: *mut c_char) -> *mut c_char {
        for _ in 0..100 {
            match filled(template, 0) {
                Err(why) => return failed(why, std::ptr::null_mut()),
                Ok(()) if mkdirat(AT_FDCWD, template, 0o700) == 0 => return template,
                Ok(()) if sys::errno() != EEXIST => return std::ptr::null_mut(),
                Ok(()) => restored(template, 0),
            }
        }
        std::ptr::null_mut()
    }

    fn bind(socket: c_int, address: *const u8, size: c_uint) -> c_int {
        let bind: unsafe extern "C" fn(c_int, *const u8, c_uint) -> c_int = real!(c"bind");
        addressed(address, size, true, |address, size| bind(socket, address, size))
    }
    fn connect(socket: c_int, address: *const u8, size: c_uint) -> c_int {
        let connect: unsafe extern "C" fn(c_int, *const u8, c_uint) -> c_int = real!(c"connect");
        addressed(address, size, false, |address, size| connect(socket, address, size))
    }
    fn sendto(socket: c_int, from: *const c_void, bytes: usize, flags: c_int, address: *const u8, size: c_uint) -> isize {
        let send: unsafe extern "C" fn(c_int, *const c_void, usize, c_int, *const u8, c_uint) -> isize = real!(c"sendto");
        if address.is_null() {
            return send(socket, from, bytes, flags, address, size);
        }
        addressed(address, size, false, |address, size| send(socket, from, bytes, flags, address, size))
    }
}

/// Makes a file with a unique name.
unsafe fn made(template: *mut c_char, end: c_int, flags: c_int) -> c_int {
    for _ in 0..100 {
        // SAFETY: the caller's template, which this function may change.
        unsafe {
            if let Err(why) = filled(template, end) {
                return failed(why, -1);
            }
            let fd = opened(AT_FDCWD, template, flags | O_CREAT | O_EXCL | 2, 0o600);
            if fd >= 0 || sys::errno() != EEXIST {
                return fd;
            }
            restored(template, end);
        }
    }
    -1
}

/// The six X at the end of a template, before the suffix.
unsafe fn marks(template: *mut c_char, end: c_int) -> Option<&'static mut [u8]> {
    // SAFETY: the caller passes a valid template.
    unsafe {
        let length = bytes(template)?.len().checked_sub(usize::try_from(end).ok()? + 6)?;
        Some(std::slice::from_raw_parts_mut(template.cast::<u8>().add(length), 6))
    }
}

unsafe fn filled(template: *mut c_char, end: c_int) -> Result<()> {
    // SAFETY: the caller passes a valid template.
    let marks = unsafe { marks(template, end) }.filter(|marks| *marks == b"XXXXXX").ok_or(EINVAL)?;
    use std::hash::{BuildHasher, RandomState};
    let mut drawn = RandomState::new().hash_one(std::process::id());
    for mark in marks {
        *mark = b"abcdefghijklmnopqrstuvwxyz0123456789"[(drawn % 36) as usize];
        drawn /= 36;
    }
    Ok(())
}

unsafe fn restored(template: *mut c_char, end: c_int) {
    // SAFETY: the caller passes a valid template.
    if let Some(marks) = unsafe { marks(template, end) } {
        marks.copy_from_slice(b"XXXXXX");
    }
}

/// Makes a call with the address of a socket in the file system. The address uses the descriptor of the socket's
/// folder, because the path may be too long for an address.
unsafe fn addressed<T: From<i8>>(
    address: *const u8,
    size: c_uint,
    makes: bool,
    call: impl FnOnce(*const u8, c_uint) -> T,
) -> T {
    const UNIX: u16 = 1;
    let place = (|| {
        // SAFETY: the caller's address has this many bytes.
        let whole = unsafe { std::slice::from_raw_parts(address, size as usize) };
        let (family, path) = whole.split_at_checked(2)?;
        let path = &path[..path.iter().position(|byte| *byte == 0).unwrap_or(path.len())];
        if u16::from_ne_bytes([family[0], family[1]]) != UNIX || path.is_empty() {
            return None;
        }
        let tree = Tree::get()?;
        let Ok(Place::Seen(seen)) = tree.resolve(AT_FDCWD, path, !makes)? else { return None };
        if makes && tree.make_room(&seen).is_err() {
            return None;
        }
        Some(tree.found(&seen))
    })();
    let Some(place) = place else { return call(address, size) };
    let parent = sys::parent(&place).len();
    const PATH: c_int = 0o10000000;
    let Ok(folder) = sys::open(&place[..parent.max(1)], PATH | O_DIRECTORY, 0) else {
        return failed(ENOENT, T::from(-1));
    };
    let mut short = UNIX.to_ne_bytes().to_vec();
    short.extend_from_slice(format!("/proc/self/fd/{folder}").as_bytes());
    short.extend_from_slice(&place[parent..]);
    short.push(0);
    let done = if short.len() <= 110 { call(short.as_ptr(), short.len() as c_uint) } else { failed(36, T::from(-1)) };
    let code = sys::errno();
    sys::close(folder);
    failed(code, done)
}
