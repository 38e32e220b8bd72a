//! `plimsoll run` and `plimsoll predict --with`: techniques applied from outside to an unmodified program.

use std::process::Output;

use plimsoll_needs::needs;

use crate::program::{Folder, plimsoll, stderr, stdout};
use crate::torch::{Torch, answer};

#[test]
fn what_cannot_be_applied_as_asked_is_refused_before_anything_runs() {
    for (args, said) in [
        (&["run", "--with", "magic", "--", "true"][..], "known are expandable"),
        (&["run", "--with", "split", "--", "true"], "number of parts"),
        (&["run", "--with", "fused,no-foreach", "--", "true"], "exclude each other"),
        (&["run", "--light", "--no-watch", "--", "true"], "cannot be used with"),
        (&["run", "--with", "fsdp", "--", "true"], "--devices N"),
        (&["run", "--devices", "2", "--with", "checkpoint", "--", "true"], "for --with fsdp"),
        (&["predict", "--with", "fsdp", "--", "true"], "--devices N"),
        (&["predict", "--with", "checkpoint=0", "--", "true"], "at least 1"),
        (&["plan", "--batch", "8", "--", "train"], "{BATCH}"),
        (&["plan", "--goal", "memory", "--", "train", "{BATCH}"], "--batch 32"),
        (&["plan", "--goal", "batch", "--batch", "8", "--", "train", "{BATCH}"], "--batch 1..512"),
        (&["plan", "--batch", "0", "--", "train", "{BATCH}"], "FROM..TO"),
        (&["plan", "--gpu", "H9000", "--", "true"], "known are H200"),
        (&["plan"], "COMMAND"),
        (&["run"], "COMMAND"),
    ] {
        let output = plimsoll(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", stdout(&output));
        assert!(stderr(&output).contains(said), "{args:?}: {}", stderr(&output));
    }
}

#[test]
fn the_programs_output_and_exit_code_are_its_own() {
    for watch in [&["run", "--no-watch"][..], &["run"]] {
        let mut args = watch.to_vec();
        args.extend(["--", "sh", "-c", "echo out; echo err >&2; exit 37"]);
        let output = plimsoll(&args);
        assert_eq!(output.status.code(), Some(37), "{args:?}");
        assert_eq!((stdout(&output), stderr(&output)), ("out\n".to_owned(), "err\n".to_owned()), "{args:?}");
    }
    let output = plimsoll(&["run", "--", "no-such-program"]);
    assert_eq!(output.status.code(), Some(5));
}

#[test]
fn without_techniques_and_watching_nothing_is_injected() {
    let output =
        plimsoll(&["run", "--no-watch", "--", "sh", "-c", "echo ${PYTHONPATH-none} ${PLIMSOLL_WITH-none}"]);
    let before = std::env::var("PYTHONPATH").unwrap_or_else(|_| "none".to_owned());
    assert_eq!(stdout(&output), format!("{before} none\n"));
}

const TRAINS: &str = "
import sys, hashlib, torch, torch.nn as nn, torch.nn.functional as F
torch.set_num_threads(1)
torch.manual_seed(0)
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down, self.drop = nn.LayerNorm(32), nn.Linear(32, 128), nn.Linear(128, 32), nn.Dropout(0.1)
        self.batch = nn.BatchNorm1d(32) if 'batch' in sys.argv else nn.Identity()
    def forward(self, x, *, scale):
        y = self.drop(self.down(F.gelu(self.up(self.norm(x))))) * scale
        return x + self.batch(y.transpose(1, 2)).transpose(1, 2)
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.blocks = nn.Embedding(2048, 32), nn.ModuleList(Block() for _ in range(4))
        self.head = nn.Linear(32, 2048, bias=False)
        self.head.weight = self.embedding.weight
        if 'still' in sys.argv:
            for block in self.blocks:
                block.drop.p = 0.0
    def forward(self, index, target):
        x = self.embedding(index)
        for block in self.blocks:
            x = block(x, scale=0.5)
        logits = self.head(x)
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), target.view(-1), ignore_index=-1)
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(3):
    logits, loss = model(torch.randint(0, 2048, (8, 16)), torch.randint(-1, 2048, (8, 16)))
    if 'reads' in sys.argv:
        logits.argmax(-1)
    optimizer.zero_grad()
    loss.backward()
    if 'clips' in sys.argv:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    print('loss', loss.item().hex(), loss.item())
print('parameters', hashlib.sha1(b''.join(it.detach().numpy().tobytes() for it in model.state_dict().values())).hexdigest())
";

