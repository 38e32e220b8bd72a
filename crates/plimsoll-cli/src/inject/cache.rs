//! Folders for files that other programs load from us: our Python, the stand-in, links and scripts.
//!
//! The files always match the copies inside this program: each is compared byte by byte and repaired if necessary, and
//! so are its owner, its mode and the other files in its folder. No other user can write to the folder, or rename a
//! folder above it.

use std::collections::BTreeSet;
use std::env;
use std::ffi::OsString;
use std::fs::{self, Metadata, Permissions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{StatVfsMountFlags, statvfs};
use rustix::process::{getegid, geteuid};
use tempfile::NamedTempFile;

use crate::exit::{Exit, Failure};

/// Characters that end a path in LD_PRELOAD, LD_LIBRARY_PATH or PYTHONPATH.
const SEPARATORS: &[u8] = b" \t\n:;";

/// A file: its path in the folder, and its content.
pub(crate) type File<'bytes> = (PathBuf, &'bytes [u8]);

/// The folder for temporary files: TMPDIR, or another folder if that cannot be used.
///
/// # Errors
/// If no folder can be used.
pub(crate) fn temporary() -> Result<PathBuf, Failure> {
    let runtime = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let others = ["/tmp", "/var/tmp", "/dev/shm"].map(PathBuf::from);
    let all = [env::temp_dir()].into_iter().chain(others).chain(runtime);
    let all: Vec<PathBuf> = all.filter_map(|it| it.canonicalize().ok()).filter(|it| is_usable(it)).collect();
    // Scripts cannot run on a file system mounted `noexec`.
    let first = all.iter().find(|it| !is_without_execution(it)).or(all.first());
    first.cloned().ok_or_else(|| {
        let message = format!(
            "no folder for temporary files: {} cannot be used; set TMPDIR to a folder that only you can write to, \
             whose path has no space, colon or semicolon",
            env::temp_dir().display()
        );
        Failure::new(Exit::Unreadable, message)
    })
}

/// The failure for a folder that cannot be written to.
pub(crate) fn unwritable(folder: &Path, why: &io::Error) -> Failure {
    let message = format!("{}: {why}; set TMPDIR to a folder that you can write to", folder.display());
    Failure::new(Exit::Unreadable, message)
}

