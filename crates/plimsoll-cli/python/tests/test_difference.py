# The measured difference of outputs with weights in 16 bits, on the CPU.

import re

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn

from plimsoll.techniques import context
from plimsoll.techniques.difference import Difference, compared
from plimsoll.techniques.weights import Bf16Weights, Half


class Host:
    """What `run` offers to techniques."""

    def __init__(self):
        self.said = []

    def note(self, text):
        self.said.append(text)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(50, 16), nn.Linear(16, 50, bias=False)
        self.head.weight = self.table.weight
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, ids, seen):
        self.calls += 1
        seen.append(ids.shape)
        return self.head(self.table(ids))


@pytest.fixture
def host(monkeypatch):
    host = Host()
    monkeypatch.setattr(context, "host", host)
    return host


def served(kind, model, *args):
    # The result of a call, as `roots.py` makes it.
    half = kind(None)
    half.difference = Difference(half.name)
    half.first(model)
    with torch.no_grad():
        return [half.around(model, model, args, {}) for _ in range(2)]


def test_the_first_call_is_compared_with_the_same_call_in_f32(host):
    torch.manual_seed(0)
    model, ids, seen = Tied().eval(), torch.arange(8).view(2, 4), []
    with torch.no_grad():
        exact = model(ids, [])
    state = torch.get_rng_state()
    first, second = served(Bf16Weights, model, ids, seen)
    assert first.dtype == torch.float32 and torch.equal(first, second)
    (said,) = host.said
    number = float(re.search(r"by at most ([0-9.e-]+),", said).group(1))
    assert number == pytest.approx((exact - first).abs().max().item(), rel=0.01) and number > 0
    assert said.startswith("bf16-weights: the outputs of the first batch differ")
    # The comparison changes neither the model's buffers nor the program's random numbers.
    assert seen == [] and model.calls.item() == 3 and torch.equal(torch.get_rng_state(), state)


def test_values_beyond_the_range_of_fp16_are_reported(host):
    model = nn.Linear(4, 4).eval()
    with torch.no_grad():
        model.weight.fill_(1.0)
        model.bias.fill_(60000.0)
    served(Half, model, torch.full((2, 4), 3000.0))
    assert host.said == ["half: 8 values of the first batch's outputs are infinite or NaN, but finite in f32"]


def test_why_nothing_is_measured_is_said(host):
    served(Half, nn.Linear(4, 4).train(), torch.ones(2, 4))
    assert "training mode" in host.said[0]
    assert "no floating-point tensors" in compared({"ids": torch.arange(3)}, {"ids": torch.arange(3)})


def test_nothing_is_measured_where_nothing_is_computed(host):
    host.has_no_values = True
    served(Half, nn.Linear(4, 4).eval(), torch.ones(2, 4))
    assert host.said == []
