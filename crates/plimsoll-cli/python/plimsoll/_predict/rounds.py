"""Finds the memory that an outer loop frees in each of its iterations (rounds): memory that grows in the inner loop
grows only until the end of a round. Each round frees the old values of variables that its body assigns or clears, and
the local variables of functions that it calls.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from types import FrameType
from typing import Any, NamedTuple

from .._holding.holder import Holder

CLEARS = {"clear", "reset", "reset_states"}


class Round(NamedTuple):
    """One round of an outer loop."""

    steps: int  # the number of training steps in a round
    names: frozenset[str]  # variables and attributes that the round assigns or clears
    functions: frozenset[str]  # functions that the round calls and that contain the inner loop

    def drops(self, holder: Holder) -> bool:
        """Whether a holder's tensors live for at most one round."""
        named = re.search(r"reached as `([^`]+)`", holder.text) or re.search(r"`([^`]+)`", holder.text)
        if named is None:
            return False
        function = re.search(r"a local of `([^`]+)`", holder.text)
        if function is not None and function[1].rsplit(".", 1)[-1] in self.functions:
            return True
        return any(named[1] == name or named[1].startswith(f"{name}.") for name in self.names)


def round_of(loop: Any, frame: FrameType, steps: int, functions: set[str]) -> Round:
    """Describes one round of this loop, which is running in this frame."""
    others = (it for it in statements(loop.body) if not it.lineno <= frame.f_lineno <= (it.end_lineno or it.lineno))
    return Round(steps, frozenset(name for it in others for name in dropped(it)), frozenset(functions))


def statements(body: list[Any]) -> Iterator[Any]:
    """The statements that each round runs, except those of inner loops."""
    for it in body:
        yield it
        if isinstance(it, ast.With):
            yield from statements(it.body)


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
