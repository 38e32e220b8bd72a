# The offers that train another part of the model, on the CPU.

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn

from plimsoll.techniques import context, observers
from plimsoll.techniques.freeze import Freeze, last_modules
from plimsoll.techniques.lora import Lora


class Refused(Exception):
    """In place of the end of the program."""


class Host:
    def refused(self, name, reason):
        raise Refused(f"{name}: {reason}")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        return x + self.down(self.up(x).relu())


class Model(nn.Module):
    def __init__(self, tied=False):
        super().__init__()
        self.table = nn.Embedding(20, 8)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 20, bias=False)
        if tied:
            self.head.weight = self.table.weight

    def forward(self, ids):
        x = self.table(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


@pytest.fixture(autouse=True)
def host(monkeypatch):
    monkeypatch.setattr(context, "host", Host())


def stepped(model, technique):
    # Applies a technique at the first call, and makes two steps. Returns the names of the parameters that changed.
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    observers.optimizers.add(optimizer)
    before = {name: it.detach().clone() for name, it in model.named_parameters()}
    technique.first(model)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.arange(6).view(2, 3)).square().mean().backward()
        optimizer.step()
    observers.optimizers.discard(optimizer)
    states = len(optimizer.state)
    changed = {name for name, it in model.named_parameters() if name in before and not torch.equal(it, before[name])}
    return changed, states


def test_freeze_trains_the_last_block_and_what_follows_it():
    model, freeze = Model(), Freeze(None)
    changed, states = stepped(model, freeze)
    own = {"blocks.2.up.weight", "blocks.2.up.bias", "blocks.2.down.weight", "blocks.2.down.bias"}
    assert changed == own | {"norm.weight", "norm.bias", "head.weight"} and states == len(changed)
    report = freeze.report()
    assert "all but blocks.2, norm, head" in report["detail"]
    # The printed lines have the same effect.
    again = Model()
    exec("\n".join(report["lines"]), dict(model=again))
    assert {name for name, it in again.named_parameters() if it.requires_grad} == changed


def test_freeze_knows_a_tied_head_a_model_without_blocks_and_one_that_cannot_be_split():
    assert [path for path, _ in last_modules(Model(tied=True))] == ["blocks.2", "norm"]
    assert [path for path, _ in last_modules(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2)))] == ["2"]
    with pytest.raises(Refused, match="freeze: the model has no last block"):
        Freeze(None).first(nn.Linear(2, 2))
    assert not Freeze(None).report()["applied"]


def test_lora_trains_only_adapters_and_begins_with_the_models_own_outputs():
    torch.manual_seed(0)
    model, ids = Model(), torch.arange(6).view(2, 3)
    exact = model(ids)
    lora = Lora(4)
    changed, states = stepped(model, lora)
    assert changed == set() and states == 2 * 6  # two matrices beside each linear layer of the blocks
    assert not torch.allclose(model(ids), exact)
    assert "rank 4 on 6 linear layers" in lora.report()["detail"]
    assert any("r=4, lora_alpha=8, target_modules=['down', 'up']" in it for it in lora.report()["lines"])
    model = Model()
    exact = model(ids)
    Lora(None).first(model)
    assert torch.equal(model(ids), exact)
    assert model.blocks[0].up.lora_down.shape == (8, 8) and model.blocks[0].up.lora_up.shape == (16, 8)


def test_lora_needs_a_linear_layer():
    with pytest.raises(Refused, match="lora: the model has no linear layer"):
        Lora(None).first(nn.Conv2d(3, 3, 3))
