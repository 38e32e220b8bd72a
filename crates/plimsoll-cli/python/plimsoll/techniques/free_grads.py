"""Frees gradients before the forward pass, if the program frees them only after it. The numbers are
identical.

The first step shows whether the program clears gradients between its forward and its backward pass. If it does,
gradients that the optimizer has already used are freed at the beginning of the forward pass from then on. If the
program then adds to gradients without clearing them, the numbers would differ, so the run ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import context, observers


class FreeGrads:
    """Frees gradients that the optimizer has used."""

    name = "free-grads"

    def __init__(self, value: int | None) -> None:
        self.fresh = False  # whether a gradient was computed since the last step
        self.between = False  # whether a forward pass has begun, and no backward pass since then
        self.late = False  # whether the program clears gradients between its forward and its backward pass
        self.freed: list[int] = []  # parameters whose gradients were freed but not yet cleared by the program
        self.count = 0
        self.steps = 0

    def begin(self) -> None:
        observers.listeners["zeroed"].append(self.zeroed)
        observers.listeners["backward"].append(self.backward)
        observers.listeners["stepped"].append(self.stepped)

    def around(self, root: Any, following: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.between = True
        if self.late and not self.fresh and self.steps:
            for parameter in root.parameters():
                if parameter.grad is not None and parameter.is_leaf:
                    parameter.grad = None
                    self.freed.append(id(parameter))
                    self.count += 1
        return following(*args, **kwargs)

    def zeroed(self, parameters: Any, set_to_none: bool) -> None:
        if self.between and not self.fresh and self.steps:
            if not set_to_none:
                context.refuse(
                    self.name, "the program sets gradients to zero instead of freeing them (set_to_none=False)"
                )
            self.late = True
        cleared = {id(parameter) for parameter in parameters}
        self.freed = [it for it in self.freed if it not in cleared]

    def backward(self) -> None:
        if self.freed:
            context.refuse(self.name, "the program does not clear all gradients before it adds to them")
        self.between, self.fresh = False, True

    def stepped(self, optimizer: Any) -> None:
        self.fresh = False
        self.steps += 1

    def report(self) -> dict[str, Any]:
        if not self.steps:
            return dict(applied=False, detail="no torch.optim optimizer took a step", lines=[])
        if not self.count:
            return dict(applied=False, detail="the program frees its gradients before the forward pass", lines=[])
        lines = ["optimizer.zero_grad(set_to_none=True)  # before the forward pass, not after it"]
        return dict(applied=True, detail="", lines=lines)
