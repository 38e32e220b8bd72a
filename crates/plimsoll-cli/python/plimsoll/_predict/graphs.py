"""Finds graphs of forward passes in evaluation that no backward pass uses: `torch.no_grad()` would have saved their
memory.

A graph counts as used once a backward pass reaches the node of a result. After a call to `torch.autograd.grad`, every
graph counts as used: the call may begin at a tensor inside the model, as for a saliency map.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

from .. import allocator, frames, protocol


class Line:
    """The calls to models at one line of the program."""

    def __init__(self) -> None:
        self.calls = self.bytes = self.most_bytes = 0  # calls; bytes of graphs alive now; most bytes at once
        self.is_used = False
        self.ran_out = False  # whether a call ran out of memory, so what would have followed is unknown
        self.step = 0  # the program's step at the last call

    def free(self, bytes: int) -> None:
        """Called when the graph of a call was freed."""
        self.bytes -= bytes


class Alive:
    """An object attached to an autograd node, to detect when the node is freed. The node may live longer than the
    result of the call.
    """


class Graphs:
    """Watches the outermost calls to modules in evaluation mode while gradients are enabled."""

    def __init__(self, torch: Any, step: Callable[[], int]) -> None:
        self.torch, self.step = torch, step
        self.lines: dict[tuple[str, int], Line] = {}
        self.running = threading.local()
        self.asked = False  # whether gradients were requested by `torch.autograd.grad`
        self.watch_calls()

    def watch_calls(self) -> None:
        """Patches `Module.__call__` and `torch.autograd.grad`."""
        torch, graphs = self.torch, self
        module, gradient = torch.nn.Module, torch.autograd.grad
        original = module.__call__

        def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or self.training or graphs.is_inside() or not graphs.begins():
                return original(self, *args, **kwargs)
            graphs.running.inside = True
            try:
                return graphs.call(original, self, args, kwargs)
            finally:
                graphs.running.inside = False

        @functools.wraps(gradient)
        def grad(*args: Any, **kwargs: Any) -> Any:
            self.asked = True
            return gradient(*args, **kwargs)

        __call__.__wrapped__ = original  # type: ignore[attr-defined]
        module.__call__ = __call__
        torch.autograd.grad = grad

    def is_inside(self) -> bool:
        """Whether an outermost call to a module is running in this thread."""
        return getattr(self.running, "inside", False)

    def begins(self) -> bool:
        """Whether the call to a module that begins now may keep a graph that no backward pass uses."""
        torch = self.torch
        is_recorded = torch.is_grad_enabled() and torch._C._current_graph_task_id() == -1
        return is_recorded and bool(torch.cuda.is_initialized())

    def call(self, original: Callable[..., Any], module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls the module, and records the memory that the call's graph keeps in addition to the results."""
        torch = self.torch
        before = sum(allocator.levels(torch))
        try:
            result = original(module, *args, **kwargs)
        except torch.cuda.OutOfMemoryError:
            self.ran_out(sum(allocator.levels(torch)) - before)
            raise
        leaves = [it for it in torch.utils._pytree.tree_leaves(result) if isinstance(it, torch.Tensor) and it.is_cuda]
        made = [it for it in leaves if it.grad_fn is not None]
        place = frames.program_line(sys._getframe(1)) if made else None
        if place is None:
            return result
        storages = {it.untyped_storage()._cdata: it.untyped_storage().nbytes() for it in leaves}
        kept = sum(allocator.levels(torch)) - before - sum(storages.values())
        if kept <= 0:
            return result
        line = self.lines.setdefault(place, Line())
        line.calls += 1
        line.bytes += kept
        line.most_bytes = max(line.most_bytes, line.bytes)
        line.step = self.step()
        alive = made[0].grad_fn.metadata["plimsoll"] = Alive()
        weakref.finalize(alive, line.free, kept).atexit = False
        for tensor in made:
            tensor.grad_fn.register_prehook(functools.partial(use, line))
        return result

    def ran_out(self, kept: int) -> None:
        """Called when a call ran out of memory; it keeps this many bytes."""
        place = frames.program_line(sys._getframe(2))
        if place is not None and kept > 0:
            line = self.lines.setdefault(place, Line())
            line.calls += 1
            line.ran_out, line.most_bytes = True, max(line.most_bytes, line.bytes + kept)

    def rows(self, is_over: bool, trains: bool) -> list[protocol.Graph]:
        """Rows for the report. If the program was stopped, graphs of its last step are left out, because a later
        backward pass might have used them. If it ran out of memory in a call, this call's graph counts as unused if
        the program has no optimizer so far: `trains` says whether it has one.
        """
        if self.asked:
            return []
        return [
            protocol.Graph(file=file, line=number, bytes=line.most_bytes, calls=line.calls, likely=line.ran_out)
            for (file, number), line in self.lines.items()
            if not line.is_used and (not trains if line.ran_out else is_over or line.step < self.step())
        ]


def use(line: Line, *gradients: Any) -> None:
    """Called when a backward pass uses the graph of a call."""
    line.is_used = True
