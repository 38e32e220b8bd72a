"""Small programs that leak, or only seem to leak. Each writes a memory snapshot to this folder.

    python make.py [NAME.STACKS...]

STACKS is the kind of stacks that PyTorch records: `python` or `all`. Without names, makes the programs whose snapshots
are in the repository. ../../leaks.rs checks every snapshot in this folder. The machine's paths are removed from the
frames.
"""

import collections
import gzip
import os
import pickle
import random
import re
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

D = "cuda"
KEPT = ["outputs_kept.python", "loss_kept.all", "hooks_keep.python", "dict_by_step.python", "varying.python",
        "checkpointed.python", "by_hand_leak.python", "one_forward.python"]


def mlp(width=64, layers=3):
    return nn.Sequential(*[nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(layers)]).to(D)


def train(model, steps, batch=lambda step: 32, keep=lambda step, x, out, loss: None, micro=1, **opt):
    optimizer = torch.optim.Adam(model.parameters(), **opt)
    for step in range(steps):
        for _ in range(micro):
            x = torch.randn(batch(step), 64, device=D)
            out = model(x)
            loss = out.pow(2).mean()
            keep(step, x, out, loss)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def outputs_kept():
    model, outputs = mlp(), []
    for step in range(14):
        x = torch.randn(32, 64, device=D)
        outputs.append(model(x))
    return outputs


def loss_kept():
    model, total = mlp(), 0
    for step in range(14):
        x = torch.randn(32, 64, device=D)
        total = total + F.mse_loss(model(x), x)
    return total


def hooks_keep():
    model, seen = mlp(), []
    for module in model.modules():
        module.register_forward_hook(lambda module, given, out: seen.append(out.detach()))
    train(model, 14)
    return seen


def dict_by_step():
    by_step = {}
    train(mlp(), 14, keep=lambda step, x, out, loss: by_step.update({step: out.detach().mean(0)}))
    return by_step


def batches_kept():
    batches = []
    train(mlp(), 14, keep=lambda step, x, out, loss: batches.append(x))
    return batches


def losses_kept():
    losses = []
    train(mlp(), 14, keep=lambda step, x, out, loss: losses.append(loss))
    return losses


def sometimes():
    outputs = []
    train(mlp(), 40, keep=lambda step, x, out, loss: step % 5 == 0 and outputs.append(out.detach()))
    return outputs


def varying():
    lengths = [random.randrange(8, 400) for _ in range(16)]
    train(mlp(), 16, batch=lambda step: lengths[step])


def longer():
    train(mlp(), 24, batch=lambda step: 16 + 8 * step)


def warming():
    train(mlp(), 14)


def accumulating():
    train(mlp(), 6, micro=4)


def evaluating():
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(5):
        for step in range(3):
            model(torch.randn(32, 64, device=D)).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():
            total = sum(model(torch.randn(64, 64, device=D)).pow(2).mean() for _ in range(4))
    return total


def evaluating_leak():
    model, totals = mlp(), []
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(8):
        for step in range(2):
            model(torch.randn(32, 64, device=D)).pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        totals.append(sum(model(torch.randn(64, 64, device=D)).pow(2).mean() for _ in range(4)))
    return totals


def retained():
    total = 0
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    for step in range(14):
        loss = model(torch.randn(32, 64, device=D)).pow(2).mean()
        total = total + loss
        loss.backward(retain_graph=True)
        optimizer.step()
        optimizer.zero_grad()
    return total


def history_cat():
    history = []

    def keep(step, x, out, loss):
        history[:] = [torch.cat([*history, out.detach()])]
    train(mlp(), 24, keep=keep)
    return history


def ring():
    last = collections.deque(maxlen=6)
    train(mlp(), 30, keep=lambda step, x, out, loss: last.append(out.detach().clone()))
    return last


def by_hand():
    model = mlp()
    for step in range(14):
        model(torch.randn(32, 64, device=D)).pow(2).mean().backward()
        for p in model.parameters():
            p.data -= 0.01 * p.grad
            p.grad = None


def by_hand_leak():
    model, kept = mlp(), []
    for step in range(14):
        out = model(torch.randn(32, 64, device=D))
        kept.append(out.detach())
        out.pow(2).mean().backward()
        for p in model.parameters():
            p.data -= 0.01 * p.grad
            p.grad = None
    return kept


def checkpointed():
    layers = mlp(layers=4)
    for step in range(12):
        x = torch.randn(32, 64, device=D)
        for layer in layers:
            x = checkpoint(layer, x, use_reentrant=False)
        x.pow(2).mean().backward()
        for p in layers.parameters():
            p.grad = None


def one_forward():
    return mlp(layers=30)(torch.randn(32, 64, device=D))


def generating():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = nn.Linear(64, 192)
            self.past = None

        def forward(self, x):
            q, k, v = self.qkv(x).chunk(3, -1)
            new = torch.stack([k, v])
            self.past = new if self.past is None else torch.cat([self.past, new], 2)
            return F.scaled_dot_product_attention(q, *self.past)

    model = nn.Sequential(*[Attention() for _ in range(3)]).to(D)
    with torch.no_grad():
        token = torch.randn(4, 1, 64, device=D)
        for _ in range(60):
            out = model(token)
            token = torch.tanh(out) * 2
    return model


def neutral(frame):
    """Shortens a library's path to the part from `site-packages` or `lib` on, and any other path to its last part."""
    path = frame["filename"]
    library = re.search(r"/(site-packages|lib/python3\.\d+|lib)/.*", path)
    if path.startswith("/"):
        frame["filename"] = "/usr" + library[0] if library else path.rsplit("/", 1)[1]


def save(name, stacks, out):
    random.seed(0)
    torch.cuda.memory._record_memory_history(stacks=stacks)
    kept = globals()[name]()  # keeps it alive until the snapshot is taken
    snapshot = torch.cuda.memory._snapshot()
    torch.cuda.memory._record_memory_history(enabled=None)
    del kept
    entries = [entry for trace in snapshot["device_traces"] for entry in trace]
    entries += [block for segment in snapshot["segments"] for block in segment["blocks"]]
    for entry in entries + snapshot["segments"]:
        for frame in entry.get("frames", []):
            neutral(frame)
    with open(f"{out}/{name}.{stacks}.pickle.gz", "wb") as file:
        file.write(gzip.compress(pickle.dumps(snapshot, 4), 9, mtime=0))


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    for kept in sys.argv[1:] or KEPT:
        save(*kept.split("."), here)


main()
