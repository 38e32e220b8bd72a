//! `plimsoll run --check` on the stand-in: compares a plan with the run.

use std::fs;

use plimsoll_needs::needs;

use crate::program;
use crate::program::{plimsoll, stderr, stdout};
use crate::standin;
use crate::torch::Torch;

const TRAINS: &str = "
import sys, torch, torch.nn as nn
model = nn.Sequential(*[nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)) for _ in range(4)]).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(4):
    x = torch.randn(2048 * len(sys.argv), 512, device='cuda')
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
";

#[needs(pytorch, nightly)]
#[test]
fn the_measured_peak_is_shown_beside_the_planned_one_and_a_difference_is_explained() {
    let torch = Torch::new("run-check", TRAINS);
    let train = torch.folder.file("train.py");
    let mut args =
        vec!["plan", "--gpu=300MiB", "--cc=8.0", "--context=0", "--numbers=identical", "--json", "--"];
    args.extend(torch.python.iter().map(String::as_str).chain([train.as_str()]));
    let planned = plimsoll(&args);
    assert_eq!(planned.status.code(), Some(0), "{}", stderr(&planned));
    let plan = torch.folder.file("plan.json");
    fs::write(&plan, stdout(&planned)).expect("written");

    // The plan's set is applied: the peaks are equal.
    let output = standin::run(&torch, &["--check", &plan], &[]).output().expect("it starts");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let said = stderr(&output);
    let allocated = said.lines().find(|line| line.contains("  allocated")).expect("a row");
    assert!(allocated.ends_with("equal") && !said.contains("by line"), "{said}");

    // A larger batch needs more memory, at the line that makes it and in the blocks.
    let output = standin::run(&torch, &["--check", &plan], &["more"]).output().expect("it starts");
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("by category") && said.contains("by line"), "{said}");
    assert!(said.contains("+4.00 MiB") && said.contains("train.py:6 <module>"), "{said}");

    // A set other than the plan's is refused.
    let output =
        standin::run(&torch, &["--check", &plan, "--with", "fused"], &[]).output().expect("it starts");
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains("the plan chose"), "{}", stderr(&output));
}

#[test]
fn a_file_that_is_no_plan_stops_before_the_program_starts() {
    let folder = program::Folder::new("run-no-plan");
    for (text, said) in [("{", "not a plan"), ("{\"schema\": \"plimsoll.diff/1\"}", "plimsoll.diff/1")] {
        fs::write(folder.file("plan.json"), text).expect("written");
        let output = plimsoll(&["run", "--check", &folder.file("plan.json"), "--", "echo", "ran"]);
        assert_eq!((output.status.code(), stdout(&output)), (Some(3), String::new()));
        assert!(stderr(&output).contains(said), "{}", stderr(&output));
    }
    let output = plimsoll(&["run", "--check", &folder.file("absent.json"), "--", "true"]);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
}
