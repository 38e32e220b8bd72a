"""Finds the outermost module calls of training steps, and runs the techniques around them.

A root is a module that is called with gradients enabled, in training mode, and not from another module. DDP
is transparent: the module inside is the root. A block that is recomputed in the backward pass is not a root.

As long as a program has not read a gradient, the outermost call to any module is also a root, for techniques that set
`serves`: the techniques for inference programs.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

from . import context, observers

local = threading.local()
seen: weakref.WeakSet[Any] = weakref.WeakSet()  # roots
served: weakref.WeakSet[Any] = weakref.WeakSet()  # outermost modules in programs that read no gradient
inner: weakref.WeakSet[Any] = weakref.WeakSet()  # modules inside roots
kinds: list[str] = []  # the classes of the roots
TRANSPARENT = ("DistributedDataParallel",)


def install(torch: Any) -> None:
    """Patches how modules are called."""
    original = torch.nn.Module.__call__

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not context.active or is_inside():
            return original(self, *args, **kwargs)
        trains = begins(torch, self)
        if not trains and not serves(torch, self):
            return original(self, *args, **kwargs)
        local.inside = True
        try:
            return context.guarded(call, self, original, trains, args, kwargs)
        finally:
            local.inside = False

    __call__.__wrapped__ = original  # type: ignore[attr-defined]
    torch.nn.Module.__call__ = __call__


def is_inside() -> bool:
    """Whether a root's call is running in this thread."""
    return getattr(local, "inside", False)


def begins(torch: Any, module: Any) -> bool:
    """Whether the call to this module is an outermost call in a training step."""
    if not torch.is_grad_enabled() or not module.training or torch.compiler.is_compiling():
        return False
    if torch._C._current_graph_task_id() != -1:
        return False  # inside a backward pass
    if type(module).__name__ in TRANSPARENT or module in inner:
        return False
    return module in seen or any(parameter.requires_grad for parameter in module.parameters())


def serves(torch: Any, module: Any) -> bool:
    """Whether the call to this module is an outermost call in a program that reads no gradient."""
    if torch.compiler.is_compiling() or observers.trains() or module in seen or module in inner:
        return False
    return torch._C._current_graph_task_id() == -1 and next(module.parameters(), None) is not None


def call(root: Any, original: Callable[..., Any], trains: bool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls a root with the techniques around it."""
    techniques = [it for it in context.active if trains or getattr(it, "serves", False)]
    known = seen if trains else served
    if root not in known:
        known.add(root)
        kinds.append(type(root).__name__)
        if trains:
            inner.update(module for module in root.modules() if module is not root)
        for technique in techniques:
            first = getattr(technique, "first", None)
            if first is not None:
                first(root)
    following: Callable[..., Any] = lambda *args, **kwargs: original(root, *args, **kwargs)
    for technique in reversed(techniques):
        around = getattr(technique, "around", None)
        if around is not None:
            following = wrapped(around, root, following)
    return following(*args, **kwargs)


def wrapped(around: Any, root: Any, following: Callable[..., Any]) -> Any:
    """The call `following`, wrapped in one technique."""
    return lambda *args, **kwargs: around(root, following, args, kwargs)
