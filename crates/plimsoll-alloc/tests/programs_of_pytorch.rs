//! Programs with all that PyTorch's allocator showed: after each step the statistics and a digest of every
//! segment and block, at the end every statistic and the whole trace. Some are kept here; the rest is read
//! from `shared/conformance` beside the repository, where there is one. The replay: `replay/program.rs`.

#![allow(clippy::unwrap_used, reason = "a test's helper may unwrap, as a test may")]

mod replay;

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};

use flate2::read::GzDecoder;
use replay::Program;

#[test]
fn the_kept_programs_show_what_pytorch_showed() {
    assert_eq!(replay_all(&here("tests/conformance/programs.jsonl.gz")), (30, 10));
}

#[test]
fn every_program_shows_what_pytorch_showed() {
    let path = here("../../../shared/conformance/programs-2.15.0.jsonl.gz");
    if !path.exists() {
        eprintln!("skipped: no programs beside the repository ({})", path.display());
        return;
    }
    assert_eq!(replay_all(&path), (250, 10));
}

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// How many programs there were, and of how many modes.
fn replay_all(path: &Path) -> (usize, usize) {
    let (mut modes, mut programs) = (std::collections::BTreeSet::new(), 0);
    for line in BufReader::new(GzDecoder::new(std::fs::File::open(path).unwrap())).lines() {
        let program = Program::parse(&line.unwrap()).unwrap();
        let report = program.replay();
        assert!(report.divergence.is_none(), "{}: {report}", program.name());
        modes.insert(program.mode().to_owned());
        programs += 1;
    }
    (programs, modes.len())
}