/// On the CPU the gates of a cell are parts of one storage. Each has its own version, and they change one after the
/// other.
const CELLS: &str = "
import torch, torch.nn as nn
torch.set_num_threads(1)
torch.manual_seed(0)
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.LSTMCell(16, 16), nn.Linear(16, 1)
    def forward(self, x):
        state = None
        for part in x:
            state = self.cell(part, state)
        return self.head(state[0])
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
for step in range(4):
    loss = model(torch.randn(12, 8, 16)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print('loss', loss.item().hex())
";

#[needs(pytorch)]
#[test]
fn a_part_of_a_storage_that_counts_its_own_changes_is_not_copied_before_the_others_are_made() {
    let torch = Torch::new("run-cells", CELLS);
    let plain = stdout(&run(&torch, "", &[]));
    assert_eq!(plain.lines().count(), 4, "{plain}");
    assert_eq!(stdout(&run(&torch, "offload", &[])), plain);
}

/// Runs the program on the CPU with a set and these arguments.
fn run(torch: &Torch, set: &str, arguments: &[&str]) -> Output {
    let program = torch.folder.file("train.py");
    let mut args = vec!["run", "--no-watch"];
    if !set.is_empty() {
        args.extend(["--with", set]);
    }
    args.push("--");
    args.extend(torch.python.iter().map(String::as_str));
    args.push(&program);
    args.extend(arguments);
    plimsoll(&args)
}

#[needs(pytorch, nightly)]
#[test]
fn losses_and_parameters_keep_their_bits_where_identical_numbers_are_claimed() {
    let torch = Torch::new("identical", TRAINS);
    for arguments in [&[][..], &["batch"]] {
        let plain = run(&torch, "", arguments);
        assert!(plain.status.success() && stdout(&plain).contains("parameters"), "{}", stderr(&plain));
        for set in [
            "checkpoint",
            "checkpoint=2",
            "offload",
            "offload=60",
            "offload-optimizer",
            "step-in-backward",
            "step-in-backward,offload-optimizer",
            "free-grads,checkpoint,offload",
        ] {
            let output = run(&torch, set, arguments);
            assert_eq!(stdout(&output), stdout(&plain), "{set} {arguments:?}: {}", stderr(&output));
        }
    }
}

#[needs(pytorch)]
#[test]
fn losses_are_near_where_rounding_is_claimed() {
    let torch = Torch::new("rounding", TRAINS);
    let losses = |set: &str| -> Vec<f64> {
        let output = run(&torch, set, &["still"]);
        assert!(output.status.success(), "{set}: {}", stderr(&output));
        let text = stdout(&output);
        let numbers =
            text.lines().filter_map(|line| line.strip_prefix("loss ")?.split(' ').nth(1)?.parse().ok());
        numbers.collect()
    };
    let plain = losses("");
    assert_eq!(plain.len(), 3);
    for set in [
        "chunked-loss=24",
        "accumulate=4",
        "split=3,checkpoint=2",
        "accumulate=2,chunked-loss=24",
        "no-foreach",
    ] {
        for (loss, expected) in losses(set).into_iter().zip(&plain) {
            assert!((loss / expected - 1.0).abs() < 1e-5, "{set}: {loss}, not {expected}");
        }
    }
}

/// Two optimizers. The generator's loss also gives the discriminator gradients, which are then cleared.
const GAN: &str = "
import torch, torch.nn as nn
torch.manual_seed(0)
stack = lambda *ends: nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 16), *ends)
one, other = stack(), stack(nn.Linear(16, 1))
of_one, of_other = torch.optim.Adam(one.parameters()), torch.optim.Adam(other.parameters())
for step in range(3):
    made = one(torch.randn(8, 16))
    of_other.zero_grad()
    (other(torch.randn(8, 16)).square().mean() + (other(made.detach()) - 1).square().mean()).backward()
    of_other.step()
    of_one.zero_grad()
    other(made).square().mean().backward()
    of_one.step()
print('ended')
";

#[needs(pytorch)]
#[test]
fn updates_in_the_backward_pass_are_refused_where_a_step_does_not_follow() {
    let torch = Torch::new("gan", GAN);
    let output = run(&torch, "step-in-backward", &[]);
    assert_eq!(output.status.code(), Some(2), "{}", stdout(&output));
    assert!(stderr(&output).contains("clears gradients without a step"), "{}", stderr(&output));
    assert!(run(&torch, "checkpoint", &[]).status.code() == Some(2), "no repeated blocks");
}

