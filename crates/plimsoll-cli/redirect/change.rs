//! Changes to the private tree; the disk is never changed.

use std::ffi::c_int;

use crate::sys::{self, *};
use crate::tree::{Layer, Place, Tree};

impl Tree {
    /// Copies the file on the disk at a path to the tree; a folder is copied without its entries.
    pub(crate) fn copy_up(&self, path: &[u8], keeps: bool) -> Result<()> {
        let Some((layer, stat)) = self.find(path) else { return Err(ENOENT) };
        if layer == Layer::Own {
            return Ok(());
        }
        self.make_room_quietly(path)?;
        let own = self.own(path);
        if stat.is_folder() {
            return match sys::mkdir(&own, stat.mode() & 0o7777 | 0o700) {
                Err(EEXIST) => Ok(()),
                made => made,
            };
        }
        if stat.is_link() {
            let (target, own) = (sys::terminated(&sys::read_link(path)?), sys::terminated(&own));
            return call!(SYMLINKAT, target.as_ptr(), AT_FDCWD, own.as_ptr()).map(|_| ());
        }
        if !stat.is_file() {
            return Err(EACCES);
        }
        // It is copied under a different name first, so that no process reads an incomplete file.
        let unfinished = [&own[..], format!(".{}.plimsoll", std::process::id()).as_bytes()].concat();
        let to = sys::open(&unfinished, O_CREAT | O_TRUNC | O_WRONLY, 0o600)?;
        let copied = if keeps { sys::open(path, 0, 0).and_then(|from| copy(from, to)) } else { Ok(()) };
        let mode = || call!(FCHMOD, to, stat.mode() & 0o7777);
        let times = stat.times();
        let timed = || if keeps { call!(UTIMENSAT, to, 0, times.as_ptr(), 0) } else { Ok(0) };
        let done = copied.and_then(|()| mode()).and_then(|_| timed()).map(|_| ());
        sys::close(to);
        match done.and_then(|()| sys::rename(&unfinished, &own)) {
            Ok(()) => Ok(()),
            Err(why) => {
                let _absent = sys::unlink(&unfinished, 0);
                Err(why)
            }
        }
    }

    /// Does the same as [`Tree::make_room`], for cases in which nothing new appears in the folder.
    fn make_room_quietly(&self, path: &[u8]) -> Result<()> {
        match self.make_room(path) {
            Err(EACCES | 30) => self.make_room_anyway(path),
            made => made,
        }
    }

    /// The same as [`Tree::copy_up`], but including all entries of a folder.
    fn copy_up_all(&self, path: &[u8]) -> Result<()> {
        self.copy_up(path, true)?;
        if self.find(path).is_some_and(|(_, stat)| stat.is_folder()) {
            for (name, ..) in self.entries(path)? {
                self.copy_up_all(&[path, b"/", &name].concat())?;
            }
        }
        Ok(())
    }

    /// The file to open with these flags.
    pub(crate) fn opened(&self, folder: c_int, path: &[u8], flags: c_int) -> Option<Result<Vec<u8>>> {
        let writes = flags & O_ACCMODE != 0 || flags & (O_CREAT | O_TRUNC) != 0;
        if !writes && !self.is_dirty() {
            return None;
        }
        let is_new_only = flags & (O_CREAT | O_EXCL) == O_CREAT | O_EXCL;
        let seen = match self.resolve(folder, path, flags & O_NOFOLLOW == 0 && !is_new_only)? {
            Ok(Place::Seen(seen)) => seen,
            Ok(Place::Real(real)) => return Some(Ok(real)),
            Err(why) => return Some(Err(why)),
        };
        Some(if writes { self.opened_for_writing(&seen, flags) } else { Ok(self.found(&seen)) })
    }

    fn opened_for_writing(&self, seen: &[u8], flags: c_int) -> Result<Vec<u8>> {
        const TEMPORARY: c_int = 0o20000000;
        let own = self.own(seen);
        if self.is_full() {
            return Err(ENOSPC);
        }
        match self.find(seen) {
            Some(_) if flags & (O_CREAT | O_EXCL) == O_CREAT | O_EXCL => Err(EEXIST),
            Some((_, stat)) if stat.is_folder() && flags & TEMPORARY != 0 => {
                self.make_room(&[seen, b"/x"].concat()).map(|()| own)
            }
            Some((_, stat)) if stat.is_folder() && flags & O_ACCMODE != 0 => Err(EISDIR),
            Some((Layer::Own, _)) => Ok(own),
            Some((Layer::Disk, stat))
                if stat.is_file() && (flags & O_ACCMODE != 0 || flags & O_TRUNC != 0) =>
            {
                let terminated = sys::terminated(seen);
                call!(FACCESSAT, AT_FDCWD, terminated.as_ptr(), 2)?;
                self.copy_up(seen, flags & O_TRUNC == 0).map(|()| own)
            }
            // Pipes and devices are not files on the disk.
            Some((Layer::Disk, _)) => Ok(seen.to_vec()),
            None if flags & O_CREAT == 0 => Err(ENOENT),
            None => self.make_room(seen).map(|()| own),
        }
    }

