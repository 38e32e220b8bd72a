//! Caches of downloads and compilers: new files in them stay, existing ones do not change.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};

/// Variables that name such a folder, and its default below the home folder.
const FOLDERS: [(&str, &str); 10] = [
    ("XDG_CACHE_HOME", ".cache"),
    ("HF_HOME", ".cache/huggingface"),
    ("HF_HUB_CACHE", ""),
    ("HF_DATASETS_CACHE", ""),
    ("TRANSFORMERS_CACHE", ""),
    ("TORCH_HOME", ".cache/torch"),
    ("TORCH_EXTENSIONS_DIR", ""),
    ("TRITON_HOME", ""),
    ("TRITON_CACHE_DIR", ".triton"),
    ("TORCHINDUCTOR_CACHE_DIR", ""),
];

/// The folders, by their variables. One that contains the home or the current folder is none: the user's own files are in it.
pub(super) fn folders(home: Option<&Path>, variable: impl Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let home = home.filter(|home| home.is_absolute() && *home != Path::new("/"));
    let here = std::env::current_dir().unwrap_or_default();
    let named = FOLDERS.iter().flat_map(|(name, default)| {
        let named = variable(name).filter(|it| !it.is_empty()).map(PathBuf::from);
        let usual = home.filter(|_| !default.is_empty()).map(|home| home.join(default));
        [named, usual]
    });
    let named = named.flatten().filter(|it| it.is_absolute()).map(|it| it.canonicalize().unwrap_or(it));
    let mut found: Vec<PathBuf> =
        named.filter(|it| !here.starts_with(it) && home.is_none_or(|home| !home.starts_with(it))).collect();
    found.sort();
    found.dedup();
    found
}

/// Puts a file or link that the program made into the real folder, unless there is one of that name.
///
/// # Errors
/// The system's.
pub(super) fn keep(made: &Path, real: &Path) -> io::Result<bool> {
    if fs::symlink_metadata(real).is_ok() {
        return Ok(false);
    }
    if let Some(folder) = real.parent() {
        fs::create_dir_all(folder)?;
    }
    let kind = fs::symlink_metadata(made)?;
    if kind.is_symlink() {
        symlink(fs::read_link(made)?, real)?;
        return Ok(true);
    }
    // Under another name first, so that no process finds a part of it.
    let name = real.file_name().unwrap_or_default().to_string_lossy();
    let unfinished = real.with_file_name(format!(".{name}.{}", std::process::id()));
    let mode = kind.permissions().mode() & 0o777;
    let copied =
        OpenOptions::new().write(true).create_new(true).mode(mode).open(&unfinished).and_then(|mut file| {
            io::copy(&mut File::open(made)?, &mut file)?;
            // This replaces nothing.
            Ok(renameat_with(CWD, &unfinished, CWD, real, RenameFlags::NOREPLACE)?)
        });
    let _absent = fs::remove_file(&unfinished);
    match copied {
        Err(why) if why.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        copied => copied.map(|()| true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caches_are_named_by_variables_and_never_contain_the_users_own_folders() {
        let variable = |name: &str| match name {
            "HF_HOME" => Some("/data/hf".into()),
            "TORCH_HOME" => Some("/".into()),
            "XDG_CACHE_HOME" => Some("".into()),
            "TRITON_HOME" => Some("relative".into()),
            _ => None,
        };
        let found = folders(Some("/nowhere/me".as_ref()), variable);
        let wanted = [
            "/data/hf",
            "/nowhere/me/.cache",
            "/nowhere/me/.cache/huggingface",
            "/nowhere/me/.cache/torch",
            "/nowhere/me/.triton",
        ];
        assert_eq!(found, wanted.map(PathBuf::from));
    }

    #[test]
    fn what_is_new_is_kept_and_what_is_there_stays() {
        let folder = tempfile::tempdir().expect("a folder");
        let [made, real] = ["made", "real"].map(|name| folder.path().join(name));
        fs::write(&made, "new").expect("written");
        assert!(keep(&made, &real.join("a/b")).expect("kept"));
        assert_eq!(fs::read_to_string(real.join("a/b")).expect("there"), "new");
        fs::write(&made, "newer").expect("written");
        assert!(!keep(&made, &real.join("a/b")).expect("not kept"));
        assert_eq!(fs::read_to_string(real.join("a/b")).expect("there"), "new");
        assert_eq!(fs::read_dir(real.join("a")).expect("a folder").count(), 1);
    }
}
