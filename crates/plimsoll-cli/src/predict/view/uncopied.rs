//! Files that an overlay in a user namespace cannot copy, and so cannot change: [`Uncopied`].
//!
//! The namespace has one user and one group, those of the program. Linux refuses to copy a file or folder with a
//! different owner or group (EOVERFLOW), even if the program may write to it. One example is a project folder whose
//! group is one of the user's other groups. If the program may encounter such files, its writes are redirected instead.

use std::collections::{BTreeSet, VecDeque};
use std::ffi::OsString;
use std::fmt::{self, Display};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};
use rustix::process::{getgid, getuid};

/// The file in the run's folder with the path of a file that could not be copied while the program ran
/// (`uncopied.py`).
pub(in crate::predict) const UNCOPIED: &str = "uncopied";

/// Like [`UNCOPIED`], for a path that is an argument of a command that the program started, such as a shell. It is not known
/// whether the command changed that file.
pub(in crate::predict) const UNCOPIED_BY_A_COMMAND: &str = "uncopied-by-a-command";

/// The maximum number of files to examine below a folder, starting with the nearest.
const MOST: usize = 4096;

/// A file or folder that the program may change, but that an overlay cannot copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Uncopied {
    path: PathBuf,
    owner: u32,
    group: u32,
}

impl Display for Uncopied {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = self.path.display();
        match self.owner == getuid().as_raw() {
            true => write!(out, "{place} belongs to group {}", self.group)?,
            false => write!(out, "{place} belongs to user {} and group {}", self.owner, self.group)?,
        }
        write!(out, ", and an overlay without CAP_SYS_ADMIN can only change files of your own user and group")
    }
}

impl Uncopied {
    /// The first file or folder at or below one of these paths that an overlay cannot copy. The folders in `made` need
    /// no copy.
    pub(super) fn first<'all>(
        places: impl IntoIterator<Item = &'all PathBuf>,
        made: &[PathBuf],
    ) -> Option<Uncopied> {
        let mut seen = BTreeSet::new();
        places.into_iter().find_map(|place| Uncopied::below(place, made, &mut seen))
    }

    fn below(place: &Path, made: &[PathBuf], seen: &mut BTreeSet<(u64, u64)>) -> Option<Uncopied> {
        let mut left = VecDeque::from([place.to_path_buf()]);
        let mut looked = 0;
        while looked < MOST
            && let Some(path) = left.pop_front()
        {
            // If the path is a link, the link's target also counts.
            let Ok(it) = fs::metadata(&path) else { continue };
            looked += 1;
            if (it.is_dir() || it.is_file()) && !made.contains(&path) {
                let found = Uncopied { path: path.clone(), owner: it.uid(), group: it.gid() };
                if found.is_foreign() && access(&path, Access::WRITE_OK).is_ok() {
                    return Some(found);
                }
            }
            if it.is_dir() && seen.insert((it.dev(), it.ino())) {
                let entries = fs::read_dir(&path).into_iter().flatten().flatten();
                left.extend(entries.take(MOST).map(|entry| entry.path()));
            }
        }
        None
    }

    fn is_foreign(&self) -> bool {
        self.owner != getuid().as_raw() || self.group != getgid().as_raw()
    }
}

/// The files and folders that a command's arguments name, and the folders in which the command would create them.
pub(super) fn named(command: &[OsString]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for word in command {
        let word = word.to_string_lossy();
        let path = Path::new(word.rsplit_once('=').map_or(&*word, |(_, value)| value));
        if path.components().count() < 2 {
            // A name in the current folder, or not a path at all.
            continue;
        }
        found.extend(path.ancestors().find_map(|it| it.canonicalize().ok()));
    }
    found
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_command_names_its_files_and_the_folders_of_new_ones() {
        let folder = tempfile::tempdir().expect("a folder");
        let top = folder.path().canonicalize().expect("there");
        fs::write(top.join("train.py"), "").expect("written");
        let words = ["python", "train.py", "--lr=1e-3", "-o", &format!("--out={}/runs/1", top.display())];
        assert_eq!(named(&words.map(OsString::from)), std::slice::from_ref(&top));
        assert_eq!(named(&[top.join("train.py").into()]), [top.join("train.py")]);
    }

    #[test]
    fn files_of_the_user_alone_can_be_copied_and_links_in_circles_end() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::create_dir(folder.path().join("a")).expect("made");
        symlink(folder.path(), folder.path().join("a/again")).expect("linked");
        assert_eq!(Uncopied::first(&[folder.path().to_path_buf()], &[]), None);
    }
}
