//! Replacements for the C library's functions that take file names, under the same names.

use std::ffi::{c_char, c_int, c_uint, c_void};

use crate::calls::{bytes, export, failed, found, real, returned};
use crate::folders;
use crate::sys::{self, *};
use crate::tree::{Place, Tree};

/// Makes a change in the tree, at the path's place, or through the system if there is no tree.
unsafe fn changed(
    folder: c_int,
    path: *const c_char,
    follows: bool,
    without: impl FnOnce() -> Result<i64>,
    change: impl FnOnce(&Tree, Place) -> Result<()>,
) -> c_int {
    // SAFETY: the caller passes a valid path.
    let resolved = Tree::get().zip(unsafe { bytes(path) });
    let resolved = resolved.and_then(|(tree, path)| Some((tree, tree.resolve(folder, path, follows)?)));
    returned(match resolved {
        None => without(),
        Some((_, Err(why))) => Err(why),
        Some((tree, Ok(place))) => change(tree, place).map(|()| 0),
    }) as c_int
}

pub(crate) unsafe fn opened(folder: c_int, path: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    // SAFETY: the caller passes a valid path.
    let place =
        Tree::get().zip(unsafe { bytes(path) }).and_then(|(tree, path)| tree.opened(folder, path, flags));
    returned(match place {
        None => call!(OPENAT, folder, path, flags, mode),
        Some(Err(why)) => Err(why),
        Some(Ok(place)) => call!(OPENAT, AT_FDCWD, terminated(&place).as_ptr(), flags, mode),
    }) as c_int
}

pub(crate) type Path = *const c_char;

