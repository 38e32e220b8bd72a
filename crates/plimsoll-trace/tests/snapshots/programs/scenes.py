"""The programs whose snapshots make.py keeps: as people write them, with what is known of each.

A scene is a function that is given the recorder `r`. It says with `r.expect` what must be true of its snapshot,
and with `r.moment` what the tensors of a moment are.
"""

import dataclasses
import os
import subprocess
import sys
import threading
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

MIB = 1 << 20


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


CONFIG = "PYTORCH_CUDA_ALLOC_CONF"


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
    """What is saved for the backward pass while it is entered, by place; no tensor is held."""

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


def train(r, model, optimizer, steps=6, batch=lambda step: 8, micro=1, loss_of=loss_of, length=128, look=None):
    """A usual loop. At the third step, or at `look`, it tells what its tensors are."""
    look = min(2, steps - 1) if look is None else look
    for step in range(steps):
        for turn in range(micro):
            x = tokens(batch(step), length)
            is_seen = step == look and turn == micro - 1
            if is_seen:
                with Saved() as saved:
                    loss = loss_of(model, x)
                r.moment("after forward", [model], [optimizer], inputs=[x], activations=saved.places)
            else:
                loss = loss_of(model, x)
            loss.backward()
        if step == look:
            r.moment("after backward", [model], [optimizer], inputs=[x])
        optimizer.step()
        if step == look:
            r.moment("after the optimizer", [model], [optimizer], inputs=[x])
        optimizer.zero_grad()
        r.step()
    r.moment("at the end", [model], [optimizer], inputs=[x])


def limit(r, bytes, device=0):
    """What this process may take of the device."""
    total = torch.cuda.mem_get_info(device)[1]
    r.expect(limit=int(bytes / total * total))
    torch.cuda.set_per_process_memory_fraction(bytes / total, device)


def room(r, more):
    """Lets this process take `more` bytes than it has reserved."""
    limit(r, torch.cuda.memory_reserved() + more)


# Training: no leak, every category known.

def usual(optimizer, steps=6, batch=lambda step: 8, micro=1, loss_of=loss_of, again=None, stacks="python", **kwargs):
    def program(r):
        r.expect(leak=False)
        r.start(stacks)
        model = Model(r, again=again).cuda()
        train(r, model, optimizer(model.parameters()), steps, batch, micro, loss_of, **kwargs)
    return program


def autocast_loss(model, x):
    with torch.autocast("cuda", torch.bfloat16):
        return loss_of(model, x)


def lengths(step):
    return [8, 3, 11, 5, 9, 2, 12, 6, 7, 4, 10, 8, 3, 9][step % 14]


OPT = torch.optim
for name, program in {
    "steady": usual(lambda p: OPT.AdamW(p, 1e-4), steps=12),
    "steady_all": usual(lambda p: OPT.AdamW(p, 1e-4), steps=5, stacks="all"),
    "variable_batch": usual(lambda p: OPT.AdamW(p, 1e-4), steps=14, batch=lengths),
    "adam_fused": usual(lambda p: OPT.Adam(p, 1e-4, fused=True)),
    "adam_single": usual(lambda p: OPT.Adam(p, 1e-4, foreach=False)),
    "adam_amsgrad": usual(lambda p: OPT.Adam(p, 1e-4, amsgrad=True)),
    "sgd_plain": usual(lambda p: OPT.SGD(p, 0.01)),
    "sgd_momentum": usual(lambda p: OPT.SGD(p, 0.01, momentum=0.9, foreach=True)),
    "adagrad": usual(lambda p: OPT.Adagrad(p, 0.01)),
    "accumulation": usual(lambda p: OPT.AdamW(p, 1e-4), steps=5, micro=4),
    "checkpoint_reentrant": usual(lambda p: OPT.AdamW(p, 1e-4), again=True),
    "checkpoint_new": usual(lambda p: OPT.AdamW(p, 1e-4), again=False),
    "checkpoint_all": usual(lambda p: OPT.AdamW(p, 1e-4), again=False, steps=4, stacks="all"),
    "autocast": usual(lambda p: OPT.AdamW(p, 1e-4), loss_of=autocast_loss),
}.items():
    program.__name__ = name
    scene()(program)


@scene(**{CONFIG: "expandable_segments:True"})
def expandable(r):
    usual(lambda p: OPT.AdamW(p, 1e-4), steps=10, batch=lengths)(r)


