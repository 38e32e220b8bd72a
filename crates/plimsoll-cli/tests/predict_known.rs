//! Values that `plimsoll predict` knows, or knows bounds of, without computing anything on the GPU: lengths and indices.

use plimsoll_needs::needs;

use crate::torch::{Torch, answer};

/// Each assertion compares a value that the program reads from the GPU.
const KNOWN: &str = "
import torch
from torch.nn import functional as F
unknown = torch.randn(4, device='cuda')
assert torch.full((4,), 2.5, device='cuda').tolist() == [2.5] * 4
assert torch.tensor([4.0, 9.0], device='cuda').sqrt().tolist() == [2.0, 3.0]
assert unknown.clamp(min=4.0).sqrt().tolist() == [2.0] * 4
assert F.hardtanh(unknown, 2.0, 6.0).tolist() == [2.0] * 4
lengths = torch.tensor([1, 2, 0, 3], device='cuda')
assert torch.repeat_interleave(lengths).tolist() == [0, 1, 1, 3, 3, 3]
assert torch.arange(4, device='cuda').repeat_interleave(lengths).tolist() == [0, 1, 1, 3, 3, 3]
assert torch.cat([lengths, unknown.long()]).tolist()[:4] == [1, 2, 0, 3]
places = unknown.long().clamp(0, 3)
assert lengths.clone().scatter_add_(0, places, torch.ones_like(lengths)).tolist() == [1, 2, 0, 3]
assert torch.randn(2, 5, device='cuda').topk(3).indices.tolist() == [[0, 1, 2]] * 2
assert torch.randn(2, 50000, device='cuda').topk(3).indices.tolist() == [[0, 0, 0]] * 2
size = int(torch.cat([lengths, unknown.long()])[3])
torch.zeros(size, 1 << 20, device='cuda')
";

#[needs(pytorch)]
#[test]
fn known_values_are_followed_through_more_operators() {
    let report = answer(&Torch::new("known", KNOWN).predict(&["--whole", "--json"], &[]), 0);
    // Three rows of 4 MiB; the value is one of those that are known.
    let peak = report["judged"]["peak_allocated_bytes"].as_u64().expect("bytes");
    assert!((12 << 20..13 << 20).contains(&peak), "{report}");
    assert_eq!(report["warnings"], serde_json::json!([]), "{report}");
}
