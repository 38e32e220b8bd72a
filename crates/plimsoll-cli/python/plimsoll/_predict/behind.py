"""Finds code that an outer loop runs after the inner loop with the training steps, often the evaluation at the end of
an epoch; and code that it runs before the inner loop in the next round, if this code may keep something.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from types import FrameType
from typing import Any

from .lengths import around, counter, length_of
from .names import HOLDS
from .source import last_name

KEEPS = HOLDS | {"add", "push", "store", "remember"}


class Behind:
    """Takes the place of a `Condition` (conditions.py) for statements after the inner loop: it is true once the inner
    loop has ended.
    """

    first = None

    def __init__(self, loop: Any) -> None:
        self.test = loop  # the outer loop
        self.last: tuple[int, dict[str, Any]] | None = None
        self.left: int | None = None  # steps until the training loop ends; None: unknown

    def look(self, frame: FrameType, step: int) -> None:
        """Records the step."""
        self.last = step, {}

    def count(self, stack: list[FrameType]) -> None:
        """Records how many iterations the inner loop has left. Does not keep the frame, because a frame would keep
        tensors alive.
        """
        loop, own = next(((loop, own) for own in stack for loop in around(own)), (None, None))
        self.left = None
        if isinstance(loop, ast.For) and own is not None:
            length, done = length_of(loop.iter, own), counter(loop, own)
            self.left = None if length is None or done is None else max(length - done, 0)

    def holds(self, values: dict[str, Any]) -> bool | None:
        """Whether the loop has ended. At the end of a step inside the loop, it has not."""
        return False

    def next(self, wanted: bool, total: int | None) -> tuple[bool, int | None]:
        """Returns whether it is known in which step the statements will run, and the number of that step."""
        if self.last is None or self.left is None:
            return False, None
        return True, self.last[0] + self.left

    def can_change(self) -> bool:
        """Always true, because each loop ends."""
        return True

    def text(self) -> str:
        """Says when the statements run."""
        return f"in each round of the loop at line {self.test.lineno}"


def behind(loops: list[tuple[FrameType, Any]]) -> Iterator[tuple[FrameType, Any, list[Any]]]:
    """For each of these loops except the first, which is the training loop: the loop's frame, the loop, and the
    statements of its body that follow the statement that is running. Then, in the same form, the statements ahead of it,
    if they may keep something: each round adds to it, as when an agent collects experience before it trains.
    """
    for frame, loop in loops[1:]:
        line = frame.f_lineno
        rest = [it for it in loop.body if it.lineno > line]
        if rest:
            yield frame, loop, rest
        ahead = [it for it in loop.body if (it.end_lineno or it.lineno) < line]
        if any(isinstance(it, ast.Call) and last_name(it.func) in KEEPS for one in ahead for it in ast.walk(one)):
            yield frame, loop, ahead
