//! GPUs for `predict` that are not just a listed name: next to other programs, described, a MIG slice, or sharing the
//! host's memory.

use std::fs;

use plimsoll_needs::needs;
use serde_json::Value;

use crate::program::{json, plimsoll, stderr, stdout};
use crate::torch::{Torch, answer};

const GIB: u64 = 1 << 30;

/// A program that prints what CUDA reports, and allocates as many GiB on the host as its argument says.
const PROGRAM: &str = "
import sys, torch
x = torch.ones(256 << 20, dtype=torch.uint8, device='cuda')
free, total = torch.cuda.mem_get_info()
p = torch.cuda.get_device_properties(0)
print('seen', total, total - free, p.multi_processor_count, p.is_integrated, p.name, sep='|', flush=True)
host = torch.ones(int(float(sys.argv[1]) * (1 << 30)), dtype=torch.uint8) if len(sys.argv) > 1 else None
";

/// What the program printed: total and used bytes, multiprocessors, whether it is integrated, and the name.
fn seen(error: &str) -> Vec<String> {
    let line = error.lines().find_map(|line| line.strip_prefix("seen|")).unwrap_or_else(|| panic!("{error}"));
    line.split('|').map(str::to_owned).collect()
}

fn predicted(torch: &Torch, options: &[&str], arguments: &[&str], code: i32) -> (Value, Vec<String>) {
    let output = torch.predict(&[options, &["--json", "--whole"]].concat(), arguments);
    (answer(&output, code), seen(&stderr(&output)))
}

fn spare(report: &Value) -> u64 {
    report["verdict"]["spare_bytes"].as_u64().unwrap_or_else(|| panic!("{report:#}"))
}

#[needs(pytorch)]
#[test]
fn what_other_programs_use_is_missing_from_what_is_free_and_to_spare() {
    let torch = Torch::new("others", PROGRAM);
    let (alone, seen_alone) = predicted(&torch, &["--gpu", "H100"], &[], 0);
    let (beside, seen) = predicted(&torch, &["--gpu", "H100", "--others", "8GiB"], &[], 0);
    assert_eq!(spare(&alone) - spare(&beside), 8 * GIB);
    assert_eq!((&beside["gpu"]["others_bytes"], &beside["totals"]), (&(8 * GIB).into(), &alone["totals"]));
    let used = |seen: &[String]| seen[1].parse::<u64>().expect("a number");
    assert_eq!((seen[0].as_str(), used(&seen) - used(&seen_alone)), ("85017493504", 8 * GIB));
    let text = stdout(&torch.predict(&["--gpu", "H100", "--others", "8GiB", "--full", "--whole"], &[]));
    assert!(text.contains("8.00 GiB  other programs on this GPU (given: --others)"), "{text}");
    // The rows add up: the memory of PyTorch, libraries and other programs, and what is left.
    let output = torch.predict(&["--gpu", "H100", "--others", "78.5GiB", "--json", "--whole"], &[]);
    let report = json(&output);
    assert_eq!((output.status.code(), &report["verdict"]["is"]), (Some(4), &"runs out".into()), "{report:#}");
    assert!(report["next"].to_string().contains("--others"), "{}", report["next"]);
    let usage = plimsoll(&["predict", "--gpu", "H100", "--others", "80GiB", "--", "true"]);
    assert_eq!(usage.status.code(), Some(2), "{}", stderr(&usage));
}

#[needs(pytorch)]
#[test]
fn a_slice_and_a_described_gpu_are_what_the_program_sees() {
    let torch = Torch::new("described", PROGRAM);
    let (report, seen) = predicted(&torch, &["--gpu", "H100:3g.40gb"], &[], 0);
    assert_eq!([&seen[0], &seen[2], &seen[4]], ["42412802048", "60", "NVIDIA H100 80GB HBM3 MIG 3g.40gb"]);
    assert_eq!(report["gpu"]["name"], "an H100:3g.40gb");
    let context = report["outside"].as_array().expect("rows").iter().find(|row| row["owner"] == "context");
    let context = context.expect("a context");
    assert_eq!((&context["bytes"], &context["basis"]), (&(60 * 2048 * 2048_u64).into(), &"derived".into()));
    let two = torch.predict(&["--gpu", "H100:3g.40gb", "--devices", "2"], &[]);
    assert!(two.status.code() == Some(2) && stderr(&two).contains("one MIG slice"), "{}", stderr(&two));

    let text = "custom:memory=15GiB,cc=12.0,sms=70,context=300MiB,name=NewCard";
    let (report, seen) = predicted(&torch, &["--gpu", text], &[], 0);
    assert_eq!([&seen[0], &seen[2], &seen[4]], ["16106127360", "70", "Plimsoll NewCard"]);
    assert_eq!(report["gpu"]["name"], "a NewCard");
    let assumed = report["gpu"]["assumed"].as_str().expect("a sentence");
    assert!(
        assumed.ends_with("does not give threads, bandwidth, tflops: using the values of the RTX-5080"),
        "{assumed}"
    );
    let wrong = torch.predict(&["--gpu", "custom:memory=15GiB,colour=red"], &[]);
    assert!(wrong.status.code() == Some(2) && stderr(&wrong).contains("`colour` is not a property"));
    let file = torch.folder.file("other.json");
    fs::write(&file, "{}").expect("a file");
    let wrong = torch.predict(&["--gpu", &file], &[]);
    assert!(wrong.status.code() == Some(3) && stderr(&wrong).contains("not a row"), "{}", stderr(&wrong));
}

#[needs(pytorch)]
#[test]
fn on_unified_memory_host_and_gpu_must_fit_together() {
    let torch = Torch::new("unified", PROGRAM);
    // A GPU like the DGX Spark's, with 3 GiB.
    let small = ["--gpu", "custom:like=GB10,memory=3GiB"];
    let (report, seen) = predicted(&torch, &["--gpu", "GB10"], &[], 0);
    assert_eq!([&seen[0], &seen[2], &seen[3], &seen[4]], ["130663006208", "48", "1", "NVIDIA GB10"]);
    assert_eq!(report["gpu"]["shares_memory"], true);
    assert_eq!(report["totals"]["reserve_bytes"], 0);
    assert_eq!(report["host"]["limit_bytes"], spare(&report));
    let (report, _) = predicted(&torch, &small, &["2.5"], 4);
    assert!(report["host"]["short_bytes"].as_u64() > Some(0), "{}", report["host"]);
    let summary = report["summary"].as_str().expect("a sentence");
    assert!(summary.contains("more than the GPU leaves of the memory that they share"), "{summary}");
    let text = stdout(&torch.predict(&["--gpu", "GB10", "--full", "--whole"], &[]));
    assert!(text.contains("the memory that the GPU and the host share: CUDA's total"), "{text}");
}
