//! Overlays in a mount namespace of the program's own: [`Overlay`].
//!
//! With CAP_SYS_ADMIN a mount namespace is enough; otherwise it is made in a user namespace, in which the program keeps its user and
//! group. What the program writes is in a private tmpfs of the size of `--scratch`, which goes with the namespace. New files in
//! caches may be far larger: they are on the disk where that is possible.
//!
//! ```text
//! RUN/view             the tmpfs
//! RUN/view/lower/N     a folder as it is on the disk, read-only
//! RUN/view/N/upper     what the program has in place of it
//! RUN/cache/N/upper    the same, of a cache
//! RUN/view.json        all of these, for the forks that serve trials of `plan`
//! ```

use std::fmt::Display;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, CWD, Mode, OFlags, XattrFlags, access, open, setxattr, statvfs};
use rustix::mount::{
    MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, mount, mount_bind, mount_change,
    mount_remount, move_mount, open_tree,
};
use rustix::process::{getgid, getuid};
use rustix::thread::UnshareFlags;
use serde_json::json;

use super::Spec;
use super::places::{Mount, Places};
use super::written::{Layer, Written};

/// The view of a run.
pub(super) struct Overlay {
    folder: PathBuf,
    covers: Vec<Cover>,
    caches: Vec<PathBuf>,
    /// The private files of caches, if they are on the disk.
    disk: Option<PathBuf>,
}

/// A folder with an overlay.
struct Cover {
    place: PathBuf,
    lower: PathBuf,
    upper: PathBuf,
    work: PathBuf,
    /// The folder as it is on the disk, by a mount of its own: nothing hides it, and it is not read-only.
    real: OwnedFd,
}

impl Overlay {
    /// Gives this process, and with it all that it starts, the view.
    ///
    /// # Errors
    /// What is not possible here.
    pub(super) fn begin(spec: &Spec) -> Result<Overlay, String> {
        let here = std::env::current_dir().map_err(because("the current folder"))?;
        let is_privileged = unshare()?;
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
        let home = std::env::home_dir().filter(|home| home.is_dir() && home != Path::new("/"));
        let own = [Some(here.clone()), home, Some(std::env::temp_dir())].into_iter().flatten();
        let own: Vec<PathBuf> = own.filter_map(|it| it.canonicalize().ok()).collect();
        let mut places = Places::of(&mounts, &own);
        // An interface of the kernel, or a mount that is read-only anyway, needs none.
        let caches: Vec<PathBuf> = spec.caches.iter().filter(|it| it.is_dir()).cloned().collect();
        places.overlays.extend(
            caches.iter().filter(|cache| is_below(cache, &places.overlays)).cloned().collect::<Vec<_>>(),
        );
        places.overlays.sort();
        places.overlays.dedup();
        let mut overlay = Overlay { folder, covers: Vec::new(), caches: spec.caches.clone(), disk: None };
        for (number, place) in places.overlays.iter().enumerate() {
            overlay.prepare(number, place, spec, &mounts, is_privileged, &own)?;
        }
        let session = open_tree(CWD, &spec.session, tree_flags() | OpenTreeFlags::AT_RECURSIVE)
            .map_err(because("the folder of this session"))?;
        // All before the first overlay, which may hide them.
        let opened: Result<Vec<[OwnedFd; 3]>, String> = overlay.covers.iter().map(Cover::open).collect();
        for (cover, folders) in overlay.covers.iter().zip(opened?) {
            cover
                .mount(&folders, is_privileged)
                .map_err(|why| format!("an overlay on {}: {why}", cover.place.display()))?;
        }
        for mount in &places.read_only {
            seal(&mount.point, &mount.options)?;
        }
        move_mount(&session, "", CWD, &spec.session, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
            .map_err(because("the folder of this session"))?;
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
            // It cannot be seen by the program either.
            return Ok(());
        };
        let lower = self.folder.join("lower").join(number.to_string());
        fs::create_dir_all(&lower).map_err(|why| failed(&why))?;
        mount_bind(place, &lower).map_err(|why| failed(&why))?;
        let options = mounts.iter().filter(|mount| place.starts_with(&mount.point));
        let options = options.max_by_key(|mount| mount.point.as_os_str().len());
        seal(&lower, options.map_or(&[][..], |mount| &mount.options))?;
        let is_cache = spec.caches.iter().any(|cache| cache == place);
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
                // In memory, but not limited to --scratch.
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

    /// Writes the file that a fork reads.
    fn describe(&self, spec: &Spec, is_privileged: bool) -> Result<(), String> {
        let covers =
            self.covers.iter().map(|it| json!({ "place": it.place, "lower": it.lower, "upper": it.upper }));
        let view = json!({
            "privileged": is_privileged,
            "session": spec.session,
            "scratch_bytes": spec.scratch_bytes,
            "covers": covers.collect::<Vec<_>>(),
        });
        fs::write(spec.run.join("view.json"), view.to_string()).map_err(because("a file"))
    }

    /// Whether --scratch is used up.
    pub(super) fn is_full(&self) -> bool {
        statvfs(&self.folder).is_ok_and(|it| it.f_bavail == 0)
    }

    /// Removes the private files of caches, among them folders that only this process may open.
    pub(super) fn clear(&self) {
        if let Some(disk) = &self.disk {
            let _absent = fs::remove_dir_all(disk);
        }
    }

    /// Keeps new files of caches; lists the others.
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
    /// The three folders by descriptors: a path may contain what separates the options.
    fn open(&self) -> Result<[OwnedFd; 3], String> {
        let opened = |path: &Path| {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            open(path, flags, Mode::empty()).map_err(|why| format!("{}: {why}", path.display()))
        };
        Ok([opened(&self.lower)?, opened(&self.upper)?, opened(&self.work)?])
    }

    fn mount(&self, [lower, upper, work]: &[OwnedFd; 3], is_privileged: bool) -> Result<(), String> {
        let folders = format!("lowerdir={},upperdir={},workdir={}", path(lower), path(upper), path(work));
        // Without `redirect_dir` a folder of the disk cannot be renamed; a user namespace has none (`view.py`).
        let options = if is_privileged {
            format!("{folders},redirect_dir=on,index=off")
        } else {
            format!("{folders},userxattr")
        };
        let options = std::ffi::CString::new(options).map_err(|why| why.to_string())?;
        let flags = MountFlags::NODEV | MountFlags::NOSUID;
        mount("overlay", &self.place, "overlay", flags, options.as_c_str()).map_err(|why| why.to_string())
    }
}

/// A mount namespace; whether it is one without a user namespace.
fn unshare() -> Result<bool, String> {
    #[allow(
        deprecated,
        reason = "its successor is unsafe because of threads that share the descriptors: this process has one thread"
    )]
    let unshare = rustix::thread::unshare;
    if unshare(UnshareFlags::NEWNS).is_ok() {
        return Ok(true);
    }
    let (user, group) = (getuid(), getgid());
    unshare(UnshareFlags::NEWUSER | UnshareFlags::NEWNS).map_err(because("a user namespace"))?;
    let write = |name: &str, text: String| {
        fs::write(format!("/proc/self/{name}"), text)
            .map_err(|why| format!("a user namespace: {name}: {why}"))
    };
    write("setgroups", "deny".to_owned())?;
    write("uid_map", format!("{0} {0} 1", user.as_raw()))?;
    write("gid_map", format!("{0} {0} 1", group.as_raw()))?;
    Ok(false)
}

