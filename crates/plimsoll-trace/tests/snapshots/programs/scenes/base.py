"""The shared parts of the scenes: their description, a model, a training loop, limits.

A scene is a function that takes the recorder `r`. It states with `r.expect` what must be true of its snapshot, and with
`r.moment` what the tensors at a moment are.
"""

import dataclasses

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

MIB = 1 << 20
CONFIG = "PYTORCH_CUDA_ALLOC_CONF"
OPT = torch.optim


@dataclasses.dataclass
class Scene:
    program: object
    environment: dict
    ranks: int = 1
    real: bool = False
    alone: bool = False
    devices: int = 1

    def fits(self, simulated, devices):
        return not (simulated and self.real) and devices >= max(self.devices, self.ranks)


SCENES = {}


def scene(ranks=1, real=False, alone=False, devices=1, **environment):
    def add(program):
        SCENES[program.__name__] = Scene(program, environment, ranks, real, alone, devices)
        return program
    return add


class Block(nn.Module):
    def __init__(self, width, heads=4):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Model(nn.Module):
    def __init__(self, r, layers=3, vocabulary=4096, again=None):
        super().__init__()
        width = 256 * r.scale
        self.again = again
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x) if self.again is None else checkpoint(block, x, use_reentrant=self.again)
        return self.head(self.norm(x))


def tokens(batch, length=128, device="cuda"):
    return torch.randint(0, 4096, (batch, length), device=device)


def loss_of(model, x):
    logits = model(x)
    return F.cross_entropy(logits.view(-1, logits.shape[-1]), x.view(-1))


class Saved:
    """Records the places of tensors saved for the backward pass while it is entered. Keeps no tensor alive."""

    def __init__(self):
        self.places = []

    def __enter__(self):
        from make import place

        def pack(tensor):
            self.places.append(place(tensor))
            return tensor
        self.hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
        self.hooks.__enter__()
        return self

    def __exit__(self, *why):
        self.hooks.__exit__(*why)


def adamw(*models):
    return OPT.AdamW([p for model in models for p in model.parameters()], 1e-4)


def train(r, model, optimizer, steps=6, batch=lambda step: 8, micro=1, loss_of=loss_of, length=128, look=None,
          given=None, saved=True, tell=("forward", "backward", "optimizer"), set_to_none=True, end=True, before=None,
          after=None):
    """Runs a usual training loop. At the third step, or at step `look`, it reports what its tensors are, after each of
    `tell`; with `end`, it also does so at the end.

    `given` makes the batch of a step. `saved` says whether to record what is saved for the backward pass. `before` and
    `after` are called with the step; `after` also gets the batch and the loss. `model` may be a list of models.
    """
    models = model if isinstance(model, list) else [model]
    look = min(2, steps - 1) if look is None else look
    given = given or (lambda step: tokens(batch(step), length))

    def moment(name, step, **tensors):
        if step == look and name.split()[-1] in tell:
            r.moment(name, models, [optimizer], inputs=[x], **tensors)
    for step in range(steps):
        if before:
            before(step)
        for turn in range(micro):
            x = given(step)
            is_seen = step == look and turn == micro - 1
            if is_seen and saved:
                with Saved() as kept:
                    loss = loss_of(model, x)
                moment("after forward", step, activations=kept.places)
            else:
                loss = loss_of(model, x)
                if is_seen:
                    moment("after forward", step)
            loss.backward()
        moment("after backward", step)
        optimizer.step()
        moment("after the optimizer", step)
        optimizer.zero_grad(set_to_none=set_to_none)
        if after:
            after(step, x, loss)
        r.step()
    if end:
        r.moment("at the end", models, [optimizer], inputs=[x])


def limit(r, bytes, device=0):
    """Limits the device memory that this process may use."""
    total = torch.cuda.mem_get_info(device)[1]
    r.expect(limit=int(bytes / total * total))
    torch.cuda.set_per_process_memory_fraction(bytes / total, device)


def room(r, more):
    """Lets this process use `more` bytes than it has reserved."""
    limit(r, torch.cuda.memory_reserved() + more)