export! {
    // The mode is read only if the flags require it.
    fn open, open64(path: Path, flags: c_int, mode: c_uint) -> c_int { opened(AT_FDCWD, path, flags, mode) }
    fn openat, openat64(folder: c_int, path: Path, flags: c_int, mode: c_uint) -> c_int { opened(folder, path, flags, mode) }
    fn __open_2, __open64_2(path: Path, flags: c_int) -> c_int { opened(AT_FDCWD, path, flags, 0) }
    fn __openat_2, __openat64_2(folder: c_int, path: Path, flags: c_int) -> c_int { opened(folder, path, flags, 0) }
    fn creat, creat64(path: Path, mode: c_uint) -> c_int { opened(AT_FDCWD, path, O_CREAT | O_TRUNC | O_WRONLY, mode) }

    fn fopen, fopen64(path: Path, mode: Path) -> *mut c_void {
        let open: unsafe extern "C" fn(Path, Path) -> *mut c_void = real!(c"fopen64");
        match streamed(path, mode) {
            None => open(path, mode),
            Some(Err(why)) => failed(why, std::ptr::null_mut()),
            Some(Ok(place)) => open(terminated(&place).as_ptr().cast(), mode),
        }
    }
    fn freopen, freopen64(path: Path, mode: Path, stream: *mut c_void) -> *mut c_void {
        let open: unsafe extern "C" fn(Path, Path, *mut c_void) -> *mut c_void = real!(c"freopen64");
        match streamed(path, mode) {
            None => open(path, mode, stream),
            Some(Err(why)) => failed(why, std::ptr::null_mut()),
            Some(Ok(place)) => open(terminated(&place).as_ptr().cast(), mode, stream),
        }
    }

    fn stat, stat64(path: Path, out: *mut c_void) -> c_int { status(AT_FDCWD, path, out, 0) }
    fn lstat, lstat64(path: Path, out: *mut c_void) -> c_int { status(AT_FDCWD, path, out, NOFOLLOW) }
    fn fstatat, fstatat64(folder: c_int, path: Path, out: *mut c_void, flags: c_int) -> c_int { status(folder, path, out, flags) }
    fn __xstat, __xstat64(_version: c_int, path: Path, out: *mut c_void) -> c_int { status(AT_FDCWD, path, out, 0) }
    fn __lxstat, __lxstat64(_version: c_int, path: Path, out: *mut c_void) -> c_int { status(AT_FDCWD, path, out, NOFOLLOW) }
    fn __fxstatat, __fxstatat64(_version: c_int, folder: c_int, path: Path, out: *mut c_void, flags: c_int) -> c_int {
        status(folder, path, out, flags)
    }
    fn statx(folder: c_int, path: Path, flags: c_int, mask: c_uint, out: *mut c_void) -> c_int {
        found(folder, path, flags & NOFOLLOW == 0, |folder, path| call!(STATX, folder, path, flags, mask, out)) as c_int
    }
    fn access(path: Path, mode: c_int) -> c_int {
        found(AT_FDCWD, path, true, |folder, path| call!(FACCESSAT, folder, path, mode)) as c_int
    }
    fn euidaccess, eaccess(path: Path, mode: c_int) -> c_int {
        found(AT_FDCWD, path, true, |folder, path| call!(FACCESSAT2, folder, path, mode, 0x200)) as c_int
    }
    fn faccessat(folder: c_int, path: Path, mode: c_int, flags: c_int) -> c_int {
        found(folder, path, flags & NOFOLLOW == 0, |folder, path| {
            if flags == 0 { call!(FACCESSAT, folder, path, mode) } else { call!(FACCESSAT2, folder, path, mode, flags) }
        }) as c_int
    }
    fn readlink(path: Path, out: *mut c_char, size: usize) -> isize {
        found(AT_FDCWD, path, false, |folder, path| call!(READLINKAT, folder, path, out, size)) as isize
    }
    fn __readlink_chk(path: Path, out: *mut c_char, size: usize, _room: usize) -> isize { readlink(path, out, size) }
    fn readlinkat(folder: c_int, path: Path, out: *mut c_char, size: usize) -> isize {
        found(folder, path, false, |folder, path| call!(READLINKAT, folder, path, out, size)) as isize
    }
    fn __readlinkat_chk(folder: c_int, path: Path, out: *mut c_char, size: usize, _room: usize) -> isize {
        readlinkat(folder, path, out, size)
    }

    fn unlink(path: Path) -> c_int { removed(AT_FDCWD, path, 0) }
    fn rmdir(path: Path) -> c_int { removed(AT_FDCWD, path, REMOVEDIR) }
    fn unlinkat(folder: c_int, path: Path, flags: c_int) -> c_int { removed(folder, path, flags) }
    fn remove(path: Path) -> c_int {
        match removed(AT_FDCWD, path, 0) {
            -1 if sys::errno() == EISDIR => removed(AT_FDCWD, path, REMOVEDIR),
            done => done,
        }
    }
    fn rename(from: Path, to: Path) -> c_int { renamed(AT_FDCWD, from, AT_FDCWD, to, 0) }
    fn renameat(begin: c_int, from: Path, end: c_int, to: Path) -> c_int { renamed(begin, from, end, to, 0) }
    fn renameat2(begin: c_int, from: Path, end: c_int, to: Path, flags: c_uint) -> c_int { renamed(begin, from, end, to, flags) }
    fn mkdir(path: Path, mode: c_uint) -> c_int { mkdirat(AT_FDCWD, path, mode) }
    fn mkdirat(folder: c_int, path: Path, mode: c_uint) -> c_int {
        changed(folder, path, false, || call!(MKDIRAT, folder, path, mode), |tree, place| match place {
            Place::Real(real) => sys::mkdir(&real, mode),
            Place::Seen(seen) => tree.make_folder(&seen, mode),
        })
    }
    fn mkfifo(path: Path, mode: c_uint) -> c_int { mknodat(AT_FDCWD, path, mode | 0o010000, 0) }
    fn mkfifoat(folder: c_int, path: Path, mode: c_uint) -> c_int { mknodat(folder, path, mode | 0o010000, 0) }
    fn mknod(path: Path, mode: c_uint, device: u64) -> c_int { mknodat(AT_FDCWD, path, mode, device) }
    fn mknodat(folder: c_int, path: Path, mode: c_uint, device: u64) -> c_int {
        changed(folder, path, false, || call!(MKNODAT, folder, path, mode, device), |tree, place| {
            let place = terminated(&tree.new_place(&place)?);
            call!(MKNODAT, AT_FDCWD, place.as_ptr(), mode, device).map(|_| ())
        })
    }
    fn __xmknod(_version: c_int, path: Path, mode: c_uint, device: *const u64) -> c_int { mknodat(AT_FDCWD, path, mode, *device) }
    fn __xmknodat(_version: c_int, folder: c_int, path: Path, mode: c_uint, device: *const u64) -> c_int {
        mknodat(folder, path, mode, *device)
    }
    fn link(from: Path, to: Path) -> c_int { linkat(AT_FDCWD, from, AT_FDCWD, to, 0) }
    fn linkat(begin: c_int, from: Path, end: c_int, to: Path, flags: c_int) -> c_int {
        let follows = flags & SYMLINK_FOLLOW != 0;
        let known = Tree::get().zip(bytes(from)).and_then(|(tree, from)| tree.resolve(begin, from, follows));
        changed(end, to, false, || call!(LINKAT, begin, from, end, to, flags), |tree, to| {
            let to = terminated(&tree.new_place(&to)?);
            match known {
                // The file of a descriptor, which may not have a name yet.
                None => call!(LINKAT, begin, from, AT_FDCWD, to.as_ptr(), flags),
                Some(Ok(Place::Real(from))) => {
                    call!(LINKAT, AT_FDCWD, terminated(&from).as_ptr(), AT_FDCWD, to.as_ptr(), flags)
                }
                Some(from) => {
                    let from = terminated(&tree.own_copy(&from?)?);
                    call!(LINKAT, AT_FDCWD, from.as_ptr(), AT_FDCWD, to.as_ptr(), 0)
                }
            }
            .map(|_| ())
        })
    }
    fn symlink(target: Path, path: Path) -> c_int { symlinkat(target, AT_FDCWD, path) }
    fn symlinkat(target: Path, folder: c_int, path: Path) -> c_int {
        changed(folder, path, false, || call!(SYMLINKAT, target, folder, path), |tree, place| {
            let place = terminated(&tree.new_place(&place)?);
            call!(SYMLINKAT, target, AT_FDCWD, place.as_ptr()).map(|_| ())
        })
    }
    fn truncate, truncate64(path: Path, size: i64) -> c_int {
        match opened(AT_FDCWD, path, O_WRONLY | O_CLOEXEC, 0) {
            -1 => -1,
            fd => {
                let done = returned(call!(FTRUNCATE, fd, size)) as c_int;
                sys::close(fd);
                done
            }
        }
    }

    fn chmod(path: Path, mode: c_uint) -> c_int { fchmodat(AT_FDCWD, path, mode, 0) }
    fn lchmod(path: Path, mode: c_uint) -> c_int { fchmodat(AT_FDCWD, path, mode, 0) }
    fn fchmodat(folder: c_int, path: Path, mode: c_uint, _flags: c_int) -> c_int {
        by_descriptor(folder, path, true, |fd| call!(FCHMOD, fd, mode))
    }
    fn fchmod(fd: c_int, mode: c_uint) -> c_int { of_descriptor(fd, |fd| call!(FCHMOD, fd, mode)) }
    fn chown(path: Path, user: c_uint, group: c_uint) -> c_int { by_descriptor(AT_FDCWD, path, true, |fd| call!(FCHOWN, fd, user, group)) }
    fn lchown(path: Path, user: c_uint, group: c_uint) -> c_int { by_descriptor(AT_FDCWD, path, false, |fd| call!(FCHOWN, fd, user, group)) }
    fn fchownat(folder: c_int, path: Path, user: c_uint, group: c_uint, flags: c_int) -> c_int {
        by_descriptor(folder, path, flags & NOFOLLOW == 0, |fd| call!(FCHOWN, fd, user, group))
    }
    fn fchown(fd: c_int, user: c_uint, group: c_uint) -> c_int { of_descriptor(fd, |fd| call!(FCHOWN, fd, user, group)) }
    fn utimensat(folder: c_int, path: Path, times: *const [i64; 4], flags: c_int) -> c_int {
        if path.is_null() {
            return of_descriptor(folder, |fd| call!(UTIMENSAT, fd, 0, times, 0));
        }
        by_descriptor(folder, path, flags & NOFOLLOW == 0, |fd| call!(UTIMENSAT, fd, 0, times, 0))
    }
    fn futimens(fd: c_int, times: *const [i64; 4]) -> c_int { of_descriptor(fd, |fd| call!(UTIMENSAT, fd, 0, times, 0)) }
    fn utimes(path: Path, times: *const [i64; 4]) -> c_int { timed(AT_FDCWD, path, times, true) }
    fn lutimes(path: Path, times: *const [i64; 4]) -> c_int { timed(AT_FDCWD, path, times, false) }
    fn utime(path: Path, times: *const [i64; 2]) -> c_int {
        let times = times.as_ref().map(|[accessed, changed]| [*accessed, 0, *changed, 0]);
        let times = times.as_ref().map_or(std::ptr::null(), |times| times as *const [i64; 4]);
        by_descriptor(AT_FDCWD, path, true, |fd| call!(UTIMENSAT, fd, 0, times, 0))
    }
    fn futimes(fd: c_int, times: *const [i64; 4]) -> c_int {
        let times = finer(times);
        let times = times.as_ref().map_or(std::ptr::null(), |times| times as *const [i64; 4]);
        of_descriptor(fd, |fd| call!(UTIMENSAT, fd, 0, times, 0))
    }
    fn futimesat(folder: c_int, path: Path, times: *const [i64; 4]) -> c_int {
        if path.is_null() { futimes(folder, times) } else { timed(folder, path, times, true) }
    }
    fn setxattr(path: Path, name: Path, value: *const c_void, size: usize, flags: c_int) -> c_int {
        by_descriptor(AT_FDCWD, path, true, |fd| call!(FSETXATTR, fd, name, value, size, flags))
    }
    fn lsetxattr(path: Path, name: Path, value: *const c_void, size: usize, flags: c_int) -> c_int {
        by_descriptor(AT_FDCWD, path, false, |fd| call!(FSETXATTR, fd, name, value, size, flags))
    }
    fn fsetxattr(fd: c_int, name: Path, value: *const c_void, size: usize, flags: c_int) -> c_int {
        of_descriptor(fd, |fd| call!(FSETXATTR, fd, name, value, size, flags))
    }
    fn removexattr(path: Path, name: Path) -> c_int { by_descriptor(AT_FDCWD, path, true, |fd| call!(FREMOVEXATTR, fd, name)) }
    fn lremovexattr(path: Path, name: Path) -> c_int { by_descriptor(AT_FDCWD, path, false, |fd| call!(FREMOVEXATTR, fd, name)) }
    fn fremovexattr(fd: c_int, name: Path) -> c_int { of_descriptor(fd, |fd| call!(FREMOVEXATTR, fd, name)) }

    fn write(fd: c_int, from: *const c_void, size: usize) -> isize { spaced(fd, || call!(WRITE, fd, from, size)) }
    fn writev(fd: c_int, from: *const c_void, parts: c_int) -> isize { spaced(fd, || call!(WRITEV, fd, from, parts)) }
    fn pwrite, pwrite64(fd: c_int, from: *const c_void, size: usize, place: i64) -> isize {
        spaced(fd, || call!(PWRITE64, fd, from, size, place))
    }
    fn fallocate, fallocate64(fd: c_int, mode: c_int, place: i64, size: i64) -> c_int {
        spaced(fd, || call!(FALLOCATE, fd, mode, place, size)) as c_int
    }
    fn posix_fallocate, posix_fallocate64(fd: c_int, place: i64, size: i64) -> c_int {
        if spaced(fd, || call!(FALLOCATE, fd, 0, place, size)) == -1 { sys::errno() } else { 0 }
    }
    fn copy_file_range(from: c_int, begin: *mut i64, to: c_int, end: *mut i64, size: usize, flags: c_uint) -> isize {
        spaced(to, || call!(COPY_FILE_RANGE, from, begin, to, end, size, flags))
    }
    fn sendfile, sendfile64(to: c_int, from: c_int, begin: *mut i64, size: usize) -> isize {
        spaced(to, || call!(SENDFILE, to, from, begin, size))
    }

    fn execve(path: Path, words: *const Path, variables: *const Path) -> c_int {
        let run: unsafe extern "C" fn(Path, *const Path, *const Path) -> c_int = real!(c"execve");
        let place = folders::program(path);
        run(place.as_ref().map_or(path, |place| place.as_ptr().cast()), words, variables)
    }
    fn execv(path: Path, words: *const Path) -> c_int {
        let run: unsafe extern "C" fn(Path, *const Path) -> c_int = real!(c"execv");
        let place = folders::program(path);
        run(place.as_ref().map_or(path, |place| place.as_ptr().cast()), words)
    }
    fn execvp(path: Path, words: *const Path) -> c_int {
        let run: unsafe extern "C" fn(Path, *const Path) -> c_int = real!(c"execvp");
        let place = folders::program(path);
        run(place.as_ref().map_or(path, |place| place.as_ptr().cast()), words)
    }
    fn execvpe(path: Path, words: *const Path, variables: *const Path) -> c_int {
        let run: unsafe extern "C" fn(Path, *const Path, *const Path) -> c_int = real!(c"execvpe");
        let place = folders::program(path);
        run(place.as_ref().map_or(path, |place| place.as_ptr().cast()), words, variables)
    }
    fn posix_spawnp(child: *mut c_int, path: Path, actions: *const c_void, attributes: *const c_void, words: *const Path, variables: *const Path) -> c_int {
        let run: unsafe extern "C" fn(*mut c_int, Path, *const c_void, *const c_void, *const Path, *const Path) -> c_int = real!(c"posix_spawnp");
        let place = folders::program(path);
        run(child, place.as_ref().map_or(path, |place| place.as_ptr().cast()), actions, attributes, words, variables)
    }
    fn posix_spawn(child: *mut c_int, path: Path, actions: *const c_void, attributes: *const c_void, words: *const Path, variables: *const Path) -> c_int {
        let run: unsafe extern "C" fn(*mut c_int, Path, *const c_void, *const c_void, *const Path, *const Path) -> c_int = real!(c"posix_spawn");
        let place = folders::program(path);
        run(child, place.as_ref().map_or(path, |place| place.as_ptr().cast()), actions, attributes, words, variables)
    }
}

