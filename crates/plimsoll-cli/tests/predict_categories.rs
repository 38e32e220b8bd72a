//! The categories of memory at the peak in `plimsoll predict`.

use plimsoll_needs::needs;
use serde_json::Value;

use crate::torch::{Torch, answer};

/// Batches and activations of 64 MiB, and parameters of 4 MiB. The argument selects the program.
const PROGRAMS: &str = "
import sys, torch, torch.nn as nn
kind = sys.argv[1]
parts = [it for _ in range(3) for it in (nn.Linear(1024, 1024), nn.ReLU())]
model = (nn.Linear(1024, 8) if kind == 'moved' else nn.Sequential(*parts)).cuda()
delta = torch.zeros(1 if kind == 'moved' else 16384, 1024, device='cuda', requires_grad=kind in ('input', 'own'))
optimizer = torch.optim.SGD([*model.parameters(), *([delta] if kind == 'own' else [])], lr=0.1)
data = torch.randn(16384, 1024)
for step in range(4):
    if kind == 'moved':
        loss = model(data.half().cuda().to(torch.float32)).mean()
    elif kind == 'penalty':
        x = delta.detach().requires_grad_()
        gradient, = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        loss = (gradient.norm(dim=1) - 1).square().mean()
    else:
        loss = model(delta).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if delta.grad is not None:
        delta.grad.zero_()
";

/// The MiB at the peak by category.
fn categories(torch: &Torch, kind: &str) -> Vec<(String, u64)> {
    let report = answer(&torch.predict(&["--json"], &[kind]), 0);
    let rows = report["judged"]["explanation"]["held"]["by_category"].as_array().cloned();
    let row = |row: Value| {
        let name = row["category"].as_str().unwrap_or_default().to_owned();
        (name, row["bytes"].as_u64().unwrap_or(0) >> 20)
    };
    rows.unwrap_or_default().into_iter().map(row).collect()
}

fn of(rows: &[(String, u64)], name: &str) -> u64 {
    rows.iter().filter(|(known, _)| known == name).map(|(_, mib)| mib).sum()
}

#[needs(pytorch)]
#[test]
fn an_input_with_a_gradient_is_no_parameter_unless_an_optimizer_holds_it() {
    let torch = Torch::new("categories-input", PROGRAMS);
    let rows = categories(&torch, "input");
    assert_eq!((of(&rows, "parameter"), of(&rows, "input")), (12, 64), "{rows:?}");
    let rows = categories(&torch, "own");
    assert_eq!((of(&rows, "parameter"), of(&rows, "input")), (76, 0), "{rows:?}");
}

#[needs(pytorch)]
#[test]
fn activations_that_outlive_an_inner_backward_pass_are_no_outputs() {
    let torch = Torch::new("categories-penalty", PROGRAMS);
    let rows = categories(&torch, "penalty");
    assert!(of(&rows, "output") == 0 && of(&rows, "activation") >= 3 * 64, "{rows:?}");
}

#[needs(pytorch)]
#[test]
fn a_copy_of_a_batch_on_its_way_to_the_model_is_an_input() {
    let torch = Torch::new("categories-moved", PROGRAMS);
    let rows = categories(&torch, "moved");
    assert_eq!((of(&rows, "temporary"), of(&rows, "input")), (0, 32), "{rows:?}");
}
