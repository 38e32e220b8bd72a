//! `plimsoll bench allocator` as users run it: instruction counts have a source, or a reason why they are
//! missing.

use std::process::Command;

use serde_json::Value;

fn bench() -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
        .args([
            "bench",
            "allocator",
            "--mix",
            "pair bytes=512",
            "--requests",
            "5000",
            "--rounds",
            "1",
            "--json",
        ])
        .output()
        .expect("the program starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[test]
fn instructions_come_from_callgrind_where_there_is_no_counter() {
    let result = bench();
    let numbers = ["instructions", "history_instructions"].map(|key| result["rows"][0][key].as_f64());
    match result["instructions_source"].as_str() {
        Some("counter") => {}
        Some("callgrind") => assert_eq!(bench()["rows"][0]["instructions"].as_f64(), numbers[0]),
        source => {
            assert_eq!((source, numbers), (None, [None, None]));
            let why = result["instructions_unavailable"].as_str().unwrap_or_default();
            assert!(why.starts_with("perf_event_open: ") && why.contains("; valgrind: "), "{why}");
            // Valgrind may not know an instruction of this machine; any other failure is ours.
            let missing = Command::new("valgrind").arg("--version").output().is_err();
            assert!(missing || why.contains("SIGILL"), "{why}");
            return;
        }
    }
    let [Some(plain), Some(history)] = numbers else { panic!("{result}") };
    assert!(plain > 100.0 && history > plain, "{result}");
}
