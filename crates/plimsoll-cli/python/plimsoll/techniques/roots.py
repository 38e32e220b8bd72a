"""Finds the outermost module calls of training steps, and runs the techniques around them.

A root is a module that is called with gradients enabled, in training mode, not from another module. DDP is
transparent: the module inside is the root. A block that is computed again in the backward pass is not one.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

from . import context

local = threading.local()
seen: weakref.WeakSet[Any] = weakref.WeakSet()  # roots
inner: weakref.WeakSet[Any] = weakref.WeakSet()  # modules inside them
kinds: list[str] = []  # the classes of the roots
TRANSPARENT = ("DistributedDataParallel",)


def install(torch: Any) -> None:
    """Patches the call of modules."""
    original = torch.nn.Module.__call__

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not context.active or is_inside() or not begins(torch, self):
            return original(self, *args, **kwargs)
        local.inside = True
        try:
            return context.guarded(call, self, original, args, kwargs)
        finally:
            local.inside = False

    __call__.__wrapped__ = original  # type: ignore[attr-defined]
    torch.nn.Module.__call__ = __call__


def is_inside() -> bool:
    """Whether a root's call is running in this thread."""
    return getattr(local, "inside", False)


def begins(torch: Any, module: Any) -> bool:
    """Whether this call of a module is an outermost one of a training step."""
    if not torch.is_grad_enabled() or not module.training or torch.compiler.is_compiling():
        return False
    if torch._C._current_graph_task_id() != -1:
        return False  # inside a backward pass
    if type(module).__name__ in TRANSPARENT or module in inner:
        return False
    return module in seen or any(parameter.requires_grad for parameter in module.parameters())


def call(root: Any, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls a root, with the techniques around it."""
    if root not in seen:
        seen.add(root)
        kinds.append(type(root).__name__)
        inner.update(module for module in root.modules() if module is not root)
        for technique in context.active:
            first = getattr(technique, "first", None)
            if first is not None:
                first(root)
    following: Callable[..., Any] = lambda *args, **kwargs: original(root, *args, **kwargs)
    for technique in reversed(context.active):
        around = getattr(technique, "around", None)
        if around is not None:
            following = wrapped(around, root, following)
    return following(*args, **kwargs)


def wrapped(around: Any, root: Any, following: Callable[..., Any]) -> Any:
    """The call, with one technique around it."""
    return lambda *args, **kwargs: around(root, following, args, kwargs)
