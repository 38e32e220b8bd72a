//! `plimsoll bench snapshot` as users run it: makes a longer run, reads it, and measures.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use plimsoll_trace::input;
use plimsoll_trace::snapshot::{Action, BlockState, Snapshot};

fn bench(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_plimsoll"))
        .args(["bench", "snapshot"])
        .args(args)
        .output()
        .expect("the program starts")
}

fn kept(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../plimsoll-trace/tests/snapshots").join(file)
}

/// Follows a trace backwards from the segments. Returns how many events contradict the state.
fn misfits(snapshot: &Snapshot) -> usize {
    let blocks = snapshot.segments.iter().flat_map(|segment| &segment.blocks);
    let live = blocks.filter(|block| block.state != BlockState::Inactive).map(|block| block.address);
    let mut live: std::collections::BTreeSet<_> = live.collect();
    let mut misfits = 0;
    for event in snapshot.traces.iter().flatten().rev() {
        let addr = event.addr().unwrap_or_default();
        let fits = match event.action {
            Action::Alloc => live.remove(&addr),
            Action::FreeCompleted => live.insert(addr),
            _ => true,
        };
        misfits += usize::from(!fits);
    }
    misfits
}

#[test]
fn a_longer_run_fits_together_and_is_measured() {
    let out = std::env::temp_dir().join(format!("plimsoll-longer-{}.pickle", std::process::id()));
    for file in ["gpt2_oom.pickle.gz", "leak_layer.pickle.gz"] {
        let once = input::open(&kept(file)).expect("a snapshot");
        let path = kept(file);
        let made = bench(&[&path.to_string_lossy(), "--scale", "3", "--out", &out.to_string_lossy()]);
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let longer = input::open(&out).expect("a snapshot");
        assert!(longer.traces[0].len() > 3 * once.traces[0].len(), "{file}");
        assert_eq!((misfits(&once), misfits(&longer)), (0, 0), "{file}");
        assert_eq!(longer.segments.len(), once.segments.len(), "{file}");
        let times = longer.traces[0].iter().filter_map(|event| event.time_us.get());
        assert!(times.is_sorted(), "{file}: time runs backwards");
    }
    let measured = bench(&[&out.to_string_lossy(), "--rounds", "1", "--json"]);
    let measured: serde_json::Value = serde_json::from_slice(&measured.stdout).expect("JSON");
    assert_eq!(measured["schema"], "plimsoll.bench.snapshot/1");
    assert!(measured["mb_per_s"].as_f64().is_some_and(|rate| rate > 0.0), "{measured}");
    std::fs::remove_file(&out).expect("it was ours");
}

#[test]
fn what_is_no_snapshot_exits_with_3_and_says_where() {
    let output = bench(&[&kept("make.py").to_string_lossy()]);
    assert_eq!(output.status.code(), Some(3));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("make.py: byte 0: not a memory snapshot"), "{stderr}");
}
