# Code after the training loop (`after.py`), and steps whose requests differ in size (`varying.py`).

import sys

import pytest

from plimsoll._predict import settings
from plimsoll._predict.varying import Varying, kinds

MIB = 1 << 20
PROGRAM = """
import sys, torch
def one():
    step()
    return torch.zeros(4)
def train(model, steps):
    for epoch in range(2):
        for _ in range(steps):
            one()
        print("an epoch")
    print("trained")
    model(torch.zeros(1, 4))
def evaluate(model):
    print(model)
model = torch.nn.Linear(4, 4)
train(model, 3)
evaluate(model)
torch.save(model.state_dict(), "model.pt")
train(model, 5)
class Unused:
    table = torch.zeros(4)
last = torch.zeros(4)
"""


def test_statements_behind_the_training_that_may_need_memory_are_found(tmp_path):
    torch = pytest.importorskip("torch")
    from plimsoll._predict.after import after
    from plimsoll._predict.heavy import Heavy

    found = []

    def step():
        if not found:
            found.extend(after(sys._getframe(1), Heavy(torch)))

    file = tmp_path / "train.py"
    file.write_text(PROGRAM.replace('"model.pt"', repr(str(tmp_path / "model.pt"))))
    exec(compile(file.read_text(), str(file), "exec"), {"step": step})
    # The inner function first. Printing, code inside the loop, saving and the definition of a class are not listed.
    assert [it["line"] for it in found] == [12, 19, 22]
    assert found[1]["text"] == "train(model, 5)"


def test_sizes_that_are_alike_are_one_kind():
    assert kinds([]) == 0
    assert kinds([100, 101, 100]) == 1
    assert kinds([100, 200, 101, 201]) == 2


def steps(varying, sizes, reserved):
    total = 0
    for size, level in zip(sizes, reserved):
        total += size * MIB
        varying.note({0: total}, {(0, "reserved"): (level * MIB, 1)})
    return varying


def test_steps_of_equal_or_alternating_size_do_not_wait_for_memory_to_settle(monkeypatch):
    monkeypatch.setattr(settings, "FURTHER", True)
    grows = range(100, 1100, 10)
    assert not steps(Varying(), [100] * 20, grows).waits(None)
    alternating = steps(Varying(), [100, 300] * 10, grows)
    assert not alternating.waits(None) and not alternating.rows(None)


def test_steps_of_varying_size_wait_until_memory_has_settled_or_the_time_is_up(monkeypatch):
    monkeypatch.setattr(settings, "FURTHER", True)
    sizes = [100 + 7 * (37 * it % 100) for it in range(100)]
    grows = steps(Varying(), sizes, range(100, 1100, 10))
    assert grows.waits(None)
    assert not grows.waits(100)  # this was the last step
    settled = steps(Varying(), sizes, [min(it, 40) for it in range(100)])
    assert not settled.waits(None) and settled.rows(None) == [dict(device=0, bytes=0, steps=50, left=None)]
    # If each step requests more, the peak may rise later.
    rising = [100 + 7 * it for it in range(100)]
    assert steps(Varying(), rising, [40] * 100).waits(None)
    grows.began = -1e9, -1e9
    assert not grows.waits(None)
    assert grows.rows(900) == [dict(device=0, bytes=500 * MIB, steps=50, left=900)]