@scene()
def half_model(r):
    """Parameters in bfloat16, gradients not set to None."""
    r.expect(leak=False)
    r.start()
    model = Model(r).cuda().bfloat16()
    optimizer = OPT.AdamW(model.parameters(), 1e-4)
    for step in range(6):
        x = tokens(8)
        with Saved() as saved:
            loss = loss_of(model, x)
        if step == 3:
            r.moment("after forward", [model], [optimizer], inputs=[x], activations=saved.places)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        r.step()
    r.moment("at the end", [model], [optimizer], inputs=[x])


@scene()
def param_groups(r):
    """Three groups, one of which learns nothing; clipping; a schedule."""
    r.expect(leak=False)
    r.start()
    model = Model(r).cuda()
    model.embed.requires_grad_(False)
    groups = [{"params": [p for p in model.parameters() if p.requires_grad and p.dim() > 1], "weight_decay": 0.1},
              {"params": [p for p in model.parameters() if p.requires_grad and p.dim() < 2], "weight_decay": 0.0}]
    optimizer = OPT.AdamW(groups, 1e-4)

    def clipped(model, x):
        loss = loss_of(model, x)
        return loss
    train(r, model, optimizer, 6, loss_of=clipped)


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx, grad):
        x, = ctx.saved_tensors
        square = x * x
        return grad * square * 3


