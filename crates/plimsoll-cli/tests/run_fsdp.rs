//! `--with fsdp`: a single-process program on several ranks, on the CPU and on the stand-in.

use std::process::Output;

use serde_json::Value;

use plimsoll_needs::needs;

use crate::program::{plimsoll, stderr, stdout};
use crate::torch::{Torch, answer};

/// Tied weights, a loss inside or outside the model, a list of parameters made before the first call, and a batch that
/// cannot be divided evenly between two ranks.
const TRAINS: &str = "
import sys, time, torch, torch.nn as nn, torch.nn.functional as F
torch.manual_seed(0)
device = 'cuda' if 'cuda' in sys.argv else 'cpu'
width = 512 if 'deep' in sys.argv else 1024 if device == 'cuda' else 16
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.batch = nn.BatchNorm1d(12) if 'batch' in sys.argv else nn.Identity()
    def forward(self, x):
        return x + self.down(self.up(self.batch(self.norm(x))).relu())
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.blocks = nn.Embedding(50, width), nn.ModuleList(Block() for _ in range(16 if 'deep' in sys.argv else 3))
        if 'nested' in sys.argv:
            self.blocks = nn.ModuleList(nn.ModuleList([it]) for it in [*self.blocks, nn.Linear(width, width)])
        self.head = nn.Linear(width, 50, bias=False)
        self.head.weight = self.embedding.weight
    def forward(self, index, target=None):
        x = self.embedding(index)
        for block in self.blocks:
            x = block[0](x) if 'nested' in sys.argv else block(x)
        logits = self.head(x)
        return logits if target is None else (logits, F.cross_entropy(logits.view(-1, 50), target.view(-1), ignore_index=3))
if 'distributed' in sys.argv:
    torch.distributed.init_process_group('gloo', rank=0, world_size=1, init_method='tcp://127.0.0.1:29512')
if 'clock' in sys.argv:
    torch.manual_seed(time.time_ns())
model = Model().to(device)
parameters = list(model.parameters())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(3):
    index, target = torch.randint(50, (7, 12)).to(device), torch.randint(50, (7, 12)).to(device)
    if 'inside' in sys.argv:
        logits, loss = model(index, target)
    else:
        logits = model(index)
        loss = F.cross_entropy(logits.view(-1, 50), target.view(-1), ignore_index=3)
    optimizer.zero_grad()
    if 'second' in sys.argv:
        loss = loss + sum(it.pow(2).sum() for it in torch.autograd.grad(loss, parameters, create_graph=True))
    loss.backward()
    norm = nn.utils.clip_grad_norm_(parameters, 0.5)
    optimizer.step()
    if device == 'cpu':
        print('number', loss.item(), float(norm), logits.float().mean().item())
if device == 'cpu':
    state = model.state_dict()
    print('number', sum(it.double().sum().item() for it in state.values()))
    weight = next(it for name, it in state.items() if name.endswith('up.weight'))
    print(type(weight).__name__, optimizer.state_dict()['state'][1]['exp_avg'].shape)
    model.load_state_dict(state)
";

fn run(torch: &Torch, options: &[&str], arguments: &[&str]) -> Output {
    let program = torch.folder.file("train.py");
    let mut args = vec!["run", "--no-watch"];
    args.extend(options.iter().copied().chain(["--"]));
    args.extend(torch.python.iter().map(String::as_str).chain([program.as_str()]));
    args.extend(arguments);
    plimsoll(&args)
}

fn numbers(output: &Output) -> Vec<f64> {
    let text = stdout(output);
    let lines = text.lines().filter_map(|line| line.strip_prefix("number "));
    lines.flat_map(|line| line.split(' ').filter_map(|word| word.parse().ok()).collect::<Vec<_>>()).collect()
}

#[needs(pytorch, nightly)]
#[test]
fn ranks_of_an_unmodified_program_give_the_numbers_of_one_process() {
    let torch = Torch::new("fsdp", TRAINS);
    for (place, form) in [("inside", ""), ("outside", "nested")] {
        let plain = run(&torch, &[], &[place, form]);
        let expected = numbers(&plain);
        assert_eq!(expected.len(), 10, "{}", stderr(&plain));
        for set in ["fsdp", "fsdp,checkpoint,free-grads"] {
            let output = run(&torch, &["--devices", "2", "--with", set], &[place, form]);
            assert_eq!(output.status.code(), Some(0), "{set}: {}", stderr(&output));
            assert!(stdout(&output).contains("Tensor torch.Size"), "{}", stdout(&output));
            let found = numbers(&output);
            assert_eq!(found.len(), expected.len(), "{}", stdout(&output));
            for (number, expected) in found.iter().zip(&expected) {
                assert!((number / expected - 1.0).abs() < 1e-4, "{set} {place}: {number}, not {expected}");
            }
        }
    }
}

