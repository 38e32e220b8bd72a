//! The private tree: the program's files that replace those on the disk ([`Tree`]).
//!
//! ```text
//! TREE/files/PATH      the program's own file
//! TREE/gone/PATH/\x01  the program has removed what was there: nothing of the disk is seen at this path and below it
//! TREE/dirty           there is one of both
//! TREE/full            its first byte is not 0: --scratch is used up
//! ```

use std::ffi::c_int;
use std::sync::atomic::{AtomicPtr, AtomicU8, Ordering};

use crate::sys::{self, *};

/// Interfaces of the kernel, where nothing is redirected, except the files of shared memory.
const INTERFACES: [&[u8]; 3] = [b"/proc", b"/sys", b"/dev"];
const SHARED: &[u8] = b"/dev/shm";

/// The name of a mark in `gone`.
const MARK: &[u8] = b"/\x01";

pub(crate) struct Tree {
    folder: Vec<u8>,
    /// The folder through which our own processes communicate; it is never redirected.
    session: Vec<u8>,
    full: Option<&'static AtomicU8>,
}

static TREE: AtomicPtr<Tree> = AtomicPtr::new(std::ptr::null_mut());

/// The result of resolving a path.
pub(crate) enum Place {
    /// A file that is not redirected.
    Real(Vec<u8>),
    /// This path, in which no part before the last is a link.
    Seen(Vec<u8>),
}

/// Which layer has the file that the program sees at a path.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layer {
    Own,
    Disk,
}