/// The file for a stream with this mode.
unsafe fn streamed(path: Path, mode: Path) -> Option<Result<Vec<u8>>> {
    // SAFETY: the caller passes valid strings.
    let (path, mode) = unsafe { (bytes(path)?, bytes(mode)?) };
    let updates = mode.contains(&b'+');
    let flags = match mode.first() {
        Some(b'w') => O_CREAT | O_TRUNC | O_WRONLY,
        Some(b'a') => O_CREAT | O_APPEND | O_WRONLY,
        _ if updates => 2,
        _ => 0,
    };
    let flags = if mode.contains(&b'x') { flags | O_EXCL } else { flags };
    Tree::get()?.opened(AT_FDCWD, path, flags)
}

unsafe fn status(folder: c_int, path: Path, out: *mut c_void, flags: c_int) -> c_int {
    // SAFETY: the caller passes a valid path.
    unsafe {
        found(folder, path, flags & NOFOLLOW == 0, |folder, path| call!(NEWFSTATAT, folder, path, out, flags))
            as c_int
    }
}

unsafe fn removed(folder: c_int, path: Path, flags: c_int) -> c_int {
    let is_folder = flags & REMOVEDIR != 0;
    // SAFETY: the caller passes a valid path.
    unsafe {
        changed(
            folder,
            path,
            false,
            || call!(UNLINKAT, folder, path, flags),
            |tree, place| match place {
                Place::Real(real) => sys::unlink(&real, flags),
                Place::Seen(seen) => tree.remove(&seen, is_folder),
            },
        )
    }
}