@scene()
def custom_function(r):
    class Cubed(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = Model(r, layers=2)

        def forward(self, x):
            return Cube.apply(self.model(x))
    r.expect(leak=False)
    r.start()
    model = Cubed().cuda()
    train(r, model, OPT.AdamW(model.parameters(), 1e-4))


@scene()
def annotated(r):
    r.expect(leak=False, scopes=["epoch", "train_step", "evaluate"])
    r.start(global_record_annotations=True)
    model = Model(r).cuda()
    optimizer = OPT.AdamW(model.parameters(), 1e-4)
    for epoch in range(2):
        with torch.profiler.record_function("epoch"):
            for step in range(4):
                with torch.profiler.record_function("train_step"):
                    loss_of(model, tokens(8)).backward()
                    optimizer.step()
                    optimizer.zero_grad()
                r.step()
            with torch.profiler.record_function("evaluate"), torch.no_grad():
                loss_of(model, tokens(16))
    r.moment("at the end", [model], [optimizer])


@scene()
def ring(r):
    """The recording keeps its last events alone."""
    r.expect(leak=False, truncated=True)
    r.start(max_entries=1500)
    model = Model(r).cuda()
    optimizer = OPT.AdamW(model.parameters(), 1e-4)
    for step in range(14):
        loss_of(model, tokens(8)).backward()
        optimizer.step()
        optimizer.zero_grad()
        r.step()
    r.moment("at the end", [model], [optimizer])
    r.take()


@scene()
def late(r):
    """The recording begins when the training runs already."""
    r.expect(leak=False)
    model = Model(r).cuda()
    optimizer = OPT.AdamW(model.parameters(), 1e-4)
    for step in range(8):
        if step == 2:
            r.start()
        x = tokens(8)
        loss_of(model, x).backward()
        optimizer.step()
        optimizer.zero_grad()
        r.step()
    r.moment("at the end", [model], [optimizer], inputs=[x])
    r.take()


@scene()
def pinned(r):
    r.expect(leak=False, pinned=True)
    r.start(record_pinned_host_memory=True)
    model = Model(r).cuda()
    optimizer = OPT.AdamW(model.parameters(), 1e-4)
    for step in range(5):
        x = torch.randint(0, 4096, (8, 128)).pin_memory().to("cuda", non_blocking=True)
        loss_of(model, x).backward()
        optimizer.step()
        optimizer.zero_grad()
        r.step()
    r.moment("at the end", [model], [optimizer], inputs=[x])


@scene(devices=2)
def two_devices(r):
    r.expect(leak=False)
    r.start()
    halves = [Model(r, layers=2).cuda(0), Block(256 * r.scale).cuda(1)]
    down = nn.Linear(4096, 256 * r.scale).cuda(1)
    halves.append(down)
    optimizer = OPT.AdamW([p for half in halves for p in half.parameters()], 1e-4)
    for step in range(6):
        x = tokens(8)
        with Saved() as saved:
            y = halves[1](down(halves[0](x).to("cuda:1")))
            loss = y.pow(2).mean()
        if step == 3:
            r.moment("after forward", halves, [optimizer], inputs=[x], activations=saved.places)
        loss.backward()
        if step == 3:
            r.moment("after backward", halves, [optimizer], inputs=[x])
        optimizer.step()
        optimizer.zero_grad()
        r.step()
    r.moment("at the end", halves, [optimizer], inputs=[x])


# Compiled programs and private pools.

@scene()
def compiled(r):
    r.expect(leak=False)
    r.start()
    model = Model(r).cuda()
    step_model = torch.compile(model)
    optimizer = OPT.AdamW(model.parameters(), 1e-4)
    for step in range(6):
        x = tokens(8)
        loss = loss_of(step_model, x)
        if step == 3:
            r.moment("after forward", [model], [optimizer], inputs=[x])
        loss.backward()
        if step == 3:
            r.moment("after backward", [model], [optimizer], inputs=[x])
        optimizer.step()
        optimizer.zero_grad()
        r.step()
    r.moment("at the end", [model], [optimizer], inputs=[x])


@scene(real=True)
def compiled_all(r):
    r.expect(leak=False)
    r.start("all")
    model = Model(r, layers=2).cuda()
    train(r, model, OPT.AdamW(model.parameters(), 1e-4), 5, loss_of=torch.compile(loss_of))


@scene(real=True)
def compiled_graphs(r):
    r.expect(leak=False, private_pools=True)
    r.start()
    model = Model(r).cuda()
    step_model = torch.compile(model, mode="reduce-overhead")
    optimizer = OPT.AdamW(model.parameters(), 1e-4)
    for step in range(8):
        torch.compiler.cudagraph_mark_step_begin()
        x = tokens(8)
        loss_of(step_model, x).backward()
        optimizer.step()
        optimizer.zero_grad()
        r.step()
    r.moment("at the end", [model], [optimizer], inputs=[x])


@scene()
def memory_pool(r):
    r.expect(leak=False, private_pools=True)
    r.start()
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        model = Model(r).cuda()
    optimizer = OPT.AdamW(model.parameters(), 1e-4)
    train(r, model, optimizer)


@scene(real=True)
def captured(r):
    """A whole step as a CUDA graph, replayed."""
    r.expect(leak=False, private_pools=True)
    r.start()
    model = Model(r).cuda()
    optimizer = OPT.AdamW(model.parameters(), 1e-4, capturable=True)
    x = tokens(8)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            optimizer.zero_grad()
            loss_of(model, x).backward()
            optimizer.step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad()
    with torch.cuda.graph(graph):
        loss = loss_of(model, x)
        loss.backward()
        optimizer.step()
    for _ in range(5):
        x.copy_(tokens(8))
        graph.replay()
        r.step()
    r.moment("at the end", [model], [optimizer], inputs=[x])
    r.take()


@scene(real=True)
def graphed_callables(r):
    r.expect(leak=False, private_pools=True)
    r.start()
    width = 256 * r.scale
    model = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width)).cuda()
    example = torch.randn(64, width, device="cuda", requires_grad=True)
    graphed = torch.cuda.make_graphed_callables(model, (example,))
    optimizer = OPT.SGD(model.parameters(), 0.01, momentum=0.9)
    for _ in range(6):
        graphed(torch.randn(64, width, device="cuda", requires_grad=True)).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        r.step()
    r.moment("at the end", [model], [optimizer])
    r.take()


# Leaks, and what only looks like one.

