# Changes to a program's batch size, for plan's search for the largest one.

import linecache
import sys
import types

import pytest

torch = pytest.importorskip("torch")

from plimsoll.techniques import batch_source
from plimsoll.techniques.batch import Batch


def changed(rows, of, way, args, kwargs=None):
    # The inputs that the model gets.
    batch, got = Batch(dict(rows=rows, of=of, way=way)), []
    batch.around(None, lambda *args, **kwargs: got.append((args, kwargs)), args, kwargs or {})
    return got[0], batch.report()


def test_the_arguments_of_a_model_get_the_wanted_rows_and_others_stay():
    ids, mask, table = torch.arange(8).view(4, 2), torch.ones(4, 2), torch.ones(3, 2)
    (args, kwargs), report = changed(10, 4, "inputs", (ids, table), dict(mask=mask, scale=2.0))
    assert args[0].tolist() == (ids.tolist() * 3)[:10] and args[1] is table
    assert kwargs["mask"].shape == (10, 2) and kwargs["scale"] == 2.0
    assert report["applied"] and report["batch"] == 10
    (args, _), report = changed(3, 4, "inputs", (ids,))
    assert args[0].tolist() == ids[:3].tolist() and report["batch"] == 3
    parameter = torch.nn.Parameter(torch.ones(4))
    assert changed(10, 4, "inputs", (parameter,))[0][0][0] is parameter
    assert changed(10, 4, "tensors", (ids,))[0][0][0] is ids


def test_a_run_that_looks_changes_nothing_and_reports_the_batch_or_why_there_is_none():
    ids = torch.ones(4, 2)
    (args, _), report = changed(0, 0, "tensors", (ids,))
    assert args[0] is ids and report["batch"] == 4
    assert "without a tensor" in changed(0, 0, "tensors", (3,))[1]["detail"]
    assert "no module was called" in Batch(dict(rows=0, of=0, way="tensors")).report()["detail"]


def test_a_loss_gets_a_target_with_the_rows_of_its_input():
    seen = []
    batch = Batch(dict(rows=6, of=4, way="inputs"))
    loss = batch.following(lambda input, target, *rest, **options: seen.append((input.size(0), target.size(0))))
    loss(torch.ones(6, 3), torch.zeros(4))
    loss(torch.ones(18, 3), torch.zeros(12))
    loss(torch.ones(4, 3), torch.zeros(4))
    loss(torch.ones(5, 3), torch.zeros(4))  # not by the same factor: the program's own error
    assert seen == [(6, 6), (18, 18), (4, 4), (5, 4)]


def test_tensors_that_the_program_makes_outside_constructors_are_changed():
    program = types.ModuleType("program")
    batch = Batch(dict(rows=6, of=4, way="tensors"))
    program.randn = batch.made(torch.randn)
    code = """
class Model:
    def __init__(self):
        self.weight = randn(4, 2)
model, data, other, leaf = Model(), randn(4, 2), randn(5, 2), randn(4, requires_grad=True)
"""
    exec(compile(code, "train.py", "exec"), vars(program))
    assert program.model.weight.shape == (4, 2) and program.other.shape == (5, 2)
    assert program.data.shape == (6, 2) and program.leaf.shape == (4,)
    # A library's own tensors stay.
    library = dict(randn=program.randn)
    exec(compile("data = randn(4, 2)", f"{sys.prefix}/lib/python3/site-packages/it.py", "exec"), library)
    assert library["data"].shape == (4, 2)


BATCH = 4
sizes = [4]


def maker(*size):
    return batch_source.numbers(sys._getframe(1), 4)


def get(other, rows=4):
    return maker((rows, 8))


def test_a_batch_size_is_found_through_names_arguments_and_defaults_or_it_says_what_it_is():
    found = [maker(4, 8), maker(BATCH), get(1), get(1, 4), get(1, rows=BATCH)]
    for it in found:
        assert not isinstance(it, str), it
        assert linecache.getline(it.file, it.line).encode()[it.begin : it.end] == b"4"
    assert found[1] == found[4] and len(set(found)) == 4
    count = 4
    count += 0
    unknown = [maker(count), maker(sizes[0]), maker(7), maker()]
    for text, why in zip(unknown, ("more than once", "`sizes[0]`", "not the number 7", "no size")):
        assert why in text