impl Tree {
    /// The tree of this process, if there is one.
    pub(crate) fn get() -> Option<&'static Tree> {
        let known = TREE.load(Ordering::Acquire);
        if !known.is_null() {
            // SAFETY: trees are never freed.
            let tree = unsafe { &*known };
            return (!tree.folder.is_empty()).then_some(tree);
        }
        let folder = sys::variable(c"PLIMSOLL_REDIRECT").unwrap_or_default();
        Tree::set(folder)
    }

    /// Replaces the tree.
    pub(crate) fn set(folder: Vec<u8>) -> Option<&'static Tree> {
        let session = sys::variable(c"PLIMSOLL_REDIRECT_SESSION").unwrap_or_default();
        let full = if folder.is_empty() { None } else { flag(&[&folder[..], b"/full"].concat()) };
        let tree = Box::into_raw(Box::new(Tree { folder, session, full }));
        TREE.store(tree, Ordering::Release);
        // SAFETY: as above.
        let tree = unsafe { &*tree };
        (!tree.folder.is_empty()).then_some(tree)
    }

    fn at(&self, part: &str, path: &[u8]) -> Vec<u8> {
        [&self.folder[..], part.as_bytes(), path].concat()
    }

    pub(crate) fn own(&self, path: &[u8]) -> Vec<u8> {
        self.at("/files", path)
    }

    fn gone(&self, path: &[u8]) -> Vec<u8> {
        self.at("/gone", path)
    }

    /// Whether anything was written.
    pub(crate) fn is_dirty(&self) -> bool {
        sys::exists(&self.at("/dirty", b""))
    }

    fn make_dirty(&self) {
        if let Ok(fd) = sys::open(&self.at("/dirty", b""), O_CREAT | O_WRONLY, 0o600) {
            sys::close(fd);
        }
    }

    pub(crate) fn is_full(&self) -> bool {
        self.full.is_some_and(|full| full.load(Ordering::Relaxed) != 0)
    }

    /// Whether a descriptor is one of the program's own files.
    pub(crate) fn has(&self, fd: c_int) -> bool {
        descriptor(fd).is_some_and(|path| path.starts_with(&self.folder))
    }

    /// The path as the program sees it.
    pub(crate) fn seen(&self, path: Vec<u8>) -> Vec<u8> {
        match path.strip_prefix(&self.own(b"")[..]) {
            Some(b"") => b"/".to_vec(),
            Some(rest) if rest[0] == b'/' => rest.to_vec(),
            _ => path,
        }
    }

    fn is_real(&self, path: &[u8]) -> bool {
        let is_below =
            |folder: &[u8]| path.strip_prefix(folder).is_some_and(|rest| rest.is_empty() || rest[0] == b'/');
        INTERFACES.iter().any(|folder| is_below(folder)) && path != b"/dev" && !is_below(SHARED)
            || (!self.session.is_empty() && is_below(&self.session))
    }

    /// The current folder, or the folder of a descriptor.
    pub(crate) fn base(&self, folder: c_int) -> Option<Vec<u8>> {
        let path =
            if folder == AT_FDCWD { sys::read_link(b"/proc/self/cwd").ok() } else { descriptor(folder) };
        path.filter(|path| path.first() == Some(&b'/')).map(|path| self.seen(path))
    }

    /// Whether a path has no links. This needs fewer calls than following them, because it only checks whether the path
    /// is below a folder in which the program has changed nothing.
    fn is_plain(&self, path: &[u8], follows: bool) -> bool {
        let is_part = |part: &[u8]| !matches!(part, b"" | b"." | b"..");
        if path[0] != b'/' || !path[1..].split(|byte| *byte == b'/').all(is_part) || self.is_real(path) {
            return false;
        }
        for part in sys::prefixes(path) {
            match Stat::of(&self.own(part)) {
                Ok(stat) if stat.is_folder() => {}
                Ok(_) => return false,
                Err(_) => {
                    return !self.has_marks(part) && sys::has_no_links(path, follows) == Some(true);
                }
            }
        }
        false
    }

    /// Whether the program has removed something at a path, above or below it.
    fn has_marks(&self, path: &[u8]) -> bool {
        sys::exists(&self.gone(path)) || self.is_gone(path)
    }

    /// Follows the links in a path; a link in the last part is followed only if `follows` is set. `None` if the path is
    /// not redirected.
    pub(crate) fn resolve(&self, folder: c_int, path: &[u8], follows: bool) -> Option<Result<Place>> {
        if path.is_empty() {
            return None;
        }
        if self.is_plain(path, follows) {
            return Some(Ok(Place::Seen(path.to_vec())));
        }
        let mut out = if path[0] == b'/' { Vec::new() } else { self.base(folder)? };
        if out == b"/" {
            out.clear();
        }
        let follows = follows || path.ends_with(b"/");
        let parts =
            |path: &[u8]| path.split(|byte| *byte == b'/').rev().map(<[u8]>::to_vec).collect::<Vec<_>>();
        let mut rest = parts(path);
        let mut links = 0;
        while let Some(part) = rest.pop() {
            match &part[..] {
                b"" | b"." => continue,
                b".." => {
                    out.truncate(sys::parent(&out).len());
                    continue;
                }
                _ => {}
            }
            out.push(b'/');
            out.extend_from_slice(&part);
            if self.is_real(&out) {
                let all = rest.iter().rev().fold(out.clone(), |all, part| [&all[..], b"/", part].concat());
                if let Some((folder, inside)) = behind(&all, follows) {
                    out = self.seen(folder);
                    out.truncate(if out == b"/" { 0 } else { out.len() });
                    rest = parts(inside);
                    continue;
                }
                for part in rest.iter().rev() {
                    out.push(b'/');
                    out.extend_from_slice(part);
                }
                return Some(Ok(Place::Real(out)));
            }
            let is_last = rest.iter().all(|part| part.is_empty() || &part[..] == b".");
            if is_last && !follows {
                break;
            }
            match self.find(&out) {
                Some((layer, stat)) if stat.is_link() => {
                    links += 1;
                    let Ok(target) = sys::read_link(&self.place(&out, layer)) else {
                        return Some(Err(ENOENT));
                    };
                    if links > 40 {
                        return Some(Err(ELOOP));
                    }
                    out.truncate(if target.first() == Some(&b'/') { 0 } else { sys::parent(&out).len() });
                    rest.extend(parts(&target));
                }
                Some((_, stat)) if !is_last && !stat.is_folder() => return Some(Err(ENOTDIR)),
                None if !is_last => return Some(Err(ENOENT)),
                _ => {}
            }
        }
        if out.is_empty() {
            out.push(b'/');
        }
        Some(Ok(Place::Seen(out)))
    }

    /// Whether the program has removed the file on the disk at a path.
    pub(crate) fn is_gone(&self, path: &[u8]) -> bool {
        for part in sys::prefixes(path) {
            let place = self.gone(part);
            if !sys::exists(&place) {
                return false;
            }
            if sys::exists(&[&place[..], MARK].concat()) {
                return true;
            }
        }
        false
    }

    /// The file at a path; links are not followed.
    pub(crate) fn find(&self, path: &[u8]) -> Option<(Layer, Stat)> {
        if let Ok(stat) = Stat::of(&self.own(path)) {
            return Some((Layer::Own, stat));
        }
        self.on_disk(path).map(|stat| (Layer::Disk, stat))
    }

    /// The file on the disk at a path, if the program sees it.
    pub(crate) fn on_disk(&self, path: &[u8]) -> Option<Stat> {
        Stat::of(path).ok().filter(|_| !self.is_gone(path))
    }

    pub(crate) fn place(&self, path: &[u8], layer: Layer) -> Vec<u8> {
        if layer == Layer::Own { self.own(path) } else { path.to_vec() }
    }

    /// The real path of the file that the program sees at a path, or the path that it would have if it does not
    /// exist.
    pub(crate) fn found(&self, path: &[u8]) -> Vec<u8> {
        self.place(path, self.find(path).map_or(Layer::Own, |(layer, _)| layer))
    }

    /// Makes the folder of a path in the tree. The program must be allowed to write there.
    pub(crate) fn make_room(&self, path: &[u8]) -> Result<()> {
        let parent = sys::parent(path);
        let seen = if parent.is_empty() { &b"/"[..] } else { parent };
        let (_, stat) = self.find(seen).ok_or(ENOENT)?;
        if !stat.is_folder() {
            return Err(ENOTDIR);
        }
        // The copy in the tree belongs to this user, but the folder on the disk may not.
        if self.on_disk(seen).is_some() {
            let terminated = sys::terminated(seen);
            call!(FACCESSAT, AT_FDCWD, terminated.as_ptr(), 2)?;
        }
        self.make_dirty();
        self.make_folders(parent)
    }

    /// The same as [`Tree::make_room`], for changes that leave the folder's entries unchanged.
    pub(crate) fn make_room_anyway(&self, path: &[u8]) -> Result<()> {
        self.make_dirty();
        self.make_folders(sys::parent(path))
    }

    fn make_folders(&self, path: &[u8]) -> Result<()> {
        for part in sys::prefixes(path) {
            let mode = Stat::of(part).map_or(0o755, |stat| stat.mode() & 0o7777);
            sys::mkdir_unless_there(&self.own(part), mode | 0o700)?;
        }
        Ok(())
    }

    /// Marks the file on the disk as removed.
    pub(crate) fn mark_gone(&self, path: &[u8]) -> Result<()> {
        self.make_dirty();
        for part in sys::prefixes(path) {
            sys::mkdir_unless_there(&self.gone(part), 0o700)?;
        }
        sys::open(&[&self.gone(path)[..], MARK].concat(), O_CREAT | O_WRONLY, 0o600).map(sys::close)
    }

    /// The names in a folder as the program sees it.
    pub(crate) fn entries(&self, path: &[u8]) -> Result<Vec<(Vec<u8>, u8, u64)>> {
        let mut found = sys::entries(&self.own(path)).unwrap_or_default();
        if self.on_disk(path).is_none() {
            return Ok(found);
        }
        let names: std::collections::BTreeSet<Vec<u8>> =
            found.iter().map(|(name, ..)| name.clone()).collect();
        let start = if path == b"/" { &b""[..] } else { path };
        let is_seen = |name: &[u8]| !sys::exists(&[&self.gone(start)[..], b"/", name, MARK].concat());
        let disk = sys::entries(path)?;
        found.extend(disk.into_iter().filter(|(name, ..)| !names.contains(name) && is_seen(name)));
        Ok(found)
    }

    /// Whether a folder has entries of both layers, or hides entries on the disk.
    pub(crate) fn is_mixed(&self, path: &[u8]) -> bool {
        let start = if path == b"/" { &b""[..] } else { path };
        self.on_disk(path).is_some() && (sys::exists(&self.own(path)) || sys::exists(&self.gone(start)))
    }
}

