# Sums of losses that a backward pass uses: directly, through a function, an attribute, a library, or late.
import functools
import operator

import torch

net = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 10)).cuda()
opt = torch.optim.SGD(net.parameters(), lr=0.1)


def loss_of():
    return net(torch.randn(1024, 1024, device="cuda")).square().mean()


def losses_of(count):
    losses = []
    for _ in range(count):
        losses.append(loss_of())
    return losses


def summed(count):
    found = {"loss": 0.0}
    for _ in range(count):
        found["loss"] += loss_of()
    return found


class Trainer:
    def __init__(self):
        self.total = 0

    def add(self, loss):
        self.total = self.total + loss

    def finish(self):
        self.total.backward()
        self.total = 0


trainer, late = Trainer(), 0
for step in range(3):
    opt.zero_grad()
    total = 0
    for _ in range(4):
        total += loss_of()
    total.backward()
    torch.stack(losses_of(4)).mean().backward()
    for value in summed(4).values():
        value.backward()
    for _ in range(4):
        trainer.add(loss_of())
    trainer.finish()
    parts = []
    for _ in range(4):
        parts.append(loss_of())
    functools.reduce(operator.add, parts).backward()
    for _ in range(2):
        late += loss_of()
    del total, parts
    opt.zero_grad()
if step > 100:
    late.backward()
