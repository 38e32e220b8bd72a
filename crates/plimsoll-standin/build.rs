//! Reports where this crate's sources are, so that the build script of `plimsoll-cli` can build the library for its
//! program. Cargo passes the line below to it, because of `links` in `Cargo.toml`.

use std::env;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let folder = env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    println!("cargo::metadata=folder={folder}");
}