    pub(crate) fn remove(&self, seen: &[u8], is_folder: bool) -> Result<()> {
        let (layer, stat) = self.find(seen).ok_or(ENOENT)?;
        match (is_folder, stat.is_folder()) {
            (true, false) => return Err(ENOTDIR),
            (false, true) => return Err(EISDIR),
            (true, true) if !self.entries(seen)?.is_empty() => return Err(ENOTEMPTY),
            _ => {}
        }
        self.make_room(seen)?;
        let disk = self.on_disk(seen).is_some();
        if layer == Layer::Own {
            sys::unlink(&self.own(seen), if is_folder { REMOVEDIR } else { 0 })?;
        }
        if disk { self.mark_gone(seen) } else { Ok(()) }
    }

    pub(crate) fn make_folder(&self, seen: &[u8], mode: u32) -> Result<()> {
        if self.find(seen).is_some() {
            return Err(EEXIST);
        }
        self.make_room(seen)?;
        sys::mkdir(&self.own(seen), mode)
    }

    pub(crate) fn rename(&self, from: &Place, to: &Place, flags: u32) -> Result<()> {
        const NOREPLACE: u32 = 1;
        if flags & !NOREPLACE != 0 {
            return Err(EINVAL);
        }
        let (begin, was_on_disk) = match from {
            Place::Real(real) => (real.clone(), false),
            Place::Seen(seen) => {
                self.find(seen).ok_or(ENOENT)?;
                let disk = self.on_disk(seen).is_some();
                self.make_room(seen)?;
                self.copy_up_all(seen)?;
                (self.own(seen), disk)
            }
        };
        let is_folder = Stat::of(&begin)?.is_folder();
        let end = match to {
            Place::Real(real) => real.clone(),
            Place::Seen(seen) => {
                if let Some((layer, stat)) = self.find(seen) {
                    match (is_folder, stat.is_folder()) {
                        _ if flags & NOREPLACE != 0 => return Err(EEXIST),
                        (true, false) => return Err(ENOTDIR),
                        (false, true) => return Err(EISDIR),
                        (true, true) if !self.entries(seen)?.is_empty() => return Err(ENOTEMPTY),
                        _ => {}
                    }
                    let disk = self.on_disk(seen).is_some();
                    if layer == Layer::Own && is_folder {
                        sys::unlink(&self.own(seen), REMOVEDIR)?;
                    }
                    if disk && is_folder {
                        self.mark_gone(seen)?;
                    }
                }
                self.make_room(seen)?;
                self.own(seen)
            }
        };
        sys::rename(&begin, &end)?;
        match from {
            Place::Seen(seen) if was_on_disk => self.mark_gone(seen),
            _ => Ok(()),
        }
    }

    /// The path in the tree for a new file.
    pub(crate) fn new_place(&self, place: &Place) -> Result<Vec<u8>> {
        match place {
            Place::Real(real) => Ok(real.clone()),
            Place::Seen(seen) if self.find(seen).is_some() => Err(EEXIST),
            Place::Seen(seen) => self.make_room(seen).map(|()| self.own(seen)),
        }
    }

    /// The program's own copy of the existing file.
    pub(crate) fn own_copy(&self, place: &Place) -> Result<Vec<u8>> {
        match place {
            Place::Real(real) => Ok(real.clone()),
            Place::Seen(seen) => self.copy_up(seen, true).map(|()| self.own(seen)),
        }
    }
}

fn copy(from: c_int, to: c_int) -> Result<()> {
    let copied = loop {
        match call!(COPY_FILE_RANGE, from, 0, to, 0, 1 << 30, 0) {
            Ok(0) => break Ok(()),
            Ok(_) => {}
            // For example, the file systems differ, or the kernel is old.
            Err(_) => break copy_by_reading(from, to),
        }
    };
    sys::close(from);
    copied
}

fn copy_by_reading(from: c_int, to: c_int) -> Result<()> {
    let mut buffer = vec![0_u8; 1 << 16];
    loop {
        let read = call!(READ, from, buffer.as_mut_ptr(), buffer.len())?;
        if read == 0 {
            return Ok(());
        }
        let mut done = 0;
        while done < read {
            done += call!(WRITE, to, buffer[done as usize..].as_ptr(), read - done)?;
        }
    }
}
