//! The places where NVIDIA's libraries are looked for: the loader's path, `CUDA_HOME`, and pip packages of a Python.
//!
//! pip installs them below `site-packages/nvidia/`. Up to CUDA 12, each package has its own folder (`cublas/lib`);
//! since then, all share one folder (`cu13/lib`). That folder is found through a Python on the path or an active
//! virtual environment.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};

/// The settings that a search depends on.
#[derive(Clone, Debug, Default)]
pub struct Search {
    /// `CUDA_HOME` or `CUDA_PATH`: a toolkit.
    pub cuda_home: Option<PathBuf>,
    /// `VIRTUAL_ENV` or `CONDA_PREFIX`: a Python environment.
    pub environment: Option<PathBuf>,
    /// `PATH`, which is searched for Pythons.
    pub path: OsString,
}

impl Search {
    /// The settings from this process's environment.
    pub fn from_env() -> Search {
        let folder = |names: [&str; 2]| names.iter().find_map(std::env::var_os).map(PathBuf::from);
        Search {
            cuda_home: folder(["CUDA_HOME", "CUDA_PATH"]),
            environment: folder(["VIRTUAL_ENV", "CONDA_PREFIX"]),
            path: std::env::var_os("PATH").unwrap_or_default(),
        }
    }

    /// The folders to search after the loader's own path, in order and without duplicates.
    pub fn folders(&self) -> Vec<PathBuf> {
        let toolkits = self.cuda_home.iter().cloned().chain([PathBuf::from("/usr/local/cuda")]);
        let mut found: Vec<PathBuf> = toolkits.map(|home| home.join("lib64")).collect();
        for prefix in self.pythons() {
            let mut packages: Vec<PathBuf> = entries(&prefix.join("lib"))
                .into_iter()
                .filter(|path| file_name(path).starts_with("python3"))
                .flat_map(|python| {
                    ["site-packages", "dist-packages"].map(|name| python.join(name).join("nvidia"))
                })
                .collect();
            packages.push(prefix.join("lib/python3/dist-packages/nvidia"));
            // The newest layout is last in alphabetical order, and is searched first.
            found.extend(
                packages
                    .iter()
                    .flat_map(|nvidia| entries(nvidia).into_iter().rev())
                    .map(|package| package.join("lib")),
            );
        }
        let mut seen = BTreeSet::new();
        found.retain(|folder| folder.is_dir() && seen.insert(folder.clone()));
        found
    }

    /// The installation folders of the environment's `bin/python3` and of each Python on the path; for a link, also those
    /// of its target.
    fn pythons(&self) -> Vec<PathBuf> {
        let bins = self.environment.iter().map(|prefix| prefix.join("bin"));
        let bins = bins.chain(std::env::split_paths(&self.path));
        let pythons = bins.map(|bin| bin.join("python3")).filter(|python| python.exists());
        let ends =
            pythons.flat_map(|python| [Some(python.clone()), fs::canonicalize(&python).ok()]).flatten();
        ends.filter_map(|python| Some(python.parent()?.parent()?.to_path_buf())).collect()
    }
}

fn file_name(path: &Path) -> String {
    path.file_name().map(OsStr::to_string_lossy).unwrap_or_default().into_owned()
}

/// The entries of a folder, sorted by name; empty if there is no such folder.
fn entries(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pips_folders_of_the_python_on_the_path_are_found_newest_first() {
        let root = std::env::temp_dir().join(format!("plimsoll-search-{}", std::process::id()));
        let packages = root.join("env/lib/python3.12/site-packages/nvidia");
        for folder in ["cublas/lib", "cu13/lib", "cuda_nvrtc/lib"] {
            fs::create_dir_all(packages.join(folder)).unwrap();
        }
        fs::create_dir_all(root.join("env/bin")).unwrap();
        fs::create_dir_all(root.join("toolkit/lib64")).unwrap();
        fs::write(root.join("env/bin/python3"), "").unwrap();
        let search = Search {
            cuda_home: Some(root.join("toolkit")),
            environment: None,
            path: root.join("env/bin").into_os_string(),
        };
        let found: Vec<PathBuf> =
            search.folders().into_iter().filter(|folder| folder.starts_with(&root)).collect();
        let expected = ["toolkit/lib64"]
            .iter()
            .map(|name| root.join(name))
            .chain(["cuda_nvrtc/lib", "cublas/lib", "cu13/lib"].iter().map(|name| packages.join(name)));
        assert_eq!(found, expected.collect::<Vec<_>>());
        fs::remove_dir_all(&root).unwrap();
    }
}
