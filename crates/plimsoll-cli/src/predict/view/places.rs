//! Decides from the mount table which folders get an overlay and which mounts become read-only ([`Places`]).
//!
//! An overlay hides everything that is mounted below its folder, and in a user namespace, it is impossible to mount an
//! overlay on a folder with such mounts. So a folder with mounts below it gets no overlay. Instead, its subfolders get
//! overlays, and the mount of the folder itself becomes read-only.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// File systems that are interfaces of Linux, not places for files.
const INTERFACES: [&str; 22] = [
    "autofs",
    "binfmt_misc",
    "bpf",
    "cgroup",
    "cgroup2",
    "configfs",
    "debugfs",
    "devpts",
    "devtmpfs",
    "efivarfs",
    "fusectl",
    "hugetlbfs",
    "mqueue",
    "nfsd",
    "nsfs",
    "proc",
    "pstore",
    "resctrl",
    "rpc_pipefs",
    "securityfs",
    "sysfs",
    "tracefs",
];

/// The maximum number of subfolders of one folder that each get an overlay. If there are more, only those on
/// the path to the program's own folders do.
const MOST: usize = 100;

/// A mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mount {
    pub(super) point: PathBuf,
    /// The mount options, such as `nosuid` and `relatime`.
    pub(super) options: Vec<String>,
    kind: String,
}

impl Mount {
    /// The visible mounts of this process, according to `/proc/self/mountinfo`.
    pub(super) fn all(table: &[u8]) -> Vec<Mount> {
        let mut all: Vec<Mount> = Vec::new();
        for line in table.split(|byte| *byte == b'\n') {
            let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
            let Some(end) = fields.iter().position(|field| *field == b"-") else { continue };
            let (Some(point), Some(options), Some(kind)) =
                (fields.get(4), fields.get(5), fields.get(end + 1))
            else {
                continue;
            };
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let mount = Mount {
                point: unescaped(point),
                options: text(options).split(',').map(str::to_owned).collect(),
                kind: text(kind),
            };
            // A later mount hides an earlier mount at the same place or below, and everything that is mounted below the
            // earlier mount.
            all.retain(|earlier| !earlier.point.starts_with(&mount.point));
            all.push(mount);
        }
        all
    }

    fn is_writable(&self) -> bool {
        !self.options.iter().any(|option| option == "ro")
    }

    fn is_for_files(&self) -> bool {
        let is_below = |folder: &str| self.point.starts_with(folder);
        let is_interface =
            is_below("/proc") || is_below("/sys") || (is_below("/dev") && !is_below("/dev/shm"));
        !is_interface && !INTERFACES.contains(&&*self.kind)
    }
}

/// Replaces escapes in a field of the table: `\040` is a space.
fn unescaped(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut place = 0;
    while let Some(&byte) = field.get(place) {
        let digits = field.get(place + 1..place + 4).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()).filter(|_| byte == b'\\') {
            Some(meant) => {
                bytes.push(meant);
                place += 4;
            }
            None => {
                bytes.push(byte);
                place += 1;
            }
        }
    }
    OsString::from_vec(bytes).into()
}

/// How each folder is treated. Parents come before their contents.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Places {
    /// Folders that get an overlay.
    pub(super) overlays: Vec<PathBuf>,
    /// Mounts that become read-only.
    pub(super) read_only: Vec<Mount>,
}

impl Places {
    /// `own` lists the program's folders: the current, home and temporary folders.
    pub(super) fn of(mounts: &[Mount], own: &[PathBuf]) -> Places {
        let mut places = Places::default();
        for mount in mounts.iter().filter(|mount| mount.is_writable() && mount.is_for_files()) {
            let is_split =
                mount.point == Path::new("/") || mounts.iter().any(|other| is_in(&other.point, &mount.point));
            if is_split || !mount.point.is_dir() {
                places.read_only.push(mount.clone());
            }
            if mount.point.is_dir() {
                places.cover(&mount.point, is_split, mounts, own);
            }
        }
        places.overlays.sort();
        places
    }

    fn cover(&mut self, folder: &Path, is_split: bool, mounts: &[Mount], own: &[PathBuf]) {
        if !is_split {
            return self.overlays.push(folder.to_path_buf());
        }
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        let folders: Vec<PathBuf> = folders.map(|entry| entry.path()).collect();
        let is_many = folders.len() > MOST;
        for it in folders {
            // Other mounts are covered separately.
            let is_mount = mounts.iter().any(|mount| mount.point == it);
            let is_wanted = !is_many || own.iter().any(|own| own.starts_with(&it));
            if !is_mount && is_wanted {
                let is_split = mounts.iter().any(|mount| is_in(&mount.point, &it));
                self.cover(&it, is_split, mounts, own);
            }
        }
    }
}

/// Whether a path is inside a folder, and not the folder itself.
fn is_in(path: &Path, folder: &Path) -> bool {
    path != folder && path.starts_with(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
22 21 0:5 / /proc rw,nosuid - proc proc rw
23 21 0:6 / /mnt/a\\040b rw,nosuid,noexec - ext4 /dev/sdb1 rw
24 21 0:7 / /dev rw - devtmpfs udev rw
25 24 0:8 / /dev/shm rw - tmpfs tmpfs rw
26 21 0:9 / /ro ro - squashfs x ro
27 21 0:10 / /mnt/old/below rw - ext4 x rw
28 21 0:11 / /mnt/old rw - ext4 x rw
";

    #[test]
    fn mounts_are_read_and_a_later_one_hides_what_is_below_it() {
        let all = Mount::all(TABLE.as_bytes());
        let points: Vec<&str> = all.iter().filter_map(|it| it.point.to_str()).collect();
        assert_eq!(points, ["/", "/proc", "/mnt/a b", "/dev", "/dev/shm", "/ro", "/mnt/old"]);
        assert_eq!(all[2].options, ["rw", "nosuid", "noexec"]);
        let files: Vec<bool> = all.iter().map(|it| it.is_writable() && it.is_for_files()).collect();
        assert_eq!(files, [true, false, true, false, true, false, true]);
    }

    #[test]
    fn a_folder_with_a_mount_below_it_is_split() {
        let folder = tempfile::tempdir().expect("a folder");
        let top = folder.path();
        for name in ["a/deep", "b/mounted", "b/other", "c"] {
            fs::create_dir_all(top.join(name)).expect("made");
        }
        let mount = |point: PathBuf| Mount { point, options: vec!["rw".to_owned()], kind: "ext4".to_owned() };
        let mounts = [mount(top.to_path_buf()), mount(top.join("b/mounted"))];
        let places = Places::of(&mounts, &[]);
        let wanted = ["a", "b/mounted", "b/other", "c"];
        assert_eq!(places.overlays, wanted.map(|name| top.join(name)));
        assert_eq!(places.read_only, [mounts[0].clone()]);
    }
}
