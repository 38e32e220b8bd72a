//! The instances of MiniMalloc (google/minimalloc) and idealloc (cappadokes/idealloc), which are not part of the repository.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use flate2::read::GzDecoder;
use plimsoll_needs::needs;
use plimsoll_packing::{Buffer, Effort, lower_bound, pack, pack_within};

use crate::world::valid;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data/packing")
}

fn read(name: &str) -> Vec<Buffer> {
    let path = folder().join(name);
    let mut text = String::new();
    if name.ends_with(".gz") {
        let file = File::open(&path).unwrap_or_else(|why| panic!("{}: {why}", path.display()));
        GzDecoder::new(file).read_to_string(&mut text).expect("gzip");
    } else {
        text = fs::read_to_string(&path).unwrap_or_else(|why| panic!("{}: {why}", path.display()));
    }
    let number = |field: Option<&str>| field.and_then(|field| field.parse().ok()).expect("a number");
    let buffer = |line: &str| {
        let mut fields = line.split(',').skip(1);
        Buffer { lower: number(fields.next()), upper: number(fields.next()), size: number(fields.next()) }
    };
    text.lines().skip(1).map(buffer).collect()
}

#[needs(shared_data)]
#[test]
fn minimallocs_instances_fit_into_their_capacity() {
    for letter in 'A'..='K' {
        let buffers = read(&format!("{letter}.1048576.csv"));
        let packing = pack_within(&buffers, 1_048_576, Effort::default()).expect("valid buffers");
        let packing = packing.unwrap_or_else(|| panic!("{letter} is not packed"));
        assert!(valid(&packing, &buffers) <= 1_048_576, "{letter}");
    }
}

/// Checks that a list is packed, and that the arena exceeds the lower bound by at most this many millionths.
#[track_caller]
fn check(name: &str, millionths: u64) {
    let buffers = read(name);
    let bound = lower_bound(&buffers).expect("valid buffers");
    let packing = pack(&buffers, Effort::default()).expect("valid buffers");
    let excess = valid(&packing, &buffers) - bound;
    assert!(
        u128::from(excess) * 1_000_000 <= u128::from(bound) * u128::from(millionths),
        "{name}: {excess} of {bound}"
    );
}

#[needs(shared_data)]
#[test]
fn a_training_step_of_resnet50_fits_into_its_lower_bound() {
    check("resnet50.csv.gz", 0);
}

#[needs(shared_data)]
#[test]
fn large_programs_take_little_more_than_their_lower_bound() {
    check("pangu_2.6B.csv.gz", 10_000);
    check("S_1.csv.gz", 4_000);
    check("Y_1.csv.gz", 2_000);
    check("G_1.csv.gz", 0);
}