def leaking(r, keep, steps=12, loss_of=loss_of, model=None, stacks="python"):
    """A loop in which `keep` is called with the step, the model, the batch and the loss."""
    r.start(stacks)
    model = model or Model(r, layers=2)
    model = model.cuda()
    optimizer = OPT.AdamW(model.parameters(), 1e-4)
    for step in range(steps):
        x = tokens(8)
        loss = loss_of(model, x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        keep(step, model, x, loss)
        r.step()
    r.moment("at the end", [model], [optimizer], inputs=[x])


@scene()
def leak_running_sum(r):
    """An evaluation whose losses are summed with their graphs."""
    r.expect(leak=True, line="total = total + loss_of(model, tokens(4))")
    total = []

    def keep(step, model, x, loss):
        total[:] = [(total[0] if total else 0) + loss_of(model, tokens(4))]
    leaking(r, keep)
    r.take()


@scene()
def sum_of_losses(r):
    """The sum of training losses: their graphs are freed, the numbers are replaced."""
    r.expect(leak=False, pattern="RunningSum")
    total = [0]

    def keep(step, model, x, loss):
        total[0] = total[0] + loss
    leaking(r, keep, steps=8, stacks="all")
    r.take()


@scene()
def sum_on_a_busy_line(r):
    """As sum_of_losses, where the line makes other blocks too, one of which outlives the step."""
    r.expect(leak=False, pattern="RunningSum")
    r.start("all")
    model = Model(r, layers=1).cuda()
    optimizer = OPT.AdamW(model.parameters(), 1e-4)
    total = 0
    for step in range(8):
        total = total + (loss := model(tokens(8)).logsumexp(-1).mean())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        r.step()
    r.moment("at the end", [model], [optimizer])
    r.take()


@scene()
def leak_outputs(r):
    r.expect(leak=True)
    outputs = []

    def loss(model, x):
        logits = model(x)
        outputs.append(logits.detach().argmax(-1))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), x.view(-1))
    leaking(r, lambda *_: None, loss_of=loss)
    r.take()


@scene()
def leak_module_cache(r):
    r.expect(leak=True, pattern="ModuleCache")

    class Remembering(Model):
        def __init__(self, r):
            super().__init__(r, layers=2)
            self.seen = []

        def forward(self, x):
            out = super().forward(x)
            self.seen.append(out.detach().mean(1))
            return out
    model = Remembering(r)
    leaking(r, lambda *_: None, model=model)
    r.take()


@scene()
def leak_hook(r):
    """A closure keeps what a layer made."""
    r.expect(leak=True)
    seen = {}
    model = Model(r, layers=2)
    model.blocks[1].register_forward_hook(lambda module, given, out: seen.update({len(seen): out}))
    leaking(r, lambda *_: None, model=model)
    r.take()


@scene()
def leak_validation(r):
    """A validation without no_grad whose losses are kept: their graphs stay."""
    r.expect(leak=True, pattern="GraphKept")
    losses = []
    leaking(r, lambda step, model, x, loss: losses.append(loss_of(model, tokens(4))))
    r.take()


@scene()
def validation_forgotten(r):
    """A validation without no_grad whose losses are not kept: no leak."""
    r.expect(leak=False)
    leaking(r, lambda step, model, x, loss: loss_of(model, tokens(4)))
    r.take()


@scene()
def leak_retained(r):
    """A graph retained because its output is kept, with an optimizer that steps in between."""
    r.expect(leak=True)
    r.start()
    model = Model(r, layers=2).cuda()
    optimizer = OPT.AdamW(model.parameters(), 1e-4)
    kept = []
    for step in range(12):
        loss = loss_of(model, tokens(4))
        loss.backward(retain_graph=True)
        kept.append(loss)
        optimizer.step()
        optimizer.zero_grad()
        r.step()
    r.moment("at the end", [model], [optimizer])
    r.take()


@scene()
def cache_by_cat(r):
    """Generation with a cache that grows by cat: not a leak, without a bound."""
    r.expect(leak=False, verdict="GrowingCache")
    r.start()
    width = 256 * r.scale
    layers = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(3)).cuda()
    past = [None] * 3
    with torch.no_grad():
        x = torch.randn(4, 1, width, device="cuda")
        for step in range(48):
            for at, layer in enumerate(layers):
                q, k, v = layer(x).chunk(3, -1)
                new = torch.stack([k, v])
                past[at] = new if past[at] is None else torch.cat([past[at], new], 2)
                x = F.scaled_dot_product_attention(q, *past[at])
            r.step()
    r.moment("at the end", [layers], cache=past)
    r.take()


# Out of memory.

def fails(r, program):
    """Runs what must fail, and takes the snapshot as people do: where they catch it."""
    try:
        program()
        torch.cuda.synchronize()
    except torch.cuda.OutOfMemoryError as error:
        r.failed(error)
        r.take()
        return True
    r.expect(not_failed=True)
    return False


@scene()
def oom_forward(r):
    """A batch that is too large for what the process may take."""
    r.expect(fails=True)
    r.start()
    model = Model(r).cuda()
    optimizer = OPT.AdamW(model.parameters(), 1e-4)
    train(r, model, optimizer, 3)
    room(r, 16 * MIB)
    fails(r, lambda: train(r, model, optimizer, 1, batch=lambda step: 64, look=9))


