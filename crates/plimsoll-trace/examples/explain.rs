//! Why memory ran out, or what used it at the peak: `cargo run -p plimsoll-trace --example explain SNAPSHOT`.

#![allow(clippy::print_stdout, reason = "a program for a terminal")]

use std::path::PathBuf;

use plimsoll_alloc::Bytes;
use plimsoll_trace::SnapshotError;
use plimsoll_trace::explain::{DeviceExplanation, Options, Origins};
use plimsoll_trace::input;
use plimsoll_trace::render::verdict;

fn main() -> Result<(), SnapshotError> {
    let ours = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/snapshots/gpt2_oom.pickle.gz");
    let file = std::env::args_os().nth(1).map_or_else(|| PathBuf::from(ours), PathBuf::from);
    let snapshot = input::open(&file)?;
    let origins = Origins::of(&snapshot);
    for number in snapshot.devices() {
        let device = DeviceExplanation::of(&snapshot, number, &origins, Options::default());
        println!("device {number}: {}", verdict::sentence(&device, |bytes| Bytes(bytes).to_string()));
        for share in device.owners.by_category.iter().take(5) {
            let category = share.key.category.name(&snapshot).unwrap_or("unknown");
            println!("  {:>12}  {category}", Bytes(share.bytes).to_string());
        }
    }
    Ok(())
}