#[needs(pytorch, nightly)]
#[test]
fn eight_bit_moments_train_about_as_well() {
    let torch = Torch::new("adam-8bit", LEARNS);
    for kind in ["Adam", "AdamW"] {
        let losses = |set: &str| -> Vec<f64> {
            let output = run(&torch, set, &[kind]);
            assert!(output.status.success(), "{set}: {}", stderr(&output));
            stdout(&output).lines().filter_map(|line| line.strip_prefix("loss ")?.parse().ok()).collect()
        };
        let (plain, narrow) = (losses(""), losses("adam-8bit"));
        assert_eq!((plain.len(), narrow.len()), (4, 4));
        for (loss, expected) in narrow.iter().zip(&plain) {
            assert!((loss / expected - 1.0).abs() < 0.05, "{kind}: {narrow:?}, not {plain:?}");
        }
    }
    // A loaded state replaces the optimizer's groups, whose learning rates change.
    let [plain, inside] = ["", "step-in-backward"].map(|set| stdout(&run(&torch, set, &["AdamW"])));
    assert_eq!(inside, plain);
    let output = run(&torch, "adam-8bit", &["SGD"]);
    assert_eq!(output.status.code(), Some(2), "{}", stdout(&output));
    assert!(stderr(&output).contains("the program's optimizer is SGD"), "{}", stderr(&output));
}

#[needs(pytorch)]
#[test]
fn a_technique_that_cannot_be_applied_ends_the_program_with_the_reason_and_what_to_leave_out() {
    let torch = Torch::new("refusals", TRAINS);
    for (set, argument, said) in [
        ("step-in-backward,checkpoint", "clips", "clip_grad_norm_"),
        ("chunked-loss=24", "reads", "argmax"),
        ("split=2", "batch", "batch normalization"),
    ] {
        let output = run(&torch, set, &[argument]);
        assert_eq!(output.status.code(), Some(2), "{set}: {}", stdout(&output));
        assert!(!stdout(&output).contains("parameters"), "{set}");
        assert!(
            stderr(&output).contains(said) && stderr(&output).contains("leave it out: plimsoll run"),
            "{}",
            stderr(&output)
        );
    }
    let output = run(&torch, "step-in-backward,checkpoint", &["clips"]);
    assert!(stderr(&output).contains("--with checkpoint -- COMMAND"), "{}", stderr(&output));
}

/// Uses a teacher's outputs, and saves and loads a state during training.
const LEARNS: &str = "
import sys, torch, torch.nn as nn
torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 200), nn.Tanh(), nn.Linear(200, 10))
teacher = nn.Sequential(nn.Linear(64, 96), nn.Tanh(), nn.Linear(96, 10))
optimizer = getattr(torch.optim, sys.argv[1])(model.parameters(), lr=3e-3, weight_decay=0.01)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 120)
for step in range(120):
    x = torch.randn(128, 64)
    loss = (model(x) - teacher(x).detach()).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
    if step % 30 == 29:
        print('loss', loss.item())
    if step == 60:
        optimizer.load_state_dict(optimizer.state_dict())
";

const PEAKS: &str = "
import torch, torch.nn as nn
model = nn.Sequential(*[nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)) for _ in range(6)]).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(4):
    loss = model(torch.randn(4096, 512, device='cuda')).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
";

#[needs(pytorch, nightly)]
#[test]
fn checkpointed_blocks_lower_the_predicted_peak_and_each_by_the_same() {
    let torch = Torch::new("checkpointed", PEAKS);
    let peak = |set: &str| {
        let mut options = vec!["--json"];
        if !set.is_empty() {
            options.extend(["--with", set]);
        }
        let report = answer(&torch.predict(&options, &[]), 0);
        report["judged"]["peak_allocated_bytes"].as_u64().expect("a peak")
    };
    let (none, two, all) = (peak(""), peak("checkpoint=2"), peak("checkpoint"));
    assert!(all < two && two < none, "{none}, {two}, {all}");
    // Six blocks of 2.1 million parameters: 6 of 8 bytes per parameter are saved, minus the temporary values
    // of one block.
    let saved = none.saturating_sub(peak("adam-8bit"));
    assert!(saved > 30_000_000, "{saved}");
}

#[test]
fn a_folder_for_snapshots_that_is_absent_is_an_error() {
    let folder = Folder::new("run-nothing");
    let output = plimsoll(&["run", "--snapshots", &folder.file("absent"), "--", "true"]);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
}
