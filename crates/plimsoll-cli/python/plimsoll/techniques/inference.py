"""The common part of the techniques for inference programs. They act on the outermost calls to modules in any mode, and
refuse a program that trains, or reads gradients for another purpose.
"""

from __future__ import annotations

from typing import Any

from . import context, observers


class Inference:
    """A technique for programs that read no gradient."""

    name: str
    serves = True  # its `around` is called for evaluation, too
    idle = "no module was called"

    def __init__(self, value: int | None) -> None:
        self.calls = 0  # the number of calls that the technique changed

    def begin(self) -> None:
        for what in ("made", "backward", "gradient"):
            observers.listeners[what].append(self.refuse)

    def refuse(self, *told: object) -> None:
        """Called when the program has created an optimizer, or requests gradients."""
        context.refuse(self.name, "the program reads gradients")

    def lines(self) -> list[str]:
        """The code to add."""
        raise NotImplementedError

    def detail(self) -> str:
        """What the technique was applied to, in words."""
        return ""

    def report(self) -> dict[str, Any]:
        if not self.calls:
            return dict(applied=False, detail=self.idle, lines=[])
        return dict(applied=True, detail=self.detail(), lines=self.lines())
