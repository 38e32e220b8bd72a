//! Overlays in the program's own mount namespace: [`Overlay`].
//!
//! With CAP_SYS_ADMIN, a mount namespace is enough. Otherwise it is created in a user namespace, in which the program
//! keeps its user and group. The program's writes go to a private tmpfs of the size of `--scratch`, which disappears
//! with the namespace. New files in caches may be far larger, so they are on the disk if possible.
//!
//! ```text
//! RUN/view             the tmpfs
//! RUN/view/lower/N     a folder as it is on the disk, read-only
//! RUN/view/N/upper     what the program has in place of it
//! RUN/cache/N/upper    the same, of a cache
//! RUN/view/root        with CAP_SYS_ADMIN, the new root: an overlay of the old one, with the others below it
//! RUN/view.json        all of these, for the forks that serve trials of `plan`
//! ```

use std::ffi::OsString;
use std::fmt::Display;
use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, CWD, Mode, OFlags, XattrFlags, access, open, setxattr, statvfs};
use rustix::mount::{
    MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, mount, mount_bind,
    mount_change, move_mount, open_tree, unmount,
};
use rustix::process::pivot_root;

use super::caches::Cache;
use super::namespace::{
    because, can_be_upper, foreign_folders, holder, is_below, like, path, scratch, seal, tree_flags,
    unshare_mounts, unshare_user,
};
use super::places::{Mount, Places};
use super::spec::{Replaced, Spec};
use super::uncopied::{self, Uncopied};
use super::written::{Layer, Written};
use crate::protocol;

/// The view of a run.
pub(super) struct Overlay {
    folder: PathBuf,
    covers: Vec<Cover>,
    caches: Vec<Cache>,
    /// The folder for the private files of caches, if these are on the disk rather than in memory.
    disk: Option<PathBuf>,
}

/// A folder with an overlay.
struct Cover {
    place: PathBuf,
    lower: PathBuf,
    upper: PathBuf,
    work: PathBuf,
    /// The folder as it is on the disk, through a separate mount that no other mount hides and that is not read-only.
    real: OwnedFd,
}

