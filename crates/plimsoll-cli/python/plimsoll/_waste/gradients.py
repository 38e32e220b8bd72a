"""Finds gradients that the optimizer has already used but that stay allocated during the next forward pass, and the
optimizer states of frozen parameters.
"""

from __future__ import annotations

import ast
import weakref
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from .. import protocol
from .._holding.live import Tensors
from .._predict.source import last_name, looked_up
from .insertion import LOOPS, behind, block_of
from .names import Names, own
from .sole import size_of

READS = ("grad", "clip_grad_norm_", "clip_grad_value_", "unscale_")  # names of code that reads gradients

Scope = Callable[[FrameType], "tuple[Names, list[str]] | None"]


class Gradients:
    """Watches which optimizers have stepped since the last backward pass."""

    def __init__(self, torch: Any, known: Tensors, optimizers: Any) -> None:
        self.torch, self.known = torch, known
        self.optimizers = optimizers  # weak references to all optimizers
        self.stale: weakref.WeakSet[Any] = weakref.WeakSet()

    def stepped(self, optimizer: Any) -> None:
        """Called when an optimizer has stepped and its gradients have been used."""
        self.stale.add(optimizer)

    def began(self) -> None:
        """Called when a backward pass begins: from then on, the existing gradients are in use, because the pass adds to
        them.
        """
        self.stale.clear()

    def rows(self, stack: list[tuple[FrameType, int]], scope: Scope, least: int) -> list[protocol.Waste]:
        """Returns a row for each optimizer whose used gradients, or whose states of frozen parameters, occupy at least
        `least` bytes.
        """
        found: list[protocol.Waste] = []
        sizes: dict[tuple[str, int], int] = {}
        for optimizer in list(self.optimizers):
            parameters = [it for group in optimizer.param_groups for it in group["params"]]
            if optimizer in self.stale:
                used = [self.known.get(it, "grad") for it in parameters if it.is_leaf]
                sizes["gradients", id(optimizer)] = sum(size_of(it) for it in used if it is not None)
            frozen = [optimizer.state.get(it) for it in parameters if not it.requires_grad]
            states = [it for state in frozen if isinstance(state, dict) for it in state.values()]
            tensors = [it for it in states if self.known.is_tensor(it) and self.known.get(it, "is_cuda")]
            sizes["states", id(optimizer)] = sum(map(size_of, tensors))
        for frame, _ in stack:
            known = scope(frame) if max(sizes.values(), default=0) >= least else None
            if known is None:
                continue
            for step, name, optimizer in steps(self.torch, frame, known[0]):
                for kind in ("gradients", "states"):
                    size = sizes.pop((kind, id(optimizer)), 0)
                    there = behind(known[0], step, known[1]) if size >= least else None
                    if there is None or kind == "gradients" and not is_zeroed(known[0], step, name):
                        continue
                    text = f"{name}.zero_grad()" if kind == "gradients" else forget(name)
                    found.append(there.waste(kind, name, frame.f_code.co_filename, step.lineno, size, text))
        return found


def forget(name: str) -> str:
    """Returns a line of Python that drops the states of frozen parameters."""
    return f"[{name}.state.pop(it) for it in list({name}.state) if not it.requires_grad]"


def steps(torch: Any, frame: FrameType, names: Names) -> Iterator[tuple[Any, str, Any]]:
    """The statements in which a function's optimizers step: the statement, the optimizer's expression, and the optimizer."""
    for node in own(names.scope):
        if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
            continue
        called, given = node.value.func, node.value.args
        if not isinstance(called, ast.Attribute) or called.attr != "step":
            continue
        for owner in (called.value, *given[:1]):
            it = looked_up(owner, frame)
            if isinstance(it, torch.optim.Optimizer):
                yield node, ast.unparse(owner), it


def is_zeroed(names: Names, step: Any, name: str) -> bool:
    """Whether the loop around a step sets the gradients to None before the next backward pass, and does not read them
    until then.
    """
    block, loop = block_of(names, step)
    if block is None or not isinstance(loop, LOOPS):
        return False
    place = block.index(step)
    for it in block[place + 1 :] + block[:place]:
        calls = [part.func for part in ast.walk(it) if isinstance(part, ast.Call)]
        called = {part.attr for part in calls if isinstance(part, ast.Attribute)}
        if "zero_grad" in called and isinstance(it, ast.Expr):
            return True
        if "backward" in called:
            return False
        if any(last_name(part) in READS for part in ast.walk(it)):
            return False
    return False
