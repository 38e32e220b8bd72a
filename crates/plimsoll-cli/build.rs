//! Builds the stand-in for release builds, so that the installed program carries it (`src/predict/embedded.rs`).
//!
//! `cargo install` installs programs only, no libraries beside them. Other builds embed nothing: they find the library that the
//! workspace's build leaves in cargo's target folder.

use std::env;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

const LIBRARY: &str = "libplimsoll_standin.so";

fn main() {
    let folder = |name: &str| PathBuf::from(env::var_os(name).expect("cargo sets it"));
    // Its build script says where its sources are: in the workspace, or where cargo unpacked the package.
    let (sources, out) = (folder("DEP_PLIMSOLL_STANDIN_FOLDER"), folder("OUT_DIR"));
    println!("cargo::rerun-if-changed=build.rs");
    let is_release = env::var("PROFILE").is_ok_and(|it| it == "release");
    let is_linux = env::var("CARGO_CFG_TARGET_OS").is_ok_and(|it| it == "linux");
    let bytes = if is_release && is_linux { standin(&sources, &out) } else { Vec::new() };
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    println!("cargo::rustc-env=PLIMSOLL_STANDIN_HASH={:016x}", hasher.finish());
    fs::write(out.join("standin.bin"), bytes).expect("the output folder can be written");
}

/// The library's bytes; none, with a warning, where it cannot be built.
fn standin(sources: &Path, out: &Path) -> Vec<u8> {
    let manifest = sources.join("Cargo.toml");
    for it in [sources, &sources.with_file_name("plimsoll-gpu")].into_iter().filter(|it| it.is_dir()) {
        println!("cargo::rerun-if-changed={}", it.display());
    }
    let target = env::var("TARGET").unwrap_or_default();
    let place = out.join("standin");
    // What it needs was downloaded for this program; only another version in Cargo.lock has to come from the network.
    let built = [true, false].into_iter().any(|is_offline| {
        let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args(["build", "--release", "--lib", "--target", &target, "--manifest-path"]).arg(&manifest);
        cargo.arg("--target-dir").arg(&place).args(is_offline.then_some("--offline"));
        // Clippy's, which checks and builds nothing.
        cargo.env_remove("RUSTC_WORKSPACE_WRAPPER");
        cargo.status().is_ok_and(|status| status.success())
    });
    let library = place.join(target).join("release").join(LIBRARY);
    match fs::read(&library) {
        Ok(bytes) if built => bytes,
        _ => {
            println!(
                "cargo::warning={LIBRARY} could not be built: `predict` and `plan` will need it at PLIMSOLL_STANDIN"
            );
            Vec::new()
        }
    }
}