impl Overlay {
    /// Sets up the view for this process and all processes that it starts. These processes will run `command`.
    ///
    /// # Errors
    /// The error says what is not possible here.
    pub(super) fn begin(spec: &Spec, command: &[OsString]) -> Result<Overlay, String> {
        let here = std::env::current_dir().map_err(because("the current folder"))?;
        let home = std::env::home_dir().filter(|home| home.is_dir() && home != Path::new("/"));
        let own = [Some(here.clone()), home, Some(std::env::temp_dir())].into_iter().flatten();
        let own: Vec<PathBuf> = own.filter_map(|it| it.canonicalize().ok()).collect();
        let caches = spec.caches.iter().map(|cache| &cache.folder).filter(|it| it.is_dir());
        let caches: Vec<PathBuf> = caches.cloned().collect();
        let is_privileged = unshare_mounts();
        if !is_privileged {
            // In the namespace, the owners of files are unknown, so they are checked here.
            let places = own.iter().take(1).chain(&caches).cloned().chain(uncopied::named(command));
            let places: Vec<PathBuf> = places.collect();
            let made: Vec<PathBuf> = own.iter().chain(&caches).cloned().collect();
            if !spec.is_chosen
                && let Some(file) = Uncopied::first(&places, &made)
            {
                return Err(file.to_string());
            }
            unshare_user()?;
        }
        mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
            .map_err(because("a private table of mounts"))?;
        let table = fs::read("/proc/self/mountinfo").map_err(because("/proc/self/mountinfo"))?;
        let folder = spec.run.join("view");
        fs::create_dir(&folder).map_err(because("a folder"))?;
        scratch(&folder, &format!("mode=700,size={}", spec.scratch_bytes))?;
        if !is_privileged {
            setxattr(&folder, "user.plimsoll", b"1", XattrFlags::empty())
                .map_err(because("attributes of files in memory (Linux 6.6 has them)"))?;
        }
        let mounts = Mount::all(&table);
        let mut places = Places::of(&mounts, &own);
        // A mount that is already read-only, or that is an interface of Linux such as `/proc`, needs no overlay.
        places.overlays.extend(
            caches.iter().filter(|cache| is_below(cache, &places.overlays)).cloned().collect::<Vec<_>>(),
        );
        places.overlays.sort();
        places.overlays.dedup();
        // The overlay of the root comes last, because it needs a new root.
        let has_root = is_privileged && places.read_only.iter().any(|mount| mount.point == Path::new("/"));
        for folder in own.iter().filter(|folder| access(*folder, Access::WRITE_OK).is_ok()) {
            let is_in_root =
                has_root && holder(folder, &mounts).is_some_and(|mount| mount.point == Path::new("/"));
            if !is_below(folder, &places.overlays) && !is_in_root {
                return Err(format!("{}: other file systems are mounted below it", folder.display()));
            }
        }
        let mut overlay = Overlay { folder, covers: Vec::new(), caches: spec.caches.clone(), disk: None };
        for (number, place) in places.overlays.iter().enumerate() {
            overlay.prepare(number, place, spec, &mounts, is_privileged, &own)?;
        }
        if has_root {
            overlay.prepare(places.overlays.len(), Path::new("/"), spec, &mounts, is_privileged, &own)?;
        }
        let session = open_tree(CWD, &spec.session, tree_flags() | OpenTreeFlags::AT_RECURSIVE)
            .map_err(because("the folder of this session"))?;
        // All folders are opened before the first overlay is mounted, because an overlay may hide them.
        let opened: Result<Vec<[OwnedFd; 3]>, String> = overlay.covers.iter().map(Cover::open).collect();
        let mut opened = opened?;
        let root = if has_root { opened.pop() } else { None };
        for (cover, folders) in overlay.covers.iter().zip(&opened) {
            cover
                .mount(&cover.place, folders, is_privileged)
                .map_err(|why| format!("an overlay on {}: {why}", cover.place.display()))?;
        }
        for mount in places.read_only.iter().filter(|mount| !has_root || mount.point != Path::new("/")) {
            seal(&mount.point, &mount.options)?;
        }
        move_mount(&session, "", CWD, &spec.session, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
            .map_err(because("the folder of this session"))?;
        if let Some((cover, folders)) = overlay.covers.last().zip(root) {
            overlay.enter_root(cover, &folders)?;
        }
        std::env::set_current_dir(&here).map_err(because("the current folder"))?;
        overlay.describe(spec, is_privileged)?;
        Ok(overlay)
    }

    /// Makes the private folders of an overlay.
    fn prepare(
        &mut self,
        number: usize,
        place: &Path,
        spec: &Spec,
        mounts: &[Mount],
        is_privileged: bool,
        own: &[PathBuf],
    ) -> Result<(), String> {
        let failed = |why: &dyn Display| format!("{}: {why}", place.display());
        let Ok(real) = open_tree(CWD, place, tree_flags()) else {
            // If this process cannot see the folder, the program cannot see it either.
            return Ok(());
        };
        let lower = self.folder.join("lower").join(number.to_string());
        fs::create_dir_all(&lower).map_err(|why| failed(&why))?;
        mount_bind(place, &lower).map_err(|why| failed(&why))?;
        seal(&lower, holder(place, mounts).map_or(&[][..], |mount| &mount.options))?;
        let is_cache = spec.caches.iter().any(|cache| cache.folder == place);
        let within = match () {
            () if is_cache && can_be_upper(&spec.run) => {
                let disk = spec.run.join("cache");
                if self.disk.is_none() {
                    fs::create_dir(&disk).map_err(|why| failed(&why))?;
                    self.disk = Some(disk.clone());
                }
                disk.join(number.to_string())
            }
            () if is_cache || place.starts_with("/dev/shm") => {
                // The private files are in memory, but --scratch does not limit them.
                let folder = self.folder.join(number.to_string());
                fs::create_dir(&folder).map_err(|why| failed(&why))?;
                scratch(&folder, "mode=700")?;
                folder
            }
            () => self.folder.join(number.to_string()),
        };
        let [upper, work] = ["upper", "work"].map(|name| within.join(name));
        fs::create_dir_all(&upper).and_then(|()| fs::create_dir(&work)).map_err(|why| failed(&why))?;
        like(&upper, place, is_privileged).map_err(|why| failed(&why))?;
        if !is_privileged {
            own.iter()
                .filter(|own| own.starts_with(place))
                .for_each(|own| foreign_folders(&upper, place, own));
        }
        self.covers.push(Cover { place: place.to_path_buf(), lower, upper, work, real });
        Ok(())
    }

    /// Replaces the root directory with an overlay of itself. Everything that is mounted below the old root is also
    /// mounted below the new root.
    fn enter_root(&self, cover: &Cover, folders: &[OwnedFd; 3]) -> Result<(), String> {
        let root = self.folder.join("root");
        fs::create_dir(&root).map_err(because("a folder"))?;
        let table = fs::read("/proc/self/mountinfo").map_err(because("/proc/self/mountinfo"))?;
        let mounts = Mount::all(&table);
        let is_top = |point: &Path| {
            let is_inside = |other: &Mount| point != other.point && point.starts_with(&other.point);
            point != Path::new("/") && !mounts.iter().any(|it| it.point != Path::new("/") && is_inside(it))
        };
        let tree = |point: &Path| {
            open_tree(CWD, point, tree_flags() | OpenTreeFlags::AT_RECURSIVE)
                .map(|tree| (point.to_path_buf(), tree))
        };
        let points = mounts.iter().map(|mount| &*mount.point).filter(|point| is_top(point));
        let trees: Vec<(PathBuf, OwnedFd)> = points.filter_map(|point| tree(point).ok()).collect();
        cover.mount(&root, folders, true).map_err(because("an overlay on /"))?;
        for (point, tree) in trees {
            let place = root.join(point.strip_prefix("/").unwrap_or(&point));
            move_mount(&tree, "", CWD, &place, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
                .map_err(|why| format!("{}: {why}", place.display()))?;
        }
        // The old root covers the new one until it is unmounted.
        std::env::set_current_dir(&root).map_err(because("the new root"))?;
        pivot_root(".", ".").map_err(because("the new root"))?;
        unmount(".", UnmountFlags::DETACH).map_err(because("the old root"))
    }

    /// Writes the file that a fork reads.
    fn describe(&self, spec: &Spec, is_privileged: bool) -> Result<(), String> {
        // A fork has the same root as the process from which it was forked.
        let covers = self.covers.iter().filter(|it| it.place != Path::new("/")).map(|it| protocol::Cover {
            place: &it.place,
            lower: &it.lower,
            upper: &it.upper,
        });
        let view = protocol::View {
            privileged: is_privileged,
            session: &spec.session,
            scratch_bytes: spec.scratch_bytes,
            covers: covers.collect(),
        };
        let view = serde_json::to_string(&view).map_err(because("a file"))?;
        fs::write(spec.run.join("view.json"), view).map_err(because("a file"))
    }

    /// Gives a file new content, in the private folder of its overlay.
    ///
    /// # Errors
    /// If the file has no overlay, so the disk would change, or if the file cannot be written.
    pub(super) fn replace(&self, file: &Replaced) -> Result<(), String> {
        let failed = |why: &dyn Display| format!("{}: {why}", file.path.display());
        let real = file.path.canonicalize().map_err(|why| failed(&why))?;
        if !self.covers.iter().any(|cover| real.starts_with(&cover.place)) {
            return Err(failed(&"it is not in a folder with an overlay"));
        }
        fs::write(&real, &file.text).map_err(|why| failed(&why))
    }

    /// Whether the space of --scratch is used up.
    pub(super) fn is_full(&self) -> bool {
        statvfs(&self.folder).is_ok_and(|it| it.f_bavail == 0)
    }

    /// Removes the private files of caches, including folders that only this process may open.
    pub(super) fn clear(&self) {
        if let Some(disk) = &self.disk {
            let _absent = fs::remove_dir_all(disk);
        }
    }

    /// Keeps new files of caches, and lists the other files.
    pub(super) fn list(&self, written: &mut Written) {
        let places: Vec<&Path> = self.covers.iter().map(|cover| &*cover.place).collect();
        for cover in &self.covers {
            let real = PathBuf::from(path(&cover.real));
            let layer = Layer { place: &cover.place, upper: &cover.upper, lower: &cover.lower, real: &real };
            let inner: Vec<&Path> = places.iter().filter(|place| **place != cover.place).copied().collect();
            written.add(&layer, &inner, &self.caches);
        }
    }
}

impl Cover {
    /// The three folders as file descriptors, because a path may contain the character that separates mount options.
    fn open(&self) -> Result<[OwnedFd; 3], String> {
        let opened = |path: &Path| {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            open(path, flags, Mode::empty()).map_err(|why| format!("{}: {why}", path.display()))
        };
        Ok([opened(&self.lower)?, opened(&self.upper)?, opened(&self.work)?])
    }

    fn mount(
        &self,
        place: &Path,
        [lower, upper, work]: &[OwnedFd; 3],
        is_privileged: bool,
    ) -> Result<(), String> {
        let folders = format!("lowerdir={},upperdir={},workdir={}", path(lower), path(upper), path(work));
        // Without the mount option `redirect_dir`, a folder on the disk cannot be renamed. This option is not available
        // in a user namespace (`renames.py`).
        let options = if is_privileged {
            format!("{folders},redirect_dir=on,index=off")
        } else {
            format!("{folders},userxattr")
        };
        let options = std::ffi::CString::new(options).map_err(|why| why.to_string())?;
        let flags = MountFlags::NODEV | MountFlags::NOSUID;
        mount("overlay", place, "overlay", flags, options.as_c_str()).map_err(|why| why.to_string())
    }
}
