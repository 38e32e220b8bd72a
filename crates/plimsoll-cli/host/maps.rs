//! The C library's functions for mappings.

use std::ffi::{CStr, c_int, c_long, c_void};
use std::fmt::Write;

use crate::ledger::{Kind, LARGE, LEDGER, Piece};
use crate::owners::{self, NAMES, Owner};
use crate::{moments, sys};

const NO_ACCESS: c_int = 0;
const EXECUTE: c_int = 4;
const SHARED: c_int = 1;
const ANONYMOUS: c_int = 0x20;
/// The size in which Python's allocator requests memory for small objects, from 3.10 on.
const ARENA: usize = 1 << 20;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap(
    begin: *mut c_void,
    bytes: usize,
    protection: c_int,
    flags: c_int,
    file: c_int,
    offset: c_long,
) -> *mut c_void {
    let (words, place) = ([protection, flags, file].map(c_long::from), begin.expose_provenance() as c_long);
    let memory = sys::map([place, bytes as c_long, words[0], words[1], words[2], offset]);
    if memory.addr() != usize::MAX && bytes >= LARGE && protection != NO_ACCESS && moments::is_on() {
        let code = sys::errno();
        if let Some((kind, owner)) = kind(bytes, protection, flags, file) {
            // Sampled without it, because none of its pages is resident yet.
            moments::now_and_then();
            LEDGER.lock().add(Piece { begin: memory.addr() as u64, bytes: bytes as u64, kind, owner });
        }
        sys::set_errno(code);
    }
    memory
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap64(
    begin: *mut c_void,
    bytes: usize,
    protection: c_int,
    flags: c_int,
    file: c_int,
    offset: c_long,
) -> *mut c_void {
    // SAFETY: passes on the program's own call.
    unsafe { mmap(begin, bytes, protection, flags, file, offset) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn munmap(begin: *mut c_void, bytes: usize) -> c_int {
    let piece = ends(begin, bytes);
    let code = sys::unmap(begin, bytes);
    match piece {
        Some(piece) if code != 0 => LEDGER.lock().add(piece),
        // A part at its start was unmapped.
        Some(piece) if (bytes as u64) < piece.bytes => {
            let bytes = bytes as u64;
            LEDGER.lock().add(Piece { begin: piece.begin + bytes, bytes: piece.bytes - bytes, ..piece });
        }
        _ => {}
    }
    code
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn mremap(
    begin: *mut c_void,
    old: usize,
    new: usize,
    flags: c_int,
    to: *mut c_void,
) -> *mut c_void {
    let piece = ends(begin, old);
    let memory = sys::remap(begin, old, new, flags, to);
    if let Some(piece) = piece {
        let moved = Piece { begin: memory.addr() as u64, bytes: new as u64, ..piece };
        LEDGER.lock().add(if memory.addr() == usize::MAX { piece } else { moved });
    }
    memory
}

/// Forgets a mapping that is about to end.
fn ends(begin: *mut c_void, bytes: usize) -> Option<Piece> {
    let is_known = bytes > 0 && moments::is_on() && LEDGER.lock().at(begin.addr() as u64).is_some();
    if !is_known {
        return None;
    }
    moments::before_free();
    LEDGER.lock().remove(begin.addr() as u64)
}

/// The kind of a mapping; `None` if it is counted elsewhere, like libraries and files in `/dev/shm`.
fn kind(bytes: usize, protection: c_int, flags: c_int, file: c_int) -> Option<(Kind, Owner)> {
    if flags & ANONYMOUS != 0 {
        return Some(match flags & SHARED != 0 {
            true => (Kind::Shared, owners::current(Owner::SHARED)),
            false if bytes == ARENA => (Kind::Private, Owner::OBJECTS),
            false => (Kind::Private, owners::current(Owner::MAPPED)),
        });
    }
    if protection & EXECUTE != 0 {
        return None;
    }
    let (mut link, mut path) = (Link::default(), [0; 4096]);
    // The number of a file always fits.
    let _done = write!(link, "/proc/self/fd/{file}\0");
    let path = sys::link(CStr::from_bytes_until_nul(&link.bytes).ok()?, &mut path);
    if path.starts_with(b"/dev/shm/") {
        moments::look_at_shm();
        return None;
    }
    if path.starts_with(b"/memfd:") {
        return Some((Kind::Shared, Owner::SHARED));
    }
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
    Some((Kind::File, NAMES.lock().numbered(name)))
}

#[derive(Default)]
struct Link {
    bytes: [u8; 32],
    length: usize,
}

impl Write for Link {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let end = self.length + text.len();
        let room = self.bytes.get_mut(self.length..end).ok_or(std::fmt::Error)?;
        room.copy_from_slice(text.as_bytes());
        self.length = end;
        Ok(())
    }
}