@scene()
def oom_all(r):
    """The same with C++ frames, and an observer that takes the snapshot at the moment of the failure."""
    r.expect(fails=True)
    r.start("all")
    model = Model(r, layers=2).cuda()
    optimizer = OPT.AdamW(model.parameters(), 1e-4)
    train(r, model, optimizer, 2)
    room(r, 16 * MIB)

    def observe(device, asked, total, free):
        if r.snapshot is None:
            r.take()
    torch._C._cuda_attach_out_of_memory_observer(observe)
    fails(r, lambda: train(r, model, optimizer, 1, batch=lambda step: 64, look=9))


@scene()
def oom_goes_on(r):
    """Caught; the batch is halved until it fits, and training goes on."""
    r.expect(fails=True, goes_on=True, leak=False)
    r.start()
    model = Model(r).cuda()
    optimizer = OPT.AdamW(model.parameters(), 1e-4)
    train(r, model, optimizer, 3)
    room(r, 64 * MIB)
    batch = 64
    for step in range(8):
        try:
            loss_of(model, tokens(batch)).backward()
            optimizer.step()
        except torch.cuda.OutOfMemoryError as error:
            r.failed(error)
            batch //= 2
        optimizer.zero_grad()
        torch.cuda.empty_cache()
        r.step()
    r.moment("at the end", [model], [optimizer])


@scene()
def oom_backward(r):
    """The forward pass fits, the gradients do not."""
    r.expect(fails=True)
    r.start()
    model = Model(r).cuda()
    optimizer = OPT.SGD(model.parameters(), 0.01)
    with Saved() as saved:
        x = tokens(16)
        loss = loss_of(model, x)
    torch.cuda.empty_cache()
    r.moment("after forward", [model], [optimizer], inputs=[x], activations=saved.places)
    room(r, 2 * MIB)
    fails(r, loss.backward)


@scene()
def oom_optimizer(r):
    """The first step of an optimizer finds no room for its state."""
    r.expect(fails=True)
    r.start()
    model = Model(r).cuda()
    optimizer = OPT.AdamW(model.parameters(), 1e-4)
    x = tokens(1)
    loss_of(model, x).backward()
    r.moment("after backward", [model], [optimizer], inputs=[x])
    torch.cuda.empty_cache()
    room(r, 4 * MIB)
    fails(r, optimizer.step)


@scene()
def oom_evaluation(r):
    """Training fits; an evaluation with larger batches does not."""
    r.expect(fails=True)
    r.start()
    model = Model(r).cuda()
    optimizer = OPT.AdamW(model.parameters(), 1e-4)
    train(r, model, optimizer, 4)
    room(r, 8 * MIB)

    def evaluate():
        model.eval()
        with torch.no_grad():
            for _ in range(4):
                loss_of(model, tokens(96))
    fails(r, evaluate)


@scene()
def oom_loading(r):
    """A checkpoint comes to the device beside the model that it is for."""
    r.expect(fails=True)
    r.start()
    model = Model(r).cuda()
    optimizer = OPT.AdamW(model.parameters(), 1e-4)
    train(r, model, optimizer, 2)
    path = f"{r.args.out}/{r.name}.checkpoint"
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
    torch.cuda.empty_cache()
    room(r, 8 * MIB)

    def resume():
        saved = torch.load(path, map_location="cuda")
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    fails(r, resume)
    os.remove(path)


def caches(r):
    """Sequences' caches of 8 MiB, two to a segment of 20 MiB; then a request of 32 MiB."""
    r.start()
    limit(r, 218 * MIB)
    held = [torch.empty(8 * MIB, dtype=torch.uint8, device="cuda") for _ in range(20)]
    r.moment("caches", cache=held)
    return fails(r, lambda: held.append(torch.empty(32 * MIB, dtype=torch.uint8, device="cuda")))


@scene()
def fragmented(r):
    r.expect(fails=True, expandable_fits=True)
    caches(r)


@scene(**{CONFIG: "expandable_segments:True"})
def fragmented_expandable(r):
    r.expect(failed=caches(r))


@scene()
def comb(r):
    """Every second of many blocks goes; then one as large as two is asked for."""
    r.expect(fails=True)
    r.start()
    limit(r, 260 * MIB)
    width = 4 * MIB
    held = [torch.empty(width, dtype=torch.uint8, device="cuda") for _ in range(60)]
    del held[::2]
    r.moment("comb", cache=held)
    fails(r, lambda: held.append(torch.empty(6 * width, dtype=torch.uint8, device="cuda")))


