"""Updates the parameters only after every Nth backward pass, for the runs in which `plan` measures a smaller micro-batch
with more accumulation. It is not a technique of `--with`.

The program's source has smaller batches in such a run (batch_source.py). Only every Nth call of the optimizer's `step`
has an effect, and gradients are cleared only after such a call.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from . import context, parts


class MicroBatch:
    """Skips steps of the optimizers."""

    name = "micro-batch"

    def __init__(self, value: int) -> None:
        self.each = value
        self.steps: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()  # calls, by optimizer
        self.waits = WeakIdKeyDictionary()  # parameters whose gradients add up
        self.count = 0

    def begin(self) -> None:
        kind = torch.optim.Optimizer
        begin, zero, clear = kind.__init__, kind.zero_grad, torch.nn.Module.zero_grad

        @functools.wraps(begin)
        def __init__(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            begin(optimizer, *args, **kwargs)
            self.take(type(optimizer))

        @functools.wraps(zero)
        def zero_grad(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            own = [it for group in optimizer.param_groups for it in group["params"]]
            return None if self.keeps(own) else zero(optimizer, *args, **kwargs)

        @functools.wraps(clear)
        def zero_module(module: Any, *args: Any, **kwargs: Any) -> Any:
            return None if self.keeps(module.parameters()) else clear(module, *args, **kwargs)

        kind.__init__, kind.zero_grad, torch.nn.Module.zero_grad = __init__, zero_grad, zero_module

    def take(self, kind: Any) -> None:
        """Makes only every Nth step of a class of optimizers have an effect."""
        if "_plimsoll_each" in vars(kind):
            return
        kind._plimsoll_each, step = True, kind.step

        @functools.wraps(step)
        def rare(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            return step(optimizer, *args, **kwargs) if self.is_due(optimizer) else None

        # PyTorch wraps the step of each class again unless it is marked.
        rare.hooked = True  # type: ignore[attr-defined]
        kind.step = rare

    def is_due(self, optimizer: Any) -> bool:
        """Counts a call of `step`. Returns whether it has an effect."""
        number = self.steps[optimizer] = self.steps.get(optimizer, 0) + 1
        own = [it for group in optimizer.param_groups for it in group["params"]]
        if number % self.each == 0:
            for it in own:
                self.waits.pop(it, None)
            self.count += 1
            return True
        for it in own:
            if it.grad is not None:
                self.waits[it] = True
        return False

    def keeps(self, parameters: Any) -> bool:
        """Whether gradients of these parameters still add up."""
        return any(it in self.waits for it in parameters)

    def first(self, root: Any) -> None:
        why = parts.normed(root)
        if why is not None:
            context.refuse(self.name, why)

    def around(self, root: Any, following: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if any(it.grad is None for it in self.waits.keys()):
            context.refuse(self.name, "the program clears its gradients itself")
        return following(*args, **kwargs)

    def report(self) -> dict[str, Any]:
        return dict(applied=bool(self.count), detail="" if self.count else "no optimizer made a step", lines=[])
