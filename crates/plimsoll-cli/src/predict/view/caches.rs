//! Caches of downloads and compilers: new files in them are kept, and existing files do not change.
//!
//! A file of tensors is kept only if it was downloaded. Values that the program computed are zeros, and a real run
//! would load them.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde::{Deserialize, Serialize};

/// Variables that name such folders, and their defaults in the home folder.
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

/// The variables whose folders contain only downloads. In the other folders, downloads are in a subfolder named
/// `hub`.
const DOWNLOADS: [&str; 2] = ["HF_HUB_CACHE", "TRANSFORMERS_CACHE"];

/// The folder in which huggingface_hub and torch.hub put downloads.
const HUB: &str = "hub";

/// Extensions of tensor files, whose content a program may have computed.
const TENSORS: [&str; 13] =
    ["pt", "pth", "ckpt", "npy", "npz", "safetensors", "bin", "pkl", "pickle", "h5", "hdf5", "gguf", "onnx"];

/// A folder with a cache of downloads or compiled code.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Cache {
    pub(super) folder: PathBuf,
    /// Whether the folder contains only downloads.
    is_hub: bool,
}

impl Cache {
    /// Whether a file in this cache is a download.
    fn has_downloaded(&self, path: &Path) -> bool {
        let Ok(within) = path.strip_prefix(&self.folder) else { return false };
        self.is_hub || within.components().any(|part| part.as_os_str() == HUB)
    }
}

/// The innermost cache folder in which this new file is kept, if any.
pub(super) fn keeper<'all>(path: &Path, caches: &'all [Cache]) -> Option<&'all Path> {
    let is_tensors =
        path.extension().is_some_and(|ending| TENSORS.iter().any(|it| ending.eq_ignore_ascii_case(it)));
    if is_tensors && !caches.iter().any(|cache| cache.has_downloaded(path)) {
        return None;
    }
    let around = caches.iter().map(|cache| &*cache.folder).filter(|folder| path.starts_with(folder));
    around.max_by_key(|folder| folder.components().count())
}

/// The folders that the environment variables name. A folder that contains the home or the current folder is not a
/// cache, because the user's own files are in it.
pub(super) fn folders(home: Option<&Path>, variable: impl Fn(&str) -> Option<OsString>) -> Vec<Cache> {
    let home = home.filter(|home| home.is_absolute() && *home != Path::new("/"));
    let here = std::env::current_dir().unwrap_or_default();
    let named = FOLDERS.iter().flat_map(|(name, default)| {
        let named = variable(name).filter(|it| !it.is_empty()).map(PathBuf::from);
        let usual = home.filter(|_| !default.is_empty()).map(|home| home.join(default));
        let is_hub = DOWNLOADS.contains(name);
        [named, usual].into_iter().flatten().map(move |folder| Cache { folder, is_hub })
    });
    let named = named.filter(|it| it.folder.is_absolute());
    let named = named.map(|it| Cache { folder: it.folder.canonicalize().unwrap_or(it.folder), ..it });
    let is_own =
        |it: &Cache| here.starts_with(&it.folder) || home.is_some_and(|home| home.starts_with(&it.folder));
    let mut found: Vec<Cache> = named.filter(|it| !is_own(it)).collect();
    // If two variables name the same folder, the more specific one counts.
    found.sort_by(|one, other| one.folder.cmp(&other.folder).then(other.is_hub.cmp(&one.is_hub)));
    found.dedup_by(|one, other| one.folder == other.folder);
    found
}

/// Moves a file or link that the program created into the real folder, unless a file with this name already exists
/// there.
///
/// # Errors
/// I/O errors.
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
    // The file is copied under a different name first, so that no process reads an incomplete file.
    let name = real.file_name().unwrap_or_default().to_string_lossy();
    let unfinished = real.with_file_name(format!(".{name}.{}", std::process::id()));
    let mode = kind.permissions().mode() & 0o777;
    let copied =
        OpenOptions::new().write(true).create_new(true).mode(mode).open(&unfinished).and_then(|mut file| {
            io::copy(&mut File::open(made)?, &mut file)?;
            // This call does not replace an existing file.
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
        let found = folders(Some("/nowhere/me".as_ref()), variable).into_iter().map(|it| it.folder);
        let wanted = [
            "/data/hf",
            "/nowhere/me/.cache",
            "/nowhere/me/.cache/huggingface",
            "/nowhere/me/.cache/torch",
            "/nowhere/me/.triton",
        ];
        assert_eq!(found.collect::<Vec<_>>(), wanted.map(PathBuf::from));
    }

    #[test]
    fn of_files_of_tensors_only_downloads_stay() {
        let variable = |name: &str| match name {
            "HF_HOME" => Some("/data/hub".into()),
            "HF_HUB_CACHE" => Some("/data/models".into()),
            "TRANSFORMERS_CACHE" | "HF_DATASETS_CACHE" => Some("/data/both".into()),
            _ => None,
        };
        let caches = folders(Some("/nowhere/hub".as_ref()), variable);
        let (torch, all) = ("/nowhere/hub/.cache/torch", "/nowhere/hub/.cache");
        for (path, folder) in [
            ("/data/hub/features.pt", None),
            ("/data/hub/datasets/features.npy", None),
            ("/data/hub/datasets/rows.arrow", Some("/data/hub")),
            ("/data/hub/token", Some("/data/hub")),
            ("/data/hub/hub/models--a/snapshots/1/model.safetensors", Some("/data/hub")),
            ("/data/models/models--a/snapshots/1/pytorch_model.bin", Some("/data/models")),
            ("/data/both/models--a/snapshots/1/pytorch_model.bin", Some("/data/both")),
            ("/nowhere/hub/.cache/torch/hub/checkpoints/net.pth", Some(torch)),
            ("/nowhere/hub/.cache/torch/net.PTH", None),
            ("/nowhere/hub/.cache/hub.pt", None),
            ("/nowhere/hub/.cache/kernels/1/kernel.cubin", Some(all)),
            ("/nowhere/hub/.triton/kernel.json", Some("/nowhere/hub/.triton")),
            ("/nowhere/hub/hub/file", None),
        ] {
            assert_eq!(keeper(path.as_ref(), &caches), folder.map(Path::new), "{path}");
        }
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
