//! The environment of the user's program: private compiler caches, and an `nvidia-smi` for the simulated GPUs.
//!
//! Triton, Inductor and other tuners time kernels and cache which kernel is fastest. On the simulated GPU
//! (plimsoll-standin), kernels take no time, so such results are meaningless, but programs on a real GPU would use them
//! if they were in the user's caches. So every run gets its own empty caches, in a folder that is deleted with the run:
//! every run is cold, and equal runs use the same memory. `warm.rs` computes the peaks with warm caches.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Caches of compilers and tuners: the variable with the path, and the name in the folder.
const CACHES: [(&str, &str); 12] = [
    ("TRITON_CACHE_DIR", "triton"),
    ("TRITON_HOME", "triton-home"),
    ("TORCHINDUCTOR_CACHE_DIR", "inductor"),
    ("PYTORCH_TUNABLEOP_FILENAME", "tunableop.csv"),
    ("PYTORCH_KERNEL_CACHE_PATH", "pytorch-kernels"),
    ("CUDA_CACHE_PATH", "cuda"),
    ("CUPY_CACHE_DIR", "cupy"),
    ("TILELANG_CACHE_DIR", "tilelang"),
    ("FLASHINFER_WORKSPACE_BASE", "flashinfer"),
    ("DG_JIT_CACHE_DIR", "deep-gemm"),
    ("QUACK_CACHE_DIR", "quack"),
    ("VLLM_CACHE_ROOT", "vllm"),
];

/// Experiment trackers that store runs elsewhere are set to offline. `network.py` does the same if the program
/// overrides this.
const OFFLINE: [(&str, &str); 3] =
    [("WANDB_MODE", "offline"), ("NEPTUNE_MODE", "offline"), ("COMET_START_ONLINE", "0")];

/// The cache that is a file, not a folder.
const FILE: &str = "tunableop.csv";

/// Creates the caches and the `nvidia-smi` script. Returns the variables that point to them. `before` looks up a
/// variable's value.
///
/// # Errors
/// I/O errors.
pub(crate) fn laid_out(
    folder: &Path,
    before: impl Fn(&str) -> Option<OsString>,
) -> io::Result<Vec<(&'static str, OsString)>> {
    let (caches, programs) = (folder.join("caches"), folder.join("bin"));
    let mut variables = Vec::new();
    for (variable, name) in CACHES {
        let place = caches.join(name);
        fs::create_dir_all(if name == FILE { &caches } else { &place })?;
        variables.push((variable, place.into_os_string()));
    }
    variables.push(("PLIMSOLL_PREDICT_CACHES", caches.into_os_string()));
    variables.extend(OFFLINE.map(|(variable, value)| (variable, value.into())));
    let mut runs = OsString::from("file://");
    runs.push(folder.join("mlruns"));
    variables.push(("MLFLOW_TRACKING_URI", runs));
    fs::create_dir_all(&programs)?;
    let script = programs.join("nvidia-smi");
    let this = std::env::current_exe()?;
    fs::write(
        &script,
        format!(
            "#!/bin/sh\nexec '{}' nvidia-smi \"$@\"\n",
            this.display().to_string().replace('\'', "'\\''")
        ),
    )?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
    let path = match before("PATH").filter(|path| !path.is_empty()) {
        Some(path) => [programs.as_os_str(), &path].join(":".as_ref()),
        None => programs.into_os_string(),
    };
    variables.push(("PATH", path));
    Ok(variables)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cache_is_in_the_runs_folder_and_nvidia_smi_comes_first_on_the_path() {
        let folder = tempfile::tempdir().unwrap();
        let variables = laid_out(folder.path(), |name| (name == "PATH").then(|| "/usr/bin".into())).unwrap();
        for (name, value) in variables.iter().filter(|(name, _)| OFFLINE.iter().all(|(it, _)| it != name)) {
            let value = value.to_string_lossy().replace("file://", "");
            assert!(value.starts_with(&*folder.path().to_string_lossy()), "{name}");
        }
        let (_, path) = variables.iter().find(|(name, _)| *name == "PATH").unwrap();
        let path = path.to_string_lossy().into_owned();
        assert!(path.ends_with(":/usr/bin"), "{path}");
        assert!(Path::new(path.split(':').next().unwrap()).join("nvidia-smi").is_file());
    }
}