/// Splits a path at a link of `/proc` to a process's folder: returns the folder and the rest. `None` if there is no such
/// link, or if the path is the link itself and it is not followed.
fn behind(path: &[u8], follows: bool) -> Option<(Vec<u8>, &[u8])> {
    let of_process = path.strip_prefix(b"/proc/").and_then(|rest| {
        let (process, rest) = rest.split_at(rest.iter().position(|byte| *byte == b'/')?);
        let is_process =
            process == b"self" || process == b"thread-self" || process.iter().all(u8::is_ascii_digit);
        is_process.then(|| &rest[1..])
    });
    let of_process = of_process.or_else(|| path.starts_with(b"/dev/fd/").then(|| &path[5..]))?;
    let links = if of_process.starts_with(b"fd/") { 2 } else { 1 };
    let mut ends = of_process.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(place, _)| place);
    let end = ends.nth(links - 1);
    let name = &of_process[..end.unwrap_or(of_process.len())];
    let is_folder = matches!(name, b"cwd" | b"root") || (links == 2 && end.is_some());
    if !is_folder || (end.is_none() && !follows) {
        return None;
    }
    let inside = end.map_or(&b""[..], |end| &of_process[end..]);
    let folder = sys::read_link(&path[..path.len() - inside.len()]).ok()?;
    folder.starts_with(b"/").then_some((folder, inside))
}

/// The path of a descriptor.
pub(crate) fn descriptor(fd: c_int) -> Option<Vec<u8>> {
    if fd < 0 {
        return None;
    }
    sys::read_link(format!("/proc/self/fd/{fd}").as_bytes()).ok().filter(|path| path.first() == Some(&b'/'))
}

/// The first byte of a file that all processes map.
fn flag(path: &[u8]) -> Option<&'static AtomicU8> {
    let fd = sys::open(path, 0, 0).ok()?;
    // PROT_READ, MAP_SHARED.
    let mapped = call!(MMAP, 0, 4096, 1, 1, fd, 0);
    sys::close(fd);
    // SAFETY: the supervisor made the file with the size of a page, and the mapping is never removed.
    mapped.ok().map(|place| unsafe { &*(place as *const AtomicU8) })
}