@scene()
def oom_huge(r):
    """A request of an absurd size: scores of a long sequence."""
    r.expect(fails=True, shape=[16, 81920, 81920])
    r.start()
    q = torch.randn(16, 81920, 64, device="cuda")
    fails(r, lambda: torch.softmax(q @ q.transpose(1, 2), -1))


@scene(alone=True)
def oom_device(r):
    """The device itself is full, of this process."""
    r.expect(fails=True)
    r.start()
    weights = torch.empty(torch.cuda.mem_get_info()[0] - 700 * MIB, dtype=torch.uint8, device="cuda")
    model = Model(r).cuda()
    optimizer = OPT.AdamW(model.parameters(), 1e-4)

    def much():
        for step in range(6):
            loss_of(model, tokens(8 << step)).backward()
            optimizer.step()
            optimizer.zero_grad()
    r.moment("at first", [model], [optimizer], cache=[weights])
    fails(r, much)


@scene(real=True, alone=True)
def oom_other_process(r):
    """The device is full of another process."""
    r.expect(fails=True, outside=True)
    torch.zeros(1, device="cuda")
    take = torch.cuda.mem_get_info()[0] - 1500 * MIB
    other = subprocess.Popen(
        [sys.executable, "-c", f"import torch, time; x = torch.empty({take}, dtype=torch.uint8, device='cuda'); "
         "print('held', flush=True); time.sleep(60)"], stdout=subprocess.PIPE)
    try:
        other.stdout.readline()
        r.start()
        model = Model(r).cuda()
        optimizer = OPT.AdamW(model.parameters(), 1e-4)

        def much():
            for step in range(7):
                loss_of(model, tokens(8 << step)).backward()
                optimizer.step()
                optimizer.zero_grad()
        fails(r, much)
    finally:
        other.kill()


# Several ranks.

def begin_ranks(r):
    import torch.distributed as dist
    if r.simulated:
        from torch.testing._internal.distributed.fake_pg import FakeStore
        torch.cuda.set_device(r.rank)
        dist.init_process_group("fake", store=FakeStore(), rank=r.rank, world_size=r.ranks)
    else:
        torch.cuda.set_device(r.rank)
        dist.init_process_group("nccl", device_id=torch.device("cuda", r.rank))


def ranks_fail(r, wrap):
    """Rank 1 has batches that are four times as large, and runs out of memory; rank 0 waits for it for ever."""
    begin_ranks(r)
    r.expect(fails=r.rank == 1, leak=False)
    r.start()
    model = wrap(Model(r).cuda(r.rank))
    optimizer = OPT.AdamW(model.parameters(), 1e-4)
    mark = f"{r.args.out}/{r.name}.failed"
    device = f"cuda:{r.rank}"

    def watch():
        while not os.path.exists(mark):
            time.sleep(0.1)
        time.sleep(1)
        r.take()
        r.save()
        os.remove(mark)
        os._exit(0)
    if r.rank == 0:
        threading.Thread(target=watch, daemon=True).start()
    batch = 32 if r.rank == 1 else 8
    for step in range(3):
        loss_of(model, tokens(batch, device=device)).backward()
        optimizer.step()
        optimizer.zero_grad()
        r.step()
    r.moment("after three steps", [model], [optimizer])
    limit(r, torch.cuda.memory_reserved(r.rank) + 16 * MIB, r.rank)
    try:
        for step in range(4):
            loss_of(model, tokens(4 * batch if r.rank == 1 else batch, device=device)).backward()
            optimizer.step()
            optimizer.zero_grad()
            r.step()
    except torch.cuda.OutOfMemoryError as error:
        r.failed(error)
        r.take()
        r.save()
        open(mark, "w").close()
        os._exit(0)
    time.sleep(60)


@scene(ranks=2, alone=True, real=True)
def data_parallel(r):
    def wrap(model):
        return nn.parallel.DistributedDataParallel(model, device_ids=[r.rank])
    ranks_fail(r, wrap)


@scene(ranks=2, alone=True)
def fully_sharded(r):
    def wrap(model):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        mesh = init_device_mesh("cuda", (r.ranks,))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        return fully_shard(model, mesh=mesh)
    ranks_fail(r, wrap)
