# Code of the training loop that first runs later: when its condition becomes true, and whether it may matter. Also
# rare growth, and larger batches.

import ast
import functools
import random
import sys
import types

import pytest

from plimsoll._predict import rounds
from plimsoll._predict.batches import Batches
from plimsoll._predict.conditions import Condition
from plimsoll._predict.heavy import Heavy, Names
from plimsoll._predict.late import Late, computes_with
from plimsoll._predict.levels import is_rising, quickening, since, spread

MIB = 1 << 20


def seen(test, *rounds, counted=("step",)):
    # The condition, evaluated at the end of steps with these values.
    condition = Condition(ast.parse(test, mode="eval").body, set(counted), set())
    for step, values in enumerate(rounds, 1):
        exec("look(sys._getframe(), at)", dict(values, sys=sys, look=condition.look, at=step))
    return condition


def courses_of(**courses):
    return [{name: of(nth) for name, of in courses.items()} for nth in range(3)]


@pytest.mark.parametrize(
    "test, wanted, total, known",
    [
        ("n % 500 == 0", True, None, (True, 501)),
        ("n and n % 500 == 499", True, 2000, (True, 500)),
        ("n % 500 == 0", True, 400, (True, None)),
        ("n > 10 ** n", True, None, (False, None)),
        ("n < 40", False, None, (True, 41)),
        ("n == 2000000", True, None, (True, 2000001)),
        ("n == 9223372036854775807", True, None, (True, None)),
        ("len(kept) < 64", False, None, (True, 65)),
        ("how == 'keeps' and n > 10", True, None, (True, None)),
        ("unknown(n)", True, None, (False, None)),
    ],
)
def test_the_step_at_which_a_test_will_be_true_is_known(test, wanted, total, known):
    values = courses_of(n=lambda nth: nth, kept=lambda nth: [0] * nth, how=lambda nth: "trains")
    assert seen(test, *values).next(wanted, total) == known


def test_a_test_of_the_configuration_cannot_change():
    constant = courses_of(deep=lambda nth: False, epochs=lambda nth: 3, targets=lambda nth: None, epoch=lambda nth: 0)
    for test in ("deep", "epochs > 10", "targets is None"):
        assert not seen(test, *constant).can_change(), test
    assert seen("epoch > 0", *constant, counted=("epoch",)).can_change()
    assert seen("random.random() < 0.1", *constant).can_change()


def test_after_the_steps_lines_are_traced_while_an_arm_that_may_matter_has_not_run():
    def stops(*arms):
        late, stopped = Late(PyTorch), []
        late.lines = types.SimpleNamespace(stop=lambda: stopped.append(True))
        late.arms = [types.SimpleNamespace(is_heavy=is_heavy, ran=lambda lines, n=n: n) for is_heavy, n in arms]
        late.end()
        return bool(stopped)

    assert stops() and stops((False, 0), (None, 3), (True, 1))
    assert not stops((True, 1), (True, 0))