unsafe fn renamed(begin: c_int, from: Path, end: c_int, to: Path, flags: c_uint) -> c_int {
    // SAFETY: the caller passes valid paths.
    unsafe {
        let known = Tree::get().zip(bytes(from)).and_then(|(tree, from)| tree.resolve(begin, from, false));
        changed(
            end,
            to,
            false,
            || call!(RENAMEAT2, begin, from, end, to, flags),
            |tree, to| match known {
                Some(known) => match (known?, &to) {
                    (Place::Real(from), Place::Real(to)) => sys::rename(&from, to),
                    (from, to) => tree.rename(&from, to, flags),
                },
                None => Err(ENOENT),
            },
        )
    }
}

/// Changes the program's own copy of a file, through a descriptor.
unsafe fn by_descriptor(
    folder: c_int,
    path: Path,
    follows: bool,
    change: impl Fn(c_int) -> Result<i64>,
) -> c_int {
    // SAFETY: the caller passes a valid path.
    unsafe {
        if bytes(path).is_some_and(<[u8]>::is_empty) {
            return of_descriptor(folder, change);
        }
        let by = |place: &[u8]| {
            let fd = sys::open(place, O_NONBLOCK | if follows { 0 } else { O_NOFOLLOW }, 0)?;
            let done = change(fd);
            sys::close(fd);
            done
        };
        let without = || {
            let fd = call!(OPENAT, folder, path, O_NONBLOCK | O_CLOEXEC)? as c_int;
            let done = change(fd);
            sys::close(fd);
            done
        };
        changed(folder, path, follows, without, |tree, place| {
            match tree.own_copy(&place).and_then(|own| by(&own)) {
                // A link's own mode and time do not matter here.
                Err(ELOOP) if !follows => Ok(()),
                done => done.map(|_| ()),
            }
        })
    }
}

