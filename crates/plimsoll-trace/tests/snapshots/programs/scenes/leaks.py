"""Leaks, and programs that only seem to leak."""

import torch
import torch.nn as nn
import torch.nn.functional as F

from .base import Model, adamw, loss_of, scene, tokens, train


def leaking(r, keep, steps=12, loss_of=loss_of, model=None, stacks="python"):
    """A training loop that calls `keep` with the step, the model, the batch and the loss."""
    r.start(stacks)
    model = model or Model(r, layers=2)
    model = model.cuda()
    train(r, model, adamw(model), steps, loss_of=loss_of, look=-1,
          after=lambda step, x, loss: keep(step, model, x, loss))


@scene()
def leak_running_sum(r):
    """An evaluation that adds up losses together with their graphs."""
    r.expect(leak=True)
    total = []

    def keep(step, model, x, loss):
        total[:] = [(total[0] if total else 0) + loss_of(model, tokens(4))]
    leaking(r, keep)
    r.take()


def summing(r, stacks):
    """A training that adds up losses. Their graphs are freed, and each sum replaces the one before."""
    total = [0]

    def keep(step, model, x, loss):
        total[0] = total[0] + loss
    leaking(r, keep, steps=8, stacks=stacks)
    r.take()


@scene()
def sum_of_losses(r):
    r.expect(leak=False, pattern="RunningSum")
    summing(r, "all")


@scene()
def sum_of_losses_python(r):
    """Like sum_of_losses, recorded without C++ frames."""
    r.expect(leak=False, pattern="CarriedNumber")
    summing(r, "python")


@scene()
def sum_on_a_busy_line(r):
    """Like sum_of_losses, but the line also makes other blocks, one of which outlives the step."""
    r.expect(leak=False, pattern="RunningSum")
    r.start("all")
    model = Model(r, layers=1).cuda()
    optimizer = adamw(model)
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
    """A closure keeps the output of a layer."""
    r.expect(leak=True)
    seen = {}
    model = Model(r, layers=2)
    model.blocks[1].register_forward_hook(lambda module, given, out: seen.update({len(seen): out}))
    leaking(r, lambda *_: None, model=model)
    r.take()


@scene()
def leak_validation(r):
    """A validation without no_grad that keeps the losses, so their graphs stay."""
    r.expect(leak=True, pattern="GraphKept")
    losses = []
    leaking(r, lambda step, model, x, loss: losses.append(loss_of(model, tokens(4))))
    r.take()


@scene()
def validation_forgotten(r):
    """A validation without no_grad that does not keep the losses: no leak."""
    r.expect(leak=False)
    leaking(r, lambda step, model, x, loss: loss_of(model, tokens(4)))
    r.take()


@scene()
def leak_retained(r):
    """A graph that is retained because its output is kept, with optimizer steps in between."""
    r.expect(leak=True)
    r.start()
    model = Model(r, layers=2).cuda()
    optimizer = adamw(model)
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
    """Generation with a cache that grows by cat without a bound: not a leak."""
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
