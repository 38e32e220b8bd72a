//! Looks for what tests need, once per build: `found.rs` lists each need, with the reason if it is missing.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Python packages that tests need, and the module that each provides.
const PACKAGES: [(&str, &str); 6] = [
    ("pytorch", "torch"),
    ("transformers", "transformers"),
    ("accelerate", "accelerate"),
    ("torchvision", "torchvision"),
    ("pytest", "pytest"),
    ("ipython", "IPython"),
];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=PLIMSOLL_PYTORCH");
    println!("cargo::rerun-if-env-changed=PLIMSOLL_REQUIRE");
    let mut lacks: Vec<(String, Option<String>)> = Vec::new();
    let python = env::var("PLIMSOLL_PYTORCH").ok().filter(|it| !it.trim().is_empty());
    let packages = python.as_deref().map(site_packages);
    for (need, module) in PACKAGES {
        lacks.push((need.to_owned(), lacks_package(python.as_deref(), packages.as_ref(), module)));
    }
    let nvrtc = lacks_package(python.as_deref(), packages.as_ref(), "nvidia");
    lacks.push(("nvrtc".to_owned(), nvrtc));
    let python3 = Command::new("python3").arg("--version").output().is_ok_and(|it| it.status.success());
    lacks.push(("python3".to_owned(), (!python3).then(|| "there is no python3 on the PATH".to_owned())));
    let has_gpu = Path::new("/proc/driver/nvidia").exists();
    lacks.push(("no_gpu".to_owned(), has_gpu.then(|| "this machine has an NVIDIA GPU".to_owned())));
    lacks.push(("other_group".to_owned(), lacks_group()));
    let shared = Path::new(&variable("CARGO_MANIFEST_DIR")).join("../../../shared");
    println!("cargo::rerun-if-changed={}", shared.display());
    for folder in ["conformance", "data", "snapshots"] {
        let lack = (!shared.join(folder).is_dir()).then(|| format!("there is no ../shared/{folder}"));
        lacks.push((format!("shared_{folder}"), lack));
    }
    let required = env::var("PLIMSOLL_REQUIRE").unwrap_or_default();
    let required: Vec<&str> = required.split(',').map(str::trim).filter(|it| !it.is_empty()).collect();
    let slow = "slow: .ci/nightly runs it, or PLIMSOLL_REQUIRE=nightly";
    lacks.push(("nightly".to_owned(), (!required.contains(&"nightly")).then(|| slow.to_owned())));
    for name in &required {
        assert!(
            lacks.iter().any(|(need, _)| need == name),
            "PLIMSOLL_REQUIRE names {name}, which no test can need; known: {}",
            lacks.iter().map(|(need, _)| need.as_str()).collect::<Vec<_>>().join(", ")
        );
    }
    let rows: Vec<String> = lacks
        .iter()
        .map(|(need, lack)| format!("    ({need:?}, {lack:?}, {}),\n", required.contains(&need.as_str())))
        .collect();
    let found = format!("[\n{}]\n", rows.concat());
    fs::write(PathBuf::from(variable("OUT_DIR")).join("found.rs"), found).expect("the build's folder");
}

/// Why this user cannot give a file to another group; `None` if it can. Root can always.
fn lacks_group() -> Option<String> {
    let own = |option: &str| {
        let output = Command::new("id").arg(option).output().ok();
        output.map(|it| String::from_utf8_lossy(&it.stdout).trim().to_owned()).unwrap_or_default()
    };
    let is_alone = own("-G").split(' ').all(|group| group == own("-g"));
    (own("-u") != "0" && is_alone).then(|| "this user is in only one group".to_owned())
}

/// A variable that Cargo sets.
fn variable(name: &str) -> String {
    env::var(name).expect("Cargo sets it")
}

/// The folder of that Python's packages, or the reason why it is unknown.
fn site_packages(python: &str) -> Result<PathBuf, String> {
    let words: Vec<&str> = python.split_whitespace().collect();
    let code = "import sysconfig; print(sysconfig.get_paths()['platlib'])";
    let output = Command::new(words[0]).args(&words[1..]).args(["-c", code]).output();
    let output = output.map_err(|why| format!("PLIMSOLL_PYTORCH={python}: {why}"))?;
    if !output.status.success() {
        return Err(format!("PLIMSOLL_PYTORCH={python} does not run: {}", output.status));
    }
    let folder = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    println!("cargo::rerun-if-changed={}", folder.display());
    Ok(folder)
}

fn lacks_package(
    python: Option<&str>,
    packages: Option<&Result<PathBuf, String>>,
    module: &str,
) -> Option<String> {
    match (python, packages) {
        (Some(python), Some(Ok(folder))) => {
            (!folder.join(module).is_dir()).then(|| format!("{python} has no {module}"))
        }
        (_, Some(Err(why))) => Some(why.clone()),
        _ => Some("PLIMSOLL_PYTORCH does not name a Python with PyTorch".to_owned()),
    }
}
