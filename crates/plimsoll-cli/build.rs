//! Builds the stand-in for release builds, so that the installed program contains it
//! (`src/predict/launch/embedded.rs`), and the libraries of `redirect/` and `host/` for all builds
//! (`src/predict/view/redirect.rs`, `src/predict/launch/host.rs`).
//! Lists the Python files that the program contains (`src/inject/mod.rs`).
//!
//! `cargo install` installs only programs, without libraries. Other builds embed nothing: they find the library that
//! the workspace's build leaves in cargo's target folder.

use std::env;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The folders of libraries that are compiled separately, because they have no dependencies; what does not work without.
const ALONE: [(&str, &str); 2] = [
    ("redirect", "`--isolation redirect` will not work"),
    ("host", "memory on the host will not be predicted"),
];

const LIBRARY: &str = "libplimsoll_standin.so";

/// The wheel's package, and the part of it that the user's Python processes load without the wheel.
const PACKAGE: &str = "python/plimsoll";
const INJECTED: [&str; 10] = [
    "allocator.py",
    "frames.py",
    "protocol.py",
    "sizes.py",
    "_holding",
    "_inject",
    "_predict",
    "_run",
    "_waste",
    "techniques",
];

fn main() {
    let folder = |name: &str| PathBuf::from(env::var_os(name).expect("cargo sets it"));
    // The stand-in's build script reports the folder of its sources: in the workspace, or where cargo
    // unpacked the package.
    let (sources, out) = (folder("DEP_PLIMSOLL_STANDIN_FOLDER"), folder("OUT_DIR"));
    println!("cargo::rerun-if-changed=build.rs");
    for (name, without) in ALONE {
        let bytes = if is_for_linux() { alone(name, without, &out) } else { Vec::new() };
        fs::write(out.join(format!("{name}.bin")), bytes).expect("the output folder can be written");
    }
    fs::write(out.join("python.rs"), python(&folder("CARGO_MANIFEST_DIR")))
        .expect("the output folder can be written");
    let is_release = env::var("PROFILE").is_ok_and(|it| it == "release");
    let bytes = if is_release && is_for_linux() { standin(&sources, &out) } else { Vec::new() };
    fs::write(out.join("standin.bin"), bytes).expect("the output folder can be written");
}

fn is_for_linux() -> bool {
    env::var("CARGO_CFG_TARGET_OS").is_ok_and(|it| it == "linux")
}

/// A Rust expression with the path in the package and the text of each injected file.
fn python(crate_folder: &Path) -> String {
    println!("cargo::rerun-if-changed={PACKAGE}");
    let package = crate_folder.join(PACKAGE);
    let mut left: Vec<PathBuf> = INJECTED.iter().map(|name| package.join(name)).collect();
    let mut files = Vec::new();
    while let Some(path) = left.pop() {
        if path.is_dir() {
            let entries = fs::read_dir(&path).expect("the package can be read");
            left.extend(entries.map(|entry| entry.expect("the package can be read").path()));
        } else if path.extension().is_some_and(|ending| ending == "py") {
            files.push(path);
        }
    }
    files.sort();
    let mut list = String::from("&[\n");
    for file in files {
        let name = file.strip_prefix(&package).expect("it is below the package");
        let _ = writeln!(list, "    ({name:?}, include_str!({file:?})),");
    }
    list + "]\n"
}

/// The bytes of the library in this folder. If it cannot be built, warns and returns none.
fn alone(folder: &str, without: &str, out: &Path) -> Vec<u8> {
    println!("cargo::rerun-if-changed={folder}");
    let name = format!("plimsoll_{folder}");
    let library = out.join(format!("lib{name}.so"));
    let mut rustc = Command::new(env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    rustc.args(["--edition=2024", "--crate-type=cdylib", "--crate-name", &name, "-Copt-level=2"]);
    rustc.args(["-Cpanic=abort", "-Cstrip=symbols", "--target", &env::var("TARGET").unwrap_or_default()]);
    if let Some(linker) = env::var_os("RUSTC_LINKER") {
        let mut option = OsString::from("-Clinker=");
        option.push(linker);
        rustc.arg(option);
    }
    rustc.arg("-o").arg(&library).arg(Path::new(folder).join("lib.rs"));
    match rustc.status() {
        Ok(status) if status.success() => fs::read(&library).unwrap_or_default(),
        _ => {
            println!("cargo::warning=lib{name}.so could not be built: {without}");
            Vec::new()
        }
    }
}

/// The library's bytes. If it cannot be built, warns and returns none.
fn standin(sources: &Path, out: &Path) -> Vec<u8> {
    let manifest = sources.join("Cargo.toml");
    for it in [sources, &sources.with_file_name("plimsoll-gpu")].into_iter().filter(|it| it.is_dir()) {
        println!("cargo::rerun-if-changed={}", it.display());
    }
    let target = env::var("TARGET").unwrap_or_default();
    let place = out.join("standin");
    // Its dependencies were downloaded for this program; the network is needed only if Cargo.lock has another
    // version.
    let built = [true, false].into_iter().any(|is_offline| {
        let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args(["build", "--release", "--lib", "--target", &target, "--manifest-path"]).arg(&manifest);
        cargo.arg("--target-dir").arg(&place).args(is_offline.then_some("--offline"));
        // This variable is Clippy's, which would only check and build nothing.
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
