"""Finds the memory that an outer loop frees in each of its iterations (rounds): memory that grows in the inner loop
grows only until the end of a round. Each round frees the old values of variables that its body assigns or clears, and
the local variables of functions that it calls.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any, NamedTuple

from .._holding.holder import Holder
from .conditions import COUNTERS, Condition
from .source import last_name

CLEARS = {"clear", "reset", "reset_states"}
FREES = CLEARS | {"pop", "popleft", "popitem", "remove"}


class Round(NamedTuple):
    """One round of an outer loop."""

    steps: int  # the number of training steps in a round
    names: frozenset[str]  # variables and attributes that the round assigns or clears
    functions: frozenset[str]  # functions that the round calls and that contain the inner loop

    def drops(self, holder: Holder) -> bool:
        """Whether a holder's tensors live for at most one round."""
        name = name_of(holder)
        if name is None:
            return False
        function = re.search(r"a local of `([^`]+)`", holder.text)
        if function is not None and function[1].rsplit(".", 1)[-1] in self.functions:
            return True
        return any(name == it or name.startswith(f"{it}.") for it in self.names)


def name_of(holder: Holder) -> str | None:
    """The expression that leads to a holder."""
    named = re.search(r"reached as `([^`]+)`", holder.text) or re.search(r"`([^`]+)`", holder.text)
    return named and named[1]


def container_of(holder: Holder) -> str | None:
    """The expression that leads to the outermost container of a holder: `kept` for a tensor in `kept[…].state`."""
    name = name_of(holder)
    return name and name.split("[")[0]


def bounded(loops: Iterable[Any], holder: Holder) -> bool:
    """Whether a statement in these loops may, under some condition, free what a holder keeps, or adds only keys that
    the holder does not have yet. Then it is unknown how long it grows.
    """
    name = container_of(holder)
    return name is not None and any(is_bounding(it, name) for loop in loops for it in ast.walk(loop))


def is_bounding(node: Any, name: str) -> bool:
    """Whether a statement frees a part of what `name` keeps, or an expression tests that a key is not in it."""
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.NotIn):
        return ast.unparse(node.comparators[0]) == name
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in FREES:
        freed = ast.unparse(node.func.value)
        return freed == name or node.func.attr in CLEARS and name.startswith(f"{freed}.")
    if isinstance(node, ast.Delete):
        return any(isinstance(it, ast.Subscript) and ast.unparse(it.value) == name for it in node.targets)
    if isinstance(node, ast.Assign) and any(ast.unparse(it) == name for it in node.targets):
        slices = (it.lower for it in ast.walk(node.value) if isinstance(it, ast.Slice))
        return any(isinstance(it, ast.UnaryOp) for it in slices) or name in dropped(node)  # the last ones: `[-100:]`
    return False


def round_of(loop: Any, frame: FrameType, steps: int, functions: set[str]) -> Round:
    """Describes one round of this loop, which is running in this frame."""
    stored = (it for it in ast.walk(loop) if isinstance(getattr(it, "ctx", None), ast.Store))
    changed = {it.id if isinstance(it, ast.Name) else last_name(it) for it in stored}
    found = statements(loop.body, lambda test: steady(test, frame, changed))
    others = (it for it in found if not it.lineno <= frame.f_lineno <= (it.end_lineno or it.lineno))
    return Round(steps, frozenset(name for it in others for name in dropped(it)), frozenset(functions))


def statements(body: list[Any], result: Callable[[ast.expr], bool | None]) -> Iterator[Any]:
    """The statements that each round runs, except those of inner loops. `result` is that of a test in all rounds, or
    None if it is unknown.
    """
    for it in body:
        yield it
        if isinstance(it, ast.With):
            yield from statements(it.body, result)
        elif isinstance(it, ast.If):
            holds = result(it.test)
            yield from statements(it.body if holds else it.orelse if holds is False else [], result)


def steady(test: ast.expr, frame: FrameType, changed: set[str]) -> bool | None:
    """The result of a test that is the same in all rounds; None if it is unknown or may change. `changed` are the names
    and attributes that the loop assigns.
    """
    condition = Condition(test, changed, set())
    condition.look(frame, 0)
    values = condition.last[1] if condition.last is not None else {}
    names = {last_name(it) for it in ast.walk(test) if isinstance(it, (ast.Name, ast.Attribute))}
    # A method may count `self.epoch`. A value that is not known is None.
    may_change = (
        names & (changed | COUNTERS) or condition.can_change() or any(isinstance(it, ast.Mod) for it in ast.walk(test))
    )
    return None if may_change or None in values.values() else condition.holds(values)


def dropped(statement: Any) -> Iterator[str]:
    """The names that a statement assigns or clears."""
    if isinstance(statement, ast.Assign):
        read = {ast.unparse(it) for it in ast.walk(statement.value) if isinstance(it, (ast.Name, ast.Attribute))}
        for target in statement.targets:
            parts = target.elts if isinstance(target, ast.Tuple) else [target]
            yield from (ast.unparse(it) for it in parts if ast.unparse(it) not in read)
    elif isinstance(statement, ast.Delete):
        yield from (ast.unparse(it) for it in statement.targets)
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        function = statement.value.func
        if isinstance(function, ast.Attribute) and function.attr in CLEARS:
            yield ast.unparse(function.value)
