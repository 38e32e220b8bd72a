"""Records small training programs in which every backward node names its line of the forward pass.

    python make.py OUT        # writes OUT/PROGRAM.all.pickle.gz, PROGRAM.python.pickle.gz and PROGRAM.anomaly.pickle.gz

Anomaly mode keeps the stack of each node's forward operator. A hook before the node writes the innermost line outside
PyTorch into the memory history, as user metadata `NODE@FILE:LINE`. `../../backward.rs` compares our results with it.
PyTorch also writes that stack as `forward_frames`, which only the `anomaly` files keep; these have only Python frames.
Values do not matter, so any device on which PyTorch's CUDA runs is sufficient. Paths are shortened.
"""

import gzip
import pickle
import re
import sys
import warnings

import torch
import torch.nn as nn
import torch.nn.functional as F

warnings.filterwarnings("ignore")
HERE, VENV = __file__.rsplit("/", 1)[0], torch.__file__.rsplit("/site-packages/", 1)[0]


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(512, 2048), nn.Linear(2048, 2048), nn.Linear(2048, 512)
        self.norm = nn.LayerNorm(512)

    def forward(self, x):
        h = self.a(x)
        h = F.gelu(h)
        h = self.b(h)
        h = torch.relu(h)
        h = self.c(h)
        h = F.dropout(h, 0.1)
        x = x + h
        return self.norm(x)


class Block(nn.Module):
    def __init__(self, width=256, heads=4):
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def attend(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(x).split(width, 2)
        q, k, v = [t.view(batch, length, self.heads, -1).transpose(1, 2) for t in (q, k, v)]
        scores = (q @ k.transpose(-2, -1)) * width**-0.5
        scores = scores.softmax(-1)
        y = scores @ v
        y = y.transpose(1, 2).reshape(batch, length, width)
        return self.out(y)

    def forward(self, x):
        x = x + self.attend(self.before(x))
        h = self.up(self.between(x))
        h = F.gelu(h)
        return x + self.down(h)


class Gpt(nn.Module):
    def __init__(self, words=2000, width=256, layers=2):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.norm, self.logits = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, tokens):
        x = self.words(tokens)
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        return self.logits(x)


class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 64, 3, padding=1)
        self.norm, self.last = nn.BatchNorm2d(64), nn.Linear(64 * 8 * 8, 10)

    def forward(self, x):
        x = self.one(x)
        x = F.relu(x)
        x = F.max_pool2d(x, 2)
        x = self.two(x)
        x = self.norm(x)
        x = F.relu(x)
        x = F.max_pool2d(x, 2)
        return self.last(x.flatten(1))


class Amp(nn.Module):
    """Products under autocast, and selections from a large tensor, whose derivatives are equally large."""

    def __init__(self):
        super().__init__()
        self.one, self.two, self.three = nn.Linear(1024, 1024), nn.Linear(1024, 1024), nn.Linear(1024, 2048)

    def forward(self, x):
        with torch.autocast("cuda", torch.float16):
            h = self.one(x)
            h = torch.relu(h)
            h = self.two(h)
            h = torch.relu(h)
            h = self.three(h)
        scores = F.log_softmax(h.float(), -1)
        picked = torch.zeros(len(x), 1, dtype=torch.long, device="cuda")
        some = scores[torch.arange(512, device="cuda")]
        blank = scores[..., 0]
        label = scores.gather(-1, picked)
        some = some.exp()
        return blank.sum() + label.sum() + some.mean()


def tokens():
    return torch.zeros(8, 128, dtype=torch.long, device="cuda")


def entropy(out, target):
    return F.cross_entropy(out.flatten(0, -2), target.flatten())


PROGRAMS = {
    "mlp": (Mlp, lambda: torch.randn(4096, 512, device="cuda"), lambda: torch.randn(4096, 512, device="cuda"), F.mse_loss),
    "gpt": (Gpt, tokens, tokens, entropy),
    "amp": (Amp, lambda: torch.randn(4096, 1024, device="cuda"), lambda: None, lambda loss, _: loss * 1024),
    "cnn": (Cnn, lambda: torch.randn(64, 3, 32, 32, device="cuda"), lambda: torch.zeros(64, dtype=torch.long, device="cuda"), entropy),
}


def short(path):
    path = path.replace(VENV, "/venv/lib/python3").replace(HERE, "/home/user")
    # Libraries of the machine itself.
    return path if path.startswith(("/venv", "/home/user")) else path.rsplit("/", 1)[-1]


def hook(loss):
    """Registers a hook on every node that names the node's forward line."""
    seen, nodes = set(), [loss.grad_fn]
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        nodes += [following for following, _ in node.next_functions]
        lines = [line.strip() for line in "".join(node.metadata.get("traceback_", [])).split("\n")]
        lines = [line.split('"')[1] + ":" + line.split("line ")[1].split(",")[0] for line in lines if line.startswith("File")]
        own = next((short(line) for line in reversed(lines) if "/torch/" not in line), "")
        if not node.name().endswith("AccumulateGrad"):
            text = f"{node.name()}@{own}"
            node.register_prehook(lambda grads, text=text: torch.cuda.memory._set_memory_metadata(text))


def run(name):
    make, inputs, targets, criterion = PROGRAMS[name]
    model = make().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(2):
        x, y = inputs(), targets()
        with torch.autograd.detect_anomaly(check_nan=False):
            loss = criterion(model(x), y)
        hook(loss)
        loss.backward()
        if name == "amp":
            del loss  # like the scaled loss of a GradScaler, which no variable keeps
        torch.cuda.memory._set_memory_metadata("")
        optimizer.step()
        optimizer.zero_grad()


if len(sys.argv) == 2:
    import subprocess

    for name in PROGRAMS:
        for stacks in ("all", "python", "anomaly"):
            subprocess.run([sys.executable, __file__, sys.argv[1], name, stacks], check=True)
else:
    out, name, stacks = sys.argv[1:]
    recorded = "all" if stacks == "all" else "python"
    torch.cuda.memory._record_memory_history(stacks=recorded, max_entries=100000)
    run(name)
    snapshot = torch.cuda.memory._snapshot()
    with_frames = [event for trace in snapshot["device_traces"] for event in trace] + snapshot["segments"]
    for owner in with_frames + [block for segment in snapshot["segments"] for block in segment["blocks"]]:
        lines = owner.pop("forward_frames", None)  # added by anomaly mode: the expected result
        if lines and stacks == "anomaly":
            owner["forward_frames"] = [re.sub('"(.*?)"', lambda path: f'"{short(path[1])}"', line, count=1) for line in lines]
        for frame in owner.get("frames", []):
            frame["filename"] = short(frame["filename"])
    with gzip.GzipFile(f"{out}/{name}.{stacks}.pickle.gz", "wb", mtime=0) as file:
        pickle.dump(snapshot, file, protocol=4)
