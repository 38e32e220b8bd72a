# Attributes that a computed name, a property of a subclass, a hook, another object or the next step reads.
import torch


class Named:
    def fill(self):
        self.big = torch.randn(16 << 20, device="cuda")
        total = self.big.sum()
        return total

    def later(self, name):
        return getattr(self, name).sum()


class Base:
    def fill(self):
        self.table = torch.randn(16 << 20, device="cuda")
        self.small = self.table[:10].clone()


class Derived(Base):
    @property
    def double(self):
        return self.table * 2


class Probe(torch.nn.Module):
    def forward(self, x):
        self.features = x * 2
        out = self.features.mean()
        return out


class Pair:
    def fill(self, other):
        self.mine = torch.randn(16 << 20, device="cuda")
        total = self.mine.sum()
        if other is not None:
            total = total + other.mine.sum()
        return total


class Cache:
    def __init__(self):
        self.keys = None

    def step(self, x):
        self.keys = x if self.keys is None else torch.cat([self.keys, x])
        total = self.keys.sum()
        return total


def peak():
    torch.randn(64 << 20, device="cuda")


named, derived, probe, cache, pairs = Named(), Derived(), Probe(), Cache(), (Pair(), Pair())
probe.register_forward_hook(lambda module, *_: module.features.sum().item())
for step in range(3):
    named.fill()
    derived.fill()
    probe(torch.randn(16 << 20, device="cuda"))
    pairs[0].fill(None)
    pairs[1].fill(pairs[0])
    cache.step(torch.randn(8 << 20, device="cuda"))
    peak()
    named.later("b" + "ig")
    derived.double.sum()
