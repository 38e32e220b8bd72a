# The technique offload-optimizer does not change the bits of losses, parameters and states. It patches classes of
# PyTorch, so it is tested in a separate process.

import subprocess
import sys

import pytest

pytest.importorskip("torch")

PROGRAM = """
import contextlib, copy, torch
from plimsoll import techniques
from plimsoll.techniques import context, offload_optimizer, step_in_backward

class Host:
    unread = staticmethod(contextlib.nullcontext)

def made(name, **options):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(33, 70), torch.nn.GELU(), torch.nn.Linear(70, 5), torch.nn.BatchNorm1d(5))
    groups = [dict(params=list(model[0].parameters()), lr=0.003), dict(params=[*model[2].parameters(), *model[3].parameters()])]
    if name == "Muon":
        groups = [it for it in model.parameters() if it.ndim == 2]
    return model, getattr(torch.optim, name)(groups, lr=0.01, **options)

def trained(model, optimizer, loads=False, closure=False, scheduler=None):
    generator, losses = torch.Generator().manual_seed(1), []
    for step in range(6):
        x, y = torch.randn(16, 33, generator=generator), torch.randint(0, 5, (16,), generator=generator)
        def loss_of():
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(x), y)
            loss.backward()
            return loss
        loss = None if closure else loss_of()
        losses.append((optimizer.step(loss_of) if closure else (optimizer.step(), loss)[1]).detach())
        if scheduler is not None:
            scheduler.step()
        if loads and step == 2:
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    states = [it for _, state in sorted(optimizer.state_dict()["state"].items()) for it in state.values() if torch.is_tensor(it)]
    return [it.detach().clone() for it in [*losses, *model.parameters(), *states]]

def same(one, other):
    return len(one) == len(other) and all(map(torch.equal, one, other))

CASES = [("Adam", {}), ("Adam", dict(amsgrad=True, weight_decay=0.1)), ("AdamW", dict(foreach=True)), ("AdamW", dict(foreach=False)),
    ("AdamW", dict(fused=True)), ("SGD", dict(momentum=0.9, nesterov=True)), ("SGD", {}), ("RMSprop", dict(momentum=0.5, centered=True)),
    *[(it, {}) for it in "Adagrad NAdam RAdam Adamax Adadelta Adafactor ASGD Rprop Muon".split() if hasattr(torch.optim, it)]]

def runs():
    return [trained(*made(name, **options), nth % 2 == 0, nth % 3 == 0) for nth, (name, options) in enumerate(CASES)]

def scheduled(model, optimizer, scheduler=None):
    return trained(model, optimizer, scheduler=scheduler or torch.optim.lr_scheduler.StepLR(optimizer, 2))

techniques.install(torch)
context.host = Host()
plain, plain_scheduled = runs(), scheduled(*made("AdamW"))
model, optimizer = made("AdamW")
early = torch.optim.lr_scheduler.StepLR(optimizer, 2)
technique = offload_optimizer.OffloadOptimizer(None, piece_bytes=1000)
context.active.append(technique)
technique.begin()
for (name, options), one, other in zip(CASES, plain, runs()):
    assert same(one, other), (name, options)
moved = technique.states
assert same(plain_scheduled, scheduled(model, optimizer, early)) and technique.states > moved
assert technique.report()["applied"] and technique.report()["bytes"] > 0
inside = step_in_backward.StepInBackward(None)
context.active.append(inside)
inside.begin()
model, optimizer = made("AdamW", foreach=True)
inside.first(model)
assert same(plain[2], trained(model, optimizer, loads=True)) and inside.count
"""


def test_the_bits_are_those_without_it():
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
