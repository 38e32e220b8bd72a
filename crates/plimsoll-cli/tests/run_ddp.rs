//! Techniques under `torchrun`: the ranks of a DDP job on the CPU, each with the techniques of a single
//! process.

use std::process::Output;

use plimsoll_needs::needs;

use crate::program::{plimsoll, stderr, stdout};
use crate::torch::Torch;

/// Each rank has its own data. The first rank prints the mean loss of both, and a sum of the parameters.
const TRAINS: &str = "
import sys, torch, torch.nn as nn, torch.distributed as distributed
from torch.nn.parallel import DistributedDataParallel
torch.set_num_threads(1)
distributed.init_process_group('gloo')
rank, world = distributed.get_rank(), distributed.get_world_size()
torch.manual_seed(0)
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down, self.drop = nn.LayerNorm(32), nn.Linear(32, 128), nn.Linear(128, 32), nn.Dropout(0.1)
    def forward(self, x):
        return x + self.drop(self.down(self.up(self.norm(x)).relu()))
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.blocks, self.head = nn.Embedding(2048, 32), nn.ModuleList(Block() for _ in range(3)), nn.Linear(32, 2048)
    def forward(self, index):
        x = self.embedding(index)
        for block in self.blocks:
            x = block(x)
        return self.head(x)
model = Model()
if 'still' in sys.argv:
    for block in model.blocks:
        block.drop.p = 0.0
model = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
torch.manual_seed(rank)
for step in range(3):
    index = torch.randint(0, 2048, (4, 16))
    loss = nn.functional.cross_entropy(model(index).flatten(0, 1), index.roll(1).flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    mean = loss.detach().clone()
    distributed.all_reduce(mean)
    if rank == 0:
        print('loss', mean.item().hex(), mean.item() / world)
total = sum(it.double().sum() for it in model.state_dict().values())
sums = [torch.zeros_like(total) for _ in range(world)]
distributed.all_gather(sums, total)
if rank == 0:
    print('parameters', *(it.item().hex() for it in sums))
distributed.destroy_process_group()
";

/// Starts two ranks by torchrun with a set.
fn torchrun(torch: &Torch, options: &[&str], arguments: &[&str]) -> Output {
    let program = torch.folder.file("train.py");
    let mut args = vec!["run", "--no-watch"];
    args.extend(options.iter().copied().chain(["--"]));
    args.extend(torch.python.iter().map(String::as_str));
    args.extend(["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", program.as_str()]);
    args.extend(arguments);
    plimsoll(&args)
}

#[needs(pytorch, nightly)]
#[test]
fn ranks_of_ddp_keep_their_bits_with_techniques_that_claim_it() {
    let torch = Torch::new("run-ddp", TRAINS);
    let plain = torchrun(&torch, &[], &[]);
    assert!(plain.status.success() && stdout(&plain).contains("parameters"), "{}", stderr(&plain));
    for set in ["checkpoint", "offload,free-grads"] {
        let output = torchrun(&torch, &["--with", set], &[]);
        assert_eq!(stdout(&output), stdout(&plain), "{set}: {}", stderr(&output));
        // The launcher does not train, so it does not report on techniques.
        assert!(!stderr(&output).contains("checkpoint had no effect"), "{}", stderr(&output));
    }
}

#[needs(pytorch, nightly)]
#[test]
fn ranks_of_ddp_round_differently_where_rounding_is_claimed() {
    let torch = Torch::new("run-ddp-rounding", TRAINS);
    let losses = |output: &Output| -> Vec<f64> {
        let text = stdout(output);
        text.lines().filter_map(|line| line.strip_prefix("loss ")?.split(' ').nth(1)?.parse().ok()).collect()
    };
    let plain = losses(&torchrun(&torch, &[], &["still"]));
    assert_eq!(plain.len(), 3);
    for set in ["split=2", "chunked-loss=16"] {
        let output = torchrun(&torch, &["--with", set], &["still"]);
        let found = losses(&output);
        assert_eq!(found.len(), 3, "{set}: {}", stderr(&output));
        for (loss, expected) in found.iter().zip(&plain) {
            assert!((loss / expected - 1.0).abs() < 1e-5, "{set}: {loss}, not {expected}");
        }
    }
}

#[needs(pytorch, nightly)]
#[test]
fn what_ranks_of_ddp_cannot_have_ends_the_job_with_the_reason() {
    let torch = Torch::new("run-ddp-refused", TRAINS);
    for (set, said) in [
        (&["--with", "step-in-backward"][..], "DDP averages gradients after the backward pass"),
        (&["--with", "accumulate=2"], "DDP averages gradients during the backward pass"),
        (
            &["--devices", "2", "--with", "fsdp"],
            "initializes torch.distributed itself: shard its model there",
        ),
    ] {
        let output = torchrun(&torch, set, &[]);
        assert!(!output.status.success(), "{set:?}: {}", stdout(&output));
        assert!(stderr(&output).contains(said), "{set:?}: {}", stderr(&output));
        assert!(!stdout(&output).contains("parameters"), "{set:?}: {}", stdout(&output));
    }
}
