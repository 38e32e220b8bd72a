# Code of the training loop that first runs later: when a condition becomes true, what may matter, rare growth, larger batches.

import ast
import sys
import types

import pytest

from plimsoll._predict import growth
from plimsoll._predict.batches import Batches
from plimsoll._predict.conditions import Condition
from plimsoll._predict.late import Late

MIB = 1 << 20


def seen(test, *rounds, counted=("step",)):
    # The condition, evaluated at the end of steps with these values.
    condition = Condition(ast.parse(test, mode="eval").body, set(counted), set())
    for step, values in enumerate(rounds, 1):
        exec("look(sys._getframe(), at)", dict(values, sys=sys, look=condition.look, at=step))
    return condition


def rounds(**courses):
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
    values = rounds(n=lambda nth: nth, kept=lambda nth: [0] * nth, how=lambda nth: "trains")
    assert seen(test, *values).next(wanted, total) == known


def test_a_test_of_the_configuration_cannot_change():
    constant = rounds(deep=lambda nth: False, epochs=lambda nth: 3, targets=lambda nth: None, epoch=lambda nth: 0)
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
    assert growth.spread([MIB * (nth // 50) for nth in range(200)]) == (MIB, 50, 3)
    assert growth.spread([MIB * (nth // 50) + nth % 3 * 1000 for nth in range(200)]) == (MIB, 50, 3)
    assert growth.spread([MIB * min(nth // 10, 5) for nth in range(200)]) is None
    assert growth.spread([MIB * (nth // 10 % 4) for nth in range(41)]) is None
    # Growth that began late is measured from its beginning.
    assert growth.since([MIB] * 100 + [MIB * nth for nth in range(2, 12)]) >= 98


class Tensor:
    def __init__(self, elements):
        self.elements = elements

    def numel(self):
        return self.elements


class PyTorch:
    Tensor = Tensor


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