#[needs(pytorch, nightly)]
#[test]
fn a_program_whose_ranks_would_differ_is_refused_with_the_reason() {
    let torch = Torch::new("fsdp-refused", TRAINS);
    for (argument, said) in [
        ("distributed", "initializes torch.distributed itself"),
        ("clock", "different batches"),
        ("batch", "batch normalization"),
        ("second", "gradients of gradients"),
    ] {
        let output = run(&torch, &["--devices", "2", "--with", "fsdp"], &[argument]);
        assert_eq!(output.status.code(), Some(2), "{argument}: {}{}", stdout(&output), stderr(&output));
        assert!(stderr(&output).contains(said), "{argument}: {}", stderr(&output));
        assert!(!stdout(&output).contains("number"), "{argument}: {}", stdout(&output));
    }
}

#[test]
fn the_first_rank_has_the_terminal_and_another_one_is_shown_where_it_fails() {
    let run = |script: &str| plimsoll(&["run", "--no-watch", "--ranks", "2", "--", "sh", "-c", script]);
    let output = run("echo rank $RANK of $WORLD_SIZE; exit 0");
    assert_eq!((output.status.code(), stdout(&output)), (Some(0), "rank 0 of 2\n".to_owned()));
    let output = run("echo rank $RANK fails >&2; test $RANK = 0 || exit 7");
    assert_eq!(output.status.code(), Some(7), "{}", stderr(&output));
    assert!(stderr(&output).contains("rank 1 fails"), "{}", stderr(&output));
    let output = run("test $RANK = 1 || exit 3");
    assert_eq!(output.status.code(), Some(3));
}

/// Blocks with the usual names of layers; the argument is the device.
const BLOCKS: &str = "
import sys, torch, torch.nn as nn, torch.nn.functional as F
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(64)
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(64, 64) for _ in range(4))
        self.up_proj, self.down_proj = nn.Linear(64, 256), nn.Linear(256, 64)
    def forward(self, x):
        h = self.norm(x)
        q, k, v = (it(h).view(4, 16, -1, 16).transpose(1, 2) for it in (self.q_proj, self.k_proj, self.v_proj))
        x = x + self.o_proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down_proj(F.gelu(self.up_proj(self.norm(x))))
torch.manual_seed(0)
device = sys.argv[1]
model = nn.Sequential(nn.Embedding(50, 64), *(Block() for _ in range(3)), nn.Linear(64, 50)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(4):
    index, target = torch.randint(50, (4, 16)).to(device), torch.randint(50, (4, 16)).to(device)
    loss = F.cross_entropy(model(index).flatten(0, 1), target.flatten())
    optimizer.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    if device == 'cpu':
        print('number', loss.item(), float(norm))
if device == 'cpu':
    print('number', sum(it.double().sum().item() for it in model.state_dict().values()))
    print(tuple(model[1].q_proj.weight.to_local().shape) if '--split' in sys.argv else '')
";

#[needs(pytorch, nightly)]
#[test]
fn split_layers_train_as_whole_ones_do() {
    let torch = Torch::new("tensor-parallel", BLOCKS);
    let whole = numbers(&run(&torch, &[], &["cpu"]));
    let split = run(&torch, &["--devices", "2", "--with", "tensor-parallel"], &["cpu", "--split"]);
    assert!(stdout(&split).contains("(32, 64)"), "{}", stderr(&split));
    let split = numbers(&split);
    assert_eq!((whole.len(), split.len()), (9, 9));
    for (whole, split) in whole.iter().zip(&split) {
        assert!((whole - split).abs() < 1e-3 * whole.abs().max(1.0), "{whole} and {split}");
    }
}

#[needs(pytorch, nightly)]
#[test]
fn a_plan_for_two_gpus_shards_a_program_that_does_not_fit_one() {
    // With its optimizer state on the host, it would need 480 MiB.
    let torch = Torch::new("fsdp-plan", TRAINS);
    let train = torch.folder.file("train.py");
    let mut args = vec!["plan", "--cc=8.0", "--context=0", "--json", "--devices=2", "--gpu=430MiB", "--"];
    args.extend(torch.python.iter().map(String::as_str).chain([train.as_str(), "cuda", "deep"]));
    let plan = answer(&plimsoll(&args), 0);
    let chosen = plan["chosen"].as_str().expect("a set");
    assert!(chosen.contains("fsdp"), "{plan}");
    let command = plan["command"].as_str().expect("a command");
    assert!(command.starts_with("plimsoll run --devices 2 --with "), "{plan}");
    let rows = plan["tried"].as_array().into_iter().flatten();
    let row = rows.into_iter().find(|row| row["set"] == chosen).expect("its row");
    // Parameters of 134 MB are gathered twice and reduced once; half of the bytes go over the wire.
    let sent = row["wire_bytes"].as_u64().expect("bytes");
    assert!((134_000_000..402_000_000).contains(&sent), "{row}");
    // All ranks ran at the end: each uses as much as the first rank did alone.
    let (alone, together) = (&row["peak_allocated_bytes"], &plan["planned"]["peak_allocated_bytes"]);
    let bytes = |it: &Value| it.as_u64().expect("bytes") as f64;
    assert!((bytes(alone) / bytes(together) - 1.0).abs() < 0.02, "{alone} and {together}");
}
