//! What an overlay is made of: a mount namespace, in-memory file systems, read-only mounts, and private folders with
//! the permissions of the folders below them.

use std::fmt::Display;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};
use rustix::mount::{MountFlags, OpenTreeFlags, mount, mount_remount};
use rustix::process::{getgid, getuid};
use rustix::thread::UnshareFlags;

use super::places::Mount;

/// Creates a mount namespace. Returns whether this process has the rights to do so.
pub(super) fn unshare_mounts() -> bool {
    unshare(UnshareFlags::NEWNS).is_ok()
}

fn unshare(what: UnshareFlags) -> rustix::io::Result<()> {
    #[allow(
        deprecated,
        reason = "its successor is unsafe because of threads that share the descriptors: this process has one thread"
    )]
    rustix::thread::unshare(what)
}

/// Creates a mount namespace in a user namespace with this process's user and group.
///
/// # Errors
/// If this user cannot create a namespace.
pub(super) fn unshare_user() -> Result<(), String> {
    let (user, group) = (getuid(), getgid());
    unshare(UnshareFlags::NEWUSER | UnshareFlags::NEWNS).map_err(because("a user namespace"))?;
    let write = |name: &str, text: String| {
        fs::write(format!("/proc/self/{name}"), text)
            .map_err(|why| format!("a user namespace: {name}: {why}"))
    };
    write("setgroups", "deny".to_owned())?;
    write("uid_map", format!("{0} {0} 1", user.as_raw()))?;
    write("gid_map", format!("{0} {0} 1", group.as_raw()))
}

pub(super) fn scratch(folder: &Path, options: &str) -> Result<(), String> {
    let options = std::ffi::CString::new(options).map_err(|why| why.to_string())?;
    let flags = MountFlags::NODEV | MountFlags::NOSUID;
    mount("plimsoll", folder, "tmpfs", flags, options.as_c_str()).map_err(because("a file system in memory"))
}

/// Makes a mount read-only. Its other options are kept, because a user namespace requires that.
pub(super) fn seal(point: &Path, options: &[String]) -> Result<(), String> {
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
        // The program cannot write to a mount that it cannot reach.
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

/// Gives a private folder the permissions of the folder that it covers.
pub(super) fn like(upper: &Path, place: &Path, is_privileged: bool) -> std::io::Result<()> {
    let original = fs::metadata(place)?;
    let mut mode = original.permissions().mode() & 0o7777;
    if is_privileged {
        chown(upper, Some(original.uid()), Some(original.gid()))?;
    } else if access(place, Access::WRITE_OK).is_err() {
        // In the namespace, the folder belongs to this user.
        mode &= !0o222;
    }
    fs::set_permissions(upper, fs::Permissions::from_mode(mode))
}

/// Linux copies a folder when the first file in it is written. In a user namespace, this copy fails if the folder
/// belongs to another user or group. So this function makes such copies in advance, for the folders on the path to the
/// program's folders.
pub(super) fn foreign_folders(upper: &Path, place: &Path, own: &Path) {
    let within = own.strip_prefix(place).unwrap_or(own);
    let mut made = PathBuf::new();
    for name in within.components() {
        made.push(name);
        let (ours, original) = (upper.join(&made), place.join(&made));
        let is_foreign = fs::metadata(&original)
            .is_ok_and(|it| it.uid() != getuid().as_raw() || it.gid() != getgid().as_raw());
        // The parent folder may belong to the user; then Linux can copy it.
        let is_made = ours.parent().is_some_and(Path::is_dir);
        if is_foreign && is_made && fs::create_dir(&ours).is_ok() {
            let _as_it_is = like(&ours, &original, false);
        }
    }
}

/// Whether a folder on the disk can hold an overlay's private files.
pub(super) fn can_be_upper(folder: &Path) -> bool {
    let Ok(file) = File::open(folder) else { return false };
    // Folders on overlays and network file systems cannot: these do not support the renames that overlays use to remove
    // files.
    const CANNOT: [i64; 6] = [0x794c_7630, 0x6969, 0x6573_5546, 0xff53_4d42, 0x517b, 0x0102_1997];
    rustix::fs::fstatfs(file.as_fd()).is_ok_and(|it| !CANNOT.contains(&it.f_type))
}

/// The mount that a folder is in.
pub(super) fn holder<'mounts>(folder: &Path, mounts: &'mounts [Mount]) -> Option<&'mounts Mount> {
    let above = mounts.iter().filter(|mount| folder.starts_with(&mount.point));
    above.max_by_key(|mount| mount.point.as_os_str().len())
}

pub(super) fn is_below(path: &Path, folders: &[PathBuf]) -> bool {
    folders.iter().any(|folder| path.starts_with(folder))
}

pub(super) fn tree_flags() -> OpenTreeFlags {
    OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC
}

pub(super) fn path(descriptor: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", descriptor.as_raw_fd())
}

pub(super) fn because<E: Display>(what: &str) -> impl Fn(E) -> String {
    move |why| format!("{what}: {why}")
}