def test_growth_in_one_of_several_steps_has_a_period():
    assert spread([MIB * (nth // 50) for nth in range(200)]) == (MIB, 50, 3)
    assert spread([MIB * (nth // 50) + nth % 3 * 1000 for nth in range(200)]) == (MIB, 50, 3)
    assert spread([MIB * min(nth // 10, 5) for nth in range(200)]) is None
    assert spread([MIB * (nth // 10 % 4) for nth in range(41)]) is None
    # Growth that began late is measured from where it began.
    assert since([MIB] * 100 + [MIB * nth for nth in range(2, 12)]) >= 98


def test_growth_is_seen_where_sizes_vary_and_where_it_quickens():
    sizes = [random.Random(7).randrange(1, 16) * MIB for _ in range(200)]
    kept = [sum(sizes[: nth + 1]) + sizes[nth] for nth in range(200)]
    assert all(is_rising(kept[:nth]) for nth in range(20, 200))
    assert not any(is_rising([64 * MIB + it for it in sizes[:nth]]) for nth in range(20, 200))
    # The n-th rise is 2 MiB plus n times 16 KiB.
    levels = [nth * 2 * MIB + nth * nth * (8 << 10) for nth in range(200)]
    assert abs(quickening(levels) - (16 << 10)) < 100
    assert quickening([nth * 2 * MIB for nth in range(200)]) == quickening(kept) == 0


ROUNDS = """
for epoch in range(3):
    meter.reset()
    seen, total = [], 0
    for step in range(5):
        work()
        total = total + 1
        log.append(1)
    best = best + 1
    del last
"""


def holder(text):
    return types.SimpleNamespace(text=text)


def test_what_an_outer_loop_sets_anew_or_clears_ends_with_its_round():
    outer = ast.parse(ROUNDS).body[0]
    found = rounds.round_of(outer, types.SimpleNamespace(f_lineno=6), 5, {"fit"})
    kept = [
        "`seen` (list of 3 tensors), a global of a.py",
        "`self.v` of `Meter`, reached as `meter.v`, a global of a.py",
    ]
    kept += ["`last`, a global of a.py", "`x` (list of 3 tensors), a local of `Trainer.fit` (a.py:1)"]
    assert all(found.drops(holder(it)) for it in kept)
    others = [
        "`log` (list of 3 tensors), a global of a.py",
        "`best`, a global of a.py",
        "`x`, a local of `main` (a.py:1)",
    ]
    assert not any(found.drops(holder(it)) for it in others)


class Tensor:
    def __init__(self, elements):
        self.elements = elements

    def numel(self):
        return self.elements


class Module:
    pass


class PyTorch:
    Tensor = Tensor
    nn = types.SimpleNamespace(Module=Module)
    optim = types.SimpleNamespace(Optimizer=Module)
    utils = types.SimpleNamespace(data=types.SimpleNamespace(DataLoader=Module))


net = Module()


def evaluated():
    return net(1)


def decorated(function):
    # As torch.no_grad() does.
    code = compile("def wrapper(): return function()", "/lib/site-packages/torch/utils.py", "exec")
    names = {"function": function}
    exec(code, names)
    return functools.update_wrapper(names["wrapper"], function)


@pytest.mark.parametrize(
    "text, matters",
    [
        ("length *= 2", True),
        ("length += 64", True),
        ("length = 512", True),
        ("length = 64", False),
        ("length += 1", False),
        ("self.length = self.length * 2", True),
        ("length -= 1", False),
        ("print(length)", False),
        ("evaluated()", True),
        ("decorated()", True),
    ],
)
def test_what_statements_may_matter_for_memory(text, matters):
    variables = dict(length=128, self=types.SimpleNamespace(length=128), evaluated=evaluated)
    names = Names(variables | {"decorated": decorated(evaluated)}, {}, decorated.__code__)
    assert Heavy(PyTorch).are(ast.parse(text).body, names) == matters


def test_the_largest_of_the_batches_that_follow_is_found():
    def batches(before, after):
        made = iter([{"x": [Tensor(it)]} for it in after])
        found = Batches(PyTorch, made, [0] * (len(before) + len(after)))
        for elements in before:
            found.saw([Tensor(elements)])
        return found, found.larger(next)

    found, larger = batches([8, 8, 8], [8, 32, 64, 4])
    assert larger["x"][0].elements == 64 and found.is_complete and found.row() is None
    assert found.larger(next) is None
    assert batches([8, 8, 8], [8, 8, 2])[1] is None


def test_sizes_may_depend_on_the_number_of_the_step():
    def computes(body):
        return computes_with(ast.parse(f"for step in range(9):\n    {body}"), {"step"})

    assert computes("train(64 + 8 * (step // 4))")
    assert computes("train(heads[step])")
    assert not computes("if step % 2 == 0: train()")
    assert not computes("print(f'{100 * step} rows', '%d' % step)")
    assert not computes("log(step)")