fn scratch(folder: &Path, options: &str) -> Result<(), String> {
    let options = std::ffi::CString::new(options).map_err(|why| why.to_string())?;
    let flags = MountFlags::NODEV | MountFlags::NOSUID;
    mount("plimsoll", folder, "tmpfs", flags, options.as_c_str()).map_err(because("a file system in memory"))
}

/// Makes a mount read-only; its other options stay, as a user namespace demands.
fn seal(point: &Path, options: &[String]) -> Result<(), String> {
    let known = [
        ("nosuid", MountFlags::NOSUID),
        ("nodev", MountFlags::NODEV),
        ("noexec", MountFlags::NOEXEC),
        ("noatime", MountFlags::NOATIME),
        ("nodiratime", MountFlags::NODIRATIME),
        ("relatime", MountFlags::RELATIME),
    ];
    let flags = known.into_iter().filter(|(name, _)| options.iter().any(|option| option == name));
    let flags = flags.fold(MountFlags::BIND | MountFlags::RDONLY, |all, (_, flag)| all | flag);
    match mount_remount(point, flags, "").map_err(std::io::Error::from) {
        // What cannot be reached cannot be written to.
        Err(why)
            if matches!(
                why.kind(),
                ErrorKind::PermissionDenied | ErrorKind::NotFound | ErrorKind::NotConnected
            ) && fs::metadata(point).is_err() =>
        {
            Ok(())
        }
        sealed => sealed.map_err(|why| format!("{} cannot be made read-only: {why}", point.display())),
    }
}

/// Gives a private folder the permissions of the one that it is laid over.
fn like(upper: &Path, place: &Path, is_privileged: bool) -> std::io::Result<()> {
    let original = fs::metadata(place)?;
    let mut mode = original.permissions().mode() & 0o7777;
    if is_privileged {
        chown(upper, Some(original.uid()), Some(original.gid()))?;
    } else if access(place, Access::WRITE_OK).is_err() {
        // It belongs to this user here.
        mode &= !0o222;
    }
    fs::set_permissions(upper, fs::Permissions::from_mode(mode))
}

/// The kernel copies a folder when the first file in it is written, which fails in a user namespace if the folder belongs to another user.
/// On the way to the program's folders these copies are made here.
fn foreign_folders(upper: &Path, place: &Path, own: &Path) {
    let within = own.strip_prefix(place).unwrap_or(own);
    let mut made = PathBuf::new();
    for name in within.components() {
        made.push(name);
        let (ours, original) = (upper.join(&made), place.join(&made));
        let is_foreign = fs::metadata(&original).is_ok_and(|it| it.uid() != getuid().as_raw());
        // The parent may be the user's own: then the kernel can copy it.
        let is_made = ours.parent().is_some_and(Path::is_dir);
        if is_foreign && is_made && fs::create_dir(&ours).is_ok() {
            let _as_it_is = like(&ours, &original, false);
        }
    }
}

/// Whether a folder of the disk can hold an overlay's private files.
fn can_be_upper(folder: &Path) -> bool {
    let Ok(file) = File::open(folder) else { return false };
    // Overlays and network file systems cannot; they are no places for the renames with which files are removed.
    const CANNOT: [i64; 6] = [0x794c_7630, 0x6969, 0x6573_5546, 0xff53_4d42, 0x517b, 0x0102_1997];
    rustix::fs::fstatfs(file.as_fd()).is_ok_and(|it| !CANNOT.contains(&i64::from(it.f_type)))
}

fn is_below(path: &Path, folders: &[PathBuf]) -> bool {
    folders.iter().any(|folder| path.starts_with(folder))
}

fn tree_flags() -> OpenTreeFlags {
    OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC
}

fn path(descriptor: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", descriptor.as_raw_fd())
}

fn because<E: Display>(what: &str) -> impl Fn(E) -> String {
    move |why| format!("{what}: {why}")
}