/// Changes the file of a descriptor. If the file is on the disk, changes the program's own copy instead.
fn of_descriptor(fd: c_int, change: impl Fn(c_int) -> Result<i64>) -> c_int {
    let on_disk = Tree::get().filter(|tree| !tree.has(fd)).and_then(|tree| {
        let path = crate::tree::descriptor(fd)?;
        Some((tree, tree.resolve(AT_FDCWD, &path, false)?.ok()?))
    });
    returned(match on_disk {
        Some((tree, Place::Seen(seen))) if tree.on_disk(&seen).is_some() => tree
            .copy_up(&seen, true)
            .and_then(|()| sys::open(&tree.own(&seen), O_NONBLOCK, 0))
            .and_then(|fd| {
                let done = change(fd);
                sys::close(fd);
                done
            }),
        _ => change(fd),
    }) as c_int
}

/// Two times in seconds and nanoseconds, converted from two in seconds and microseconds, or null.
unsafe fn finer(times: *const [i64; 4]) -> Option<[i64; 4]> {
    // SAFETY: the caller passes valid times.
    unsafe { times.as_ref() }.map(|[a, b, c, d]| [*a, *b * 1000, *c, *d * 1000])
}

unsafe fn timed(folder: c_int, path: Path, times: *const [i64; 4], follows: bool) -> c_int {
    // SAFETY: the caller's path, and two times or null.
    unsafe {
        let times = finer(times);
        let times = times.as_ref().map_or(std::ptr::null(), |times| times as *const [i64; 4]);
        by_descriptor(folder, path, follows, |fd| call!(UTIMENSAT, fd, 0, times, 0))
    }
}

/// Writes, unless --scratch is used up.
fn spaced(fd: c_int, write: impl FnOnce() -> Result<i64>) -> isize {
    let is_full = Tree::get().is_some_and(|tree| tree.is_full() && tree.has(fd));
    returned(if is_full { Err(ENOSPC) } else { write() }) as isize
}
