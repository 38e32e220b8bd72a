//! Functions that say something about a file or its file system: attributes, free space, limits.

use std::ffi::{c_char, c_int, c_long, c_uint, c_void};

use crate::calls::{bytes, export, failed, found, real, returned};
use crate::exports::Path;
use crate::sys::{self, *};
use crate::tree::{Place, Tree, descriptor};

type About = unsafe extern "C" fn(Path, *mut c_void) -> c_int;

export! {
    fn getxattr(path: Path, name: Path, value: *mut c_void, size: usize) -> isize {
        found(AT_FDCWD, path, true, |_, path| call!(GETXATTR, path, name, value, size)) as isize
    }
    fn lgetxattr(path: Path, name: Path, value: *mut c_void, size: usize) -> isize {
        found(AT_FDCWD, path, false, |_, path| call!(LGETXATTR, path, name, value, size)) as isize
    }
    fn listxattr(path: Path, names: *mut c_char, size: usize) -> isize {
        found(AT_FDCWD, path, true, |_, path| call!(LISTXATTR, path, names, size)) as isize
    }
    fn llistxattr(path: Path, names: *mut c_char, size: usize) -> isize {
        found(AT_FDCWD, path, false, |_, path| call!(LLISTXATTR, path, names, size)) as isize
    }
    fn inotify_add_watch(watches: c_int, path: Path, events: c_uint) -> c_int {
        const NOT_LINKS: c_uint = 0x0200_0000;
        let follows = events & NOT_LINKS == 0;
        found(AT_FDCWD, path, follows, |_, path| call!(INOTIFY_ADD_WATCH, watches, path, events)) as c_int
    }
    fn pathconf(path: Path, name: c_int) -> c_long {
        let limit: unsafe extern "C" fn(Path, c_int) -> c_long = real!(c"pathconf");
        // The C library sets the error's number only if it fails.
        let before = sys::errno();
        found(AT_FDCWD, path, true, |_, path| {
            sys::set_errno(0);
            match limit(path, name) {
                -1 if sys::errno() != 0 => Err(sys::errno()),
                limit => {
                    sys::set_errno(before);
                    Ok(limit)
                }
            }
        })
    }

    fn statfs, statfs64(path: Path, out: *mut c_void) -> c_int { space(path, |path| call!(STATFS, path, out)) }
    fn statvfs, statvfs64(path: Path, out: *mut c_void) -> c_int {
        let about: About = real!(c"statvfs64");
        space(path, |path| done(about(path, out)))
    }
    fn fstatfs, fstatfs64(fd: c_int, out: *mut c_void) -> c_int {
        space_of(fd, |path| call!(STATFS, path, out), |fd| call!(FSTATFS, fd, out))
    }
    fn fstatvfs, fstatvfs64(fd: c_int, out: *mut c_void) -> c_int {
        let (about, about_descriptor): (About, unsafe extern "C" fn(c_int, *mut c_void) -> c_int) =
            (real!(c"statvfs64"), real!(c"fstatvfs64"));
        space_of(fd, |path| done(about(path, out)), |fd| done(about_descriptor(fd, out)))
    }
}

fn done(result: c_int) -> Result<i64> {
    if result == -1 { Err(sys::errno()) } else { Ok(i64::from(result)) }
}

/// Queries the file system of a path: for a file in the tree, the one where it would be on the disk.
unsafe fn space(path: Path, about: impl Fn(Path) -> Result<i64>) -> c_int {
    // SAFETY: the caller passes a valid path.
    let resolved = Tree::get().filter(|tree| tree.is_dirty()).zip(unsafe { bytes(path) });
    let resolved = resolved.and_then(|(tree, path)| Some((tree, tree.resolve(AT_FDCWD, path, true)?)));
    returned(match resolved {
        None => about(path),
        Some((_, Err(why))) => Err(why),
        Some((_, Ok(Place::Real(real)))) => about(terminated(&real).as_ptr().cast()),
        Some((tree, Ok(Place::Seen(seen)))) if tree.find(&seen).is_none() => Err(ENOENT),
        Some((_, Ok(Place::Seen(seen)))) => about(terminated(on_disk(&seen)).as_ptr().cast()),
    }) as c_int
}

/// The same for an open file.
fn space_of(
    fd: c_int,
    about: impl Fn(Path) -> Result<i64>,
    about_descriptor: impl Fn(c_int) -> Result<i64>,
) -> c_int {
    let own = Tree::get().filter(|tree| tree.has(fd)).zip(descriptor(fd));
    returned(match own {
        Some((tree, path)) => about(terminated(on_disk(&tree.seen(path))).as_ptr().cast()),
        None => about_descriptor(fd),
    }) as c_int
}

/// The path itself if it exists on the disk, otherwise its nearest existing folder.
fn on_disk(mut path: &[u8]) -> &[u8] {
    while !path.is_empty() && !sys::exists(path) {
        path = sys::parent(path);
    }
    if path.is_empty() { b"/" } else { path }
}

/// The number that `ftok` computes from a file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ftok(path: Path, project: c_int) -> c_int {
    let make: unsafe extern "C" fn(Path, c_int) -> c_int = real!(c"ftok");
    // SAFETY: the caller passes a valid path.
    unsafe { found(AT_FDCWD, path, true, |_, path| done(make(path, project))) as c_int }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tmpfile() -> *mut c_void {
    const TEMPORARY: c_int = 0o20000000;
    // SAFETY: both strings end with NUL, and the stream owns the descriptor.
    unsafe {
        match crate::exports::opened(AT_FDCWD, c"/tmp".as_ptr(), TEMPORARY | O_DIRECTORY | O_CLOEXEC | 2, 0o600) {
            -1 => failed(sys::errno(), std::ptr::null_mut()),
            fd => fdopen(fd, c"w+".as_ptr()),
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn tmpfile64() -> *mut c_void {
    // SAFETY: it is the same function on 64-bit Linux.
    unsafe { tmpfile() }
}

unsafe extern "C" {
    fn fdopen(fd: c_int, mode: Path) -> *mut c_void;
}
