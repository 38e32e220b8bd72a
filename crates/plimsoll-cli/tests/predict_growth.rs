//! Growth that `plimsoll predict` computes to the program's end: from epoch to epoch, of a tensor that a larger one
//! replaces, and of the peak alone.

use serde_json::Value;

use plimsoll_needs::needs;

use crate::torch::{Torch, answer};

/// After each epoch, the results for all training batches are kept: 18 MiB, of 32 batches of the training's own loader.
const EPOCHS: &str = "
import torch
from torch.utils.data import DataLoader, TensorDataset
model = torch.nn.Linear(64, 2304).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
loader = DataLoader(TensorDataset(torch.randn(2048, 64)), 64)
history = []
for epoch in range(2000):
    for (x,) in loader:
        model(x.cuda()).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        history.append(torch.cat([model(x.cuda()) for (x,) in loader]))
";

fn predicted(torch: &Torch, gpu: &str, exit: i32) -> Value {
    answer(&torch.predict(&["--json", "--gpu", gpu, "--cc", "8.0", "--context", "0"], &[]), exit)
}

#[needs(pytorch)]
#[test]
fn results_of_each_epoch_over_the_trainings_own_loader_are_computed() {
    let torch = Torch::new("grows-by-epoch", EPOCHS);
    let report = predicted(&torch, "80GiB", 0);
    let growth = &report["growth"];
    let bytes = 18 << 20;
    assert_eq!((&growth["each"], &growth["total"]), (&"epoch".into(), &2000.into()), "{report}");
    assert_eq!((&growth["bytes"], &growth["line"]), (&bytes.into(), &"train.py:14".into()), "{report}");
    // All results, and the list whose elements are joined.
    let end = growth["end_bytes"].as_u64().expect("bytes");
    assert!((2000 * bytes..2010 * bytes).contains(&end), "{report}");
    let summary = report["summary"].as_str().expect("a sentence");
    assert!(summary.starts_with("grows by 18.00 MiB an epoch (train.py:14): needs about "), "{summary}");
}

/// A tensor of 4,000 MiB at the end, which is copied in each step: the freed blocks are cached, but not needed.
const REPLACES: &str = "
import torch
model = torch.nn.Linear(256, 1024).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
buffer, step = torch.empty(0, 1024, device='cuda'), 0
while step < 4000:
    out = model(torch.randn(256, 256, device='cuda'))
    out.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    buffer = torch.cat([buffer, out.detach()])
    step += 1
";

#[needs(pytorch)]
#[test]
fn a_tensor_that_a_larger_one_replaces_needs_no_cached_blocks() {
    let report = predicted(&Torch::new("replaces", REPLACES), "10GiB", 0);
    let growth = &report["growth"];
    assert_eq!((&growth["total"], &growth["line"]), (&4000.into(), &"train.py:11".into()), "{report}");
    // Both tensors exist while one is copied.
    let end = growth["end_bytes"].as_u64().expect("bytes");
    assert!((7500 << 20..9000 << 20).contains(&end), "{report}");
}

/// Sequences that become longer: nothing stays, but each step's peak is higher.
const LENGTHENS: &str = "
import torch
model = torch.nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(2000):
    model(torch.randn(64 + 64 * step, 1024, device='cuda')).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
";

#[needs(pytorch)]
#[test]
fn a_peak_that_goes_on_rising_is_in_the_first_line() {
    let report = predicted(&Torch::new("lengthens", LENGTHENS), "2GiB", 4);
    let summary = report["summary"].as_str().expect("a sentence");
    assert!(summary.starts_with("the peak grows by ") && summary.contains(" of 2,000"), "{summary}");
    // Input, output, its square and a gradient: a mebibyte for each 64 rows.
    let bytes = report["growth"]["bytes"].as_u64().expect("bytes");
    assert!((512 << 10..2 << 20).contains(&bytes), "{report}");
}