/// Makes a folder with exactly these files in the user's cache. If no cache can be used, the folder is in `instead`, or
/// else in a new temporary folder, which is not removed.
///
/// # Errors
/// If no folder can be written to.
pub(crate) fn installed(name: &str, files: &[File<'_>], instead: Option<&Path>) -> Result<PathBuf, Failure> {
    let mut hasher = DefaultHasher::new();
    files.hash(&mut hasher);
    let name = format!("{name}-{:016x}", hasher.finish());
    for cache in caches(env::home_dir().as_deref(), |name| env::var_os(name)) {
        let cache = cache.join("plimsoll");
        if own_folder(&cache).is_ok()
            && is_usable(&cache)
            && !is_without_execution(&cache)
            && written(&cache.join(&name), files).is_ok()
        {
            return Ok(cache.join(name));
        }
    }
    let folder = match instead {
        Some(folder) => folder.to_path_buf(),
        None => {
            let parent = temporary()?;
            let made = tempfile::Builder::new().prefix("plimsoll-").tempdir_in(&parent);
            made.map_err(|why| unwritable(&parent, &why))?.keep()
        }
    };
    let place = folder.join(name);
    written(&place, files).map_err(|why| unwritable(&place, &why))?;
    Ok(place)
}

/// Folders for caches, the best first.
fn caches(home: Option<&Path>, variable: impl Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let named = |name: &str| variable(name).map(PathBuf::from).filter(|it| it.is_absolute());
    let home = home.filter(|home| home.is_absolute() && *home != Path::new("/") && home.is_dir());
    let all = [named("XDG_CACHE_HOME"), home.map(|home| home.join(".cache")), named("XDG_RUNTIME_DIR")];
    all.into_iter().flatten().collect()
}

/// Whether this user can write to the folder, no other user can change its files, and its path can be used in a
/// variable that lists paths.
fn is_usable(folder: &Path) -> bool {
    let is_one_path = !folder.as_os_str().as_bytes().iter().any(|byte| SEPARATORS.contains(byte));
    let is_safe = |above: &Path| {
        fs::metadata(above).is_ok_and(|it| it.is_dir() && (is_private(&it) || it.mode() & 0o1000 != 0))
    };
    is_one_path && folder.ancestors().all(is_safe) && tempfile::tempfile_in(folder).is_ok()
}

/// Whether only this user and root can write to it.
fn is_private(it: &Metadata) -> bool {
    let is_own_group = it.gid() == getegid().as_raw() || it.gid() == 0;
    let is_trusted = it.uid() == geteuid().as_raw() || it.uid() == 0 || !is_known(it.uid());
    let others = if is_own_group { 0o002 } else { 0o022 };
    is_trusted && it.mode() & others == 0
}

/// Whether a user exists in this namespace. Files of unknown users have the ID of `nobody`.
fn is_known(user: u32) -> bool {
    user != 65_534
}

fn is_without_execution(folder: &Path) -> bool {
    statvfs(folder).is_ok_and(|it| it.f_flag.contains(StatVfsMountFlags::NOEXEC))
}

/// Makes a folder that this user owns and no other user can write to.
fn own_folder(folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let found = fs::symlink_metadata(folder)?;
    if !found.is_dir() || found.uid() != geteuid().as_raw() {
        return Err(io::Error::other("it belongs to another user"));
    }
    if found.mode() & 0o077 != 0 {
        fs::set_permissions(folder, Permissions::from_mode(0o700))?;
    }
    Ok(())
}

/// Makes the folder contain these files and nothing else. Another process may be writing or loading the same files.
fn written(folder: &Path, files: &[File<'_>]) -> io::Result<()> {
    let mut folders = BTreeSet::from([folder.to_path_buf()]);
    for (name, bytes) in files {
        let place = folder.join(name);
        if let Some(parent) = place.parent() {
            own_folder(parent)?;
            folders.insert(parent.to_path_buf());
        }
        if !is_ours(&place, bytes) {
            replace(&place, bytes)?;
        }
    }
    for one in &folders {
        for entry in fs::read_dir(one)? {
            let path = entry?.path();
            let is_wanted =
                folders.contains(&path) || files.iter().any(|(name, _)| folder.join(name) == path);
            // A file that another process has not finished writing.
            let is_unfinished =
                path.file_name().is_some_and(|name| name.as_bytes().starts_with(UNFINISHED.as_bytes()));
            if !is_wanted && !is_unfinished {
                // For example compiled Python, which would be loaded instead of our files.
                let _absent = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            }
        }
    }
    Ok(())
}

/// The prefix of the names of files that are being written.
const UNFINISHED: &str = ".plimsoll-";

fn is_ours(place: &Path, bytes: &[u8]) -> bool {
    let is_plain = fs::symlink_metadata(place).is_ok_and(|it| {
        it.is_file()
            && it.uid() == geteuid().as_raw()
            && it.mode() & 0o022 == 0
            && it.len() == bytes.len() as u64
    });
    is_plain && fs::read(place).is_ok_and(|found| found == bytes)
}

fn replace(place: &Path, bytes: &[u8]) -> io::Result<()> {
    if fs::symlink_metadata(place).is_ok_and(|it| it.is_dir()) {
        fs::remove_dir_all(place)?;
    }
    let mut unfinished = tempfile::Builder::new()
        .prefix(UNFINISHED)
        .permissions(Permissions::from_mode(0o700))
        .tempfile_in(place.parent().unwrap_or(Path::new("/")))?;
    unfinished.write_all(bytes)?;
    unfinished.as_file().sync_all()?;
    let _written: fs::File = NamedTempFile::persist(unfinished, place)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_ours_is_repaired_and_what_is_beside_it_goes() {
        let cache = tempfile::tempdir().expect("a folder");
        let folder = cache.path().join("it");
        let files: [File<'_>; 2] = [("a.py".into(), b"ours"), ("within/b.py".into(), b"too")];
        written(&folder, &files).expect("written");
        let inode = |name: &str| fs::metadata(folder.join(name)).expect("there").ino();
        let before = ["a.py", "within/b.py"].map(inode);
        written(&folder, &files).expect("found");
        assert_eq!(["a.py", "within/b.py"].map(inode), before, "what is right stays");
        // A file of the same length, another mode, a link, and code that Python would find first.
        fs::write(folder.join("a.py"), b"evil").expect("changed");
        fs::set_permissions(folder.join("within"), Permissions::from_mode(0o777)).expect("changed");
        fs::write(cache.path().join("elsewhere"), b"too").expect("made");
        fs::remove_file(folder.join("within/b.py")).expect("removed");
        std::os::unix::fs::symlink(cache.path().join("elsewhere"), folder.join("within/b.py")).expect("made");
        fs::create_dir(folder.join("__pycache__")).expect("made");
        fs::write(folder.join("os.py"), b"evil").expect("made");
        written(&folder, &files).expect("repaired");
        assert_eq!(fs::read(folder.join("a.py")).expect("there"), b"ours");
        assert!(fs::symlink_metadata(folder.join("within/b.py")).expect("there").is_file());
        assert_eq!(fs::metadata(folder.join("within")).expect("there").mode() & 0o777, 0o700);
        let mut names: Vec<_> =
            fs::read_dir(&folder).expect("a folder").map(|it| it.expect("an entry").file_name()).collect();
        names.sort();
        assert_eq!(names, ["a.py", "within"]);
    }

    #[test]
    fn a_folder_that_others_can_write_to_or_that_a_list_of_paths_cannot_contain_is_not_used() {
        let top = tempfile::tempdir().expect("a folder");
        let made = |name: &str, mode: u32| {
            let folder = top.path().join(name);
            fs::create_dir(&folder).expect("made");
            fs::set_permissions(&folder, Permissions::from_mode(mode)).expect("changed");
            folder
        };
        assert!(is_usable(&made("own", 0o700)));
        assert!(is_usable(&made("sticky", 0o1777)));
        for (name, mode) in
            [("anybody", 0o777), ("a space", 0o700), ("a:colon", 0o700), ("a;semicolon", 0o700)]
        {
            assert!(!is_usable(&made(name, mode)), "{name}");
        }
        assert!(!is_usable(&top.path().join("absent")));
    }

    #[test]
    fn caches_are_absolute_and_not_in_the_root() {
        let home = tempfile::tempdir().expect("a folder");
        let variable = |name: &str| (name == "XDG_CACHE_HOME").then(|| "".into());
        assert_eq!(caches(Some(home.path()), variable), [home.path().join(".cache")]);
        let variable = |name: &str| (name == "XDG_CACHE_HOME").then(|| "relative".into());
        assert!(caches(Some("/".as_ref()), variable).is_empty());
        assert!(caches(Some("/does/not/exist".as_ref()), |_| None).is_empty());
    }
}
