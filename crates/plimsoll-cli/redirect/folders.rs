//! Folders: lists the entries of both layers together.

use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_long, c_void};
use std::sync::Mutex;

use crate::calls::{bytes, failed, found, real};
use crate::sys::*;
use crate::tree::{Layer, Place, Tree, descriptor};

/// `struct dirent` of 64-bit Linux.
#[repr(C)]
struct Entry {
    inode: u64,
    offset: i64,
    length: u16,
    kind: u8,
    name: [u8; 256],
}

/// The entries of an open folder, and the index of the next one.
struct Listing {
    entries: Vec<Box<Entry>>,
    next: usize,
}

/// Open folders with entries of both layers, by their handle.
static LISTINGS: Mutex<BTreeMap<usize, Listing>> = Mutex::new(BTreeMap::new());

fn listings<T>(work: impl FnOnce(&mut BTreeMap<usize, Listing>) -> T) -> T {
    work(&mut LISTINGS.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
}

fn listing(tree: &Tree, seen: &[u8]) -> Result<Listing> {
    let own = [(b".".to_vec(), 4, 1), (b"..".to_vec(), 4, 1)];
    let entries =
        own.into_iter().chain(tree.entries(seen)?).enumerate().map(|(place, (name, kind, inode))| {
            let mut entry = Entry { inode, offset: place as i64 + 1, length: 280, kind, name: [0; 256] };
            let length = name.len().min(255);
            entry.name[..length].copy_from_slice(&name[..length]);
            Box::new(entry)
        });
    Ok(Listing { entries: entries.collect(), next: 0 })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn opendir(name: *const c_char) -> *mut c_void {
    let open: unsafe extern "C" fn(*const c_char) -> *mut c_void = real!(c"opendir");
    // SAFETY: the caller passes a valid path.
    let Some((tree, path)) = Tree::get().filter(|tree| tree.is_dirty()).zip(unsafe { bytes(name) }) else {
        // SAFETY: passes on the caller's own call.
        return unsafe { open(name) };
    };
    let seen = match tree.resolve(AT_FDCWD, path, true) {
        Some(Ok(Place::Seen(seen))) => seen,
        Some(Err(why)) => return failed(why, std::ptr::null_mut()),
        // SAFETY: passes on the caller's own call.
        _ => return unsafe { open(name) },
    };
    // The path of the folder is read from its descriptor.
    let layer = tree.find(&seen).map_or(Layer::Own, |(layer, _)| layer);
    let place = terminated(&tree.place(&seen, layer));
    // SAFETY: it ends with NUL.
    let handle = unsafe { open(place.as_ptr().cast()) };
    noted(tree, &seen, handle)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdopendir(fd: c_int) -> *mut c_void {
    let open: unsafe extern "C" fn(c_int) -> *mut c_void = real!(c"fdopendir");
    // SAFETY: passes on the caller's own call.
    let handle = unsafe { open(fd) };
    match Tree::get().filter(|tree| tree.is_dirty()).zip(descriptor(fd)) {
        Some((tree, path)) => noted(tree, &tree.seen(path), handle),
        None => handle,
    }
}

fn noted(tree: &Tree, seen: &[u8], handle: *mut c_void) -> *mut c_void {
    if !handle.is_null()
        && tree.is_mixed(seen)
        && let Ok(listing) = listing(tree, seen)
    {
        listings(|all| all.insert(handle as usize, listing));
    }
    handle
}

fn next(handle: *mut c_void) -> Option<*mut c_void> {
    listings(|all| {
        let listing = all.get_mut(&(handle as usize))?;
        let entry = listing.entries.get_mut(listing.next);
        listing.next += 1;
        Some(entry.map_or(std::ptr::null_mut(), |entry| (&raw mut **entry).cast()))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn readdir(handle: *mut c_void) -> *mut c_void {
    let read: unsafe extern "C" fn(*mut c_void) -> *mut c_void = real!(c"readdir");
    // SAFETY: passes on the caller's own call.
    next(handle).unwrap_or_else(|| unsafe { read(handle) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn readdir64(handle: *mut c_void) -> *mut c_void {
    // SAFETY: it is the same function on 64-bit Linux.
    unsafe { readdir(handle) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn closedir(handle: *mut c_void) -> c_int {
    let close: unsafe extern "C" fn(*mut c_void) -> c_int = real!(c"closedir");
    let _closed = listings(|all| all.remove(&(handle as usize)));
    // SAFETY: passes on the caller's own call.
    unsafe { close(handle) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rewinddir(handle: *mut c_void) {
    let rewind: unsafe extern "C" fn(*mut c_void) = real!(c"rewinddir");
    // Reads the folder again.
    let again = descriptor(unsafe { dirfd(handle) })
        .zip(Tree::get())
        .and_then(|(path, tree)| listing(tree, &tree.seen(path)).ok());
    listings(|all| {
        if let (Some(known), Some(again)) = (all.get_mut(&(handle as usize)), again) {
            *known = again;
        }
    });
    // SAFETY: passes on the caller's own call.
    unsafe { rewind(handle) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn telldir(handle: *mut c_void) -> c_long {
    let tell: unsafe extern "C" fn(*mut c_void) -> c_long = real!(c"telldir");
    let known = listings(|all| all.get(&(handle as usize)).map(|listing| listing.next as c_long));
    // SAFETY: passes on the caller's own call.
    known.unwrap_or_else(|| unsafe { tell(handle) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn seekdir(handle: *mut c_void, place: c_long) {
    let seek: unsafe extern "C" fn(*mut c_void, c_long) = real!(c"seekdir");
    let known =
        listings(|all| all.get_mut(&(handle as usize)).map(|listing| listing.next = place.max(0) as usize));
    if known.is_none() {
        // SAFETY: passes on the caller's own call.
        unsafe { seek(handle, place) }
    }
}

unsafe extern "C" {
    fn dirfd(handle: *mut c_void) -> c_int;
}

/// The current folder, as the program sees it.
fn here() -> Result<Vec<u8>> {
    let mut buffer = vec![0_u8; 4096];
    let length = call!(GETCWD, buffer.as_mut_ptr(), buffer.len())? as usize;
    buffer.truncate(length.saturating_sub(1));
    Ok(Tree::get().map_or(buffer.clone(), |tree| tree.seen(buffer)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn getcwd(buffer: *mut c_char, size: usize) -> *mut c_char {
    let here = match here() {
        Ok(here) => terminated(&here),
        Err(why) => return failed(why, std::ptr::null_mut()),
    };
    // SAFETY: `buffer` has `size` bytes; without a buffer, the caller frees the result.
    unsafe {
        let to = match buffer.is_null() {
            true => malloc(here.len().max(size)).cast::<c_char>(),
            false if size < here.len() => return failed(34, std::ptr::null_mut()),
            false => buffer,
        };
        if !to.is_null() {
            std::ptr::copy_nonoverlapping(here.as_ptr(), to.cast(), here.len());
        }
        to
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __getcwd_chk(buffer: *mut c_char, size: usize, _room: usize) -> *mut c_char {
    // SAFETY: passes on the caller's own call.
    unsafe { getcwd(buffer, size) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn getwd(buffer: *mut c_char) -> *mut c_char {
    // SAFETY: the caller's buffer has PATH_MAX bytes.
    unsafe { getcwd(buffer, 4096) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn get_current_dir_name() -> *mut c_char {
    // SAFETY: no buffer.
    unsafe { getcwd(std::ptr::null_mut(), 0) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn chdir(path: *const c_char) -> c_int {
    // SAFETY: the caller passes a valid path.
    unsafe { found(AT_FDCWD, path, true, |_, place| call!(CHDIR, place)) as c_int }
}

/// The path without links, if the file exists.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn realpath(path: *const c_char, buffer: *mut c_char) -> *mut c_char {
    let resolve: unsafe extern "C" fn(*const c_char, *mut c_char) -> *mut c_char = real!(c"realpath");
    // SAFETY: the caller passes a valid path.
    let Some((tree, known)) = Tree::get().filter(|tree| tree.is_dirty()).zip(unsafe { bytes(path) }) else {
        // SAFETY: passes on the caller's own call.
        return unsafe { resolve(path, buffer) };
    };
    let seen = match tree.resolve(AT_FDCWD, known, true) {
        Some(Ok(Place::Seen(seen))) if tree.find(&seen).is_some() => terminated(&seen),
        Some(Ok(Place::Seen(_))) => return failed(ENOENT, std::ptr::null_mut()),
        Some(Err(why)) => return failed(why, std::ptr::null_mut()),
        // SAFETY: passes on the caller's own call.
        _ => return unsafe { resolve(path, buffer) },
    };
    // SAFETY: a buffer has PATH_MAX bytes; without a buffer, the caller frees the result.
    unsafe {
        let to = if buffer.is_null() { malloc(seen.len()).cast::<c_char>() } else { buffer };
        if !to.is_null() && seen.len() <= 4096 {
            std::ptr::copy_nonoverlapping(seen.as_ptr(), to.cast(), seen.len());
        }
        to
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn __realpath_chk(
    path: *const c_char,
    buffer: *mut c_char,
    _size: usize,
) -> *mut c_char {
    // SAFETY: passes on the caller's own call.
    unsafe { realpath(path, buffer) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn canonicalize_file_name(path: *const c_char) -> *mut c_char {
    // SAFETY: passes on the caller's own call.
    unsafe { realpath(path, std::ptr::null_mut()) }
}

/// For `execve` and similar functions: the path of a program in the tree.
pub(crate) fn program(path: *const c_char) -> Option<Vec<u8>> {
    // SAFETY: the caller passes a valid path.
    let (tree, path) = Tree::get().filter(|tree| tree.is_dirty()).zip(unsafe { bytes(path) })?;
    if !path.contains(&b'/') {
        return None;
    }
    match tree.resolve(AT_FDCWD, path, true)? {
        Ok(Place::Seen(seen)) => match tree.find(&seen) {
            // This includes a program that was removed.
            Some((Layer::Own, _)) | None => Some(terminated(&tree.own(&seen))),
            Some(_) => None,
        },
        _ => None,
    }
}
