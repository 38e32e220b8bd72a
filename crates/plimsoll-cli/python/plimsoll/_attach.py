"""Applies techniques to the training calls of one model, in the same way as ``plimsoll run`` applies them to a complete
program.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import weakref
from contextlib import AbstractContextManager
from typing import Any

import torch

from ._inject.sitecustomize import PACKAGE
from .errors import RefusedError
from .techniques import ALL, context, observers

attached: weakref.WeakKeyDictionary[torch.nn.Module, list[Any]] = weakref.WeakKeyDictionary()
patched: set[type] = set()
local = threading.local()
installed: list[bool] = []


class Caller:
    """The `host` object for programs that apply techniques themselves: if a technique refuses a model, an exception is
    raised.
    """

    def refused(self, name: str, reason: str) -> None:
        """Raises `RefusedError` with the reason."""
        raise RefusedError(name, reason)

    def unread(self) -> AbstractContextManager[None]:
        """A context in which `plimsoll predict` does not count copies to the host as reads by the program."""
        # Under `plimsoll predict`, copies to the host that a technique makes are not the program's reads.
        watches = getattr(sys.modules.get(f"{PACKAGE}._predict.start"), "WATCH", None)
        if isinstance(watches, list) and watches:
            unread: AbstractContextManager[None] = watches[0].unread()
            return unread
        return contextlib.nullcontext()


context.host = Caller()


def observe() -> None:
    """Starts to record calls to losses, optimizers and backward passes, for the techniques that depend on them."""
    if not installed:
        installed.append(True)
        observers.install(torch)


class Attached:
    """A technique that is applied to a model. ``remove()`` removes the technique. As a context manager, this removes
    the technique at the end of the ``with`` block.
    """

    def __init__(self, module: torch.nn.Module, technique: Any) -> None:
        self.module = weakref.ref(module)
        self.technique = technique

    def remove(self) -> None:
        """Removes the technique. A second call does nothing."""
        module = self.module()
        if module is not None and self.technique in attached.get(module, []):
            attached[module].remove(self.technique)

    def __enter__(self) -> Attached:
        return self

    def __exit__(self, *failure: object) -> None:
        self.remove()


def attach(module: torch.nn.Module, technique: Any) -> Attached:
    """Runs ``technique.around`` around every call to the module in training. Raises ``RefusedError`` if the technique
    cannot be applied to this model.
    """
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"expected a torch.nn.Module, not {type(module).__name__}")
    own = attached.setdefault(module, [])
    if any(type(it) is type(technique) for it in own):
        raise RefusedError(technique.name, "it is already applied to this model")
    first = getattr(technique, "first", None)
    if first is not None:
        first(module)
    patch(type(module))
    own.append(technique)
    # Sort the techniques in the order of the package, the outermost first.
    own.sort(key=lambda it: next(nth for nth, kind in enumerate(ALL) if isinstance(it, kind)))
    return Attached(module, technique)


def patch(kind: type[torch.nn.Module]) -> None:
    """Replaces the class's forward function with one function that runs a module's techniques around the original."""
    if kind in patched:
        return
    patched.add(kind)
    original = kind.forward

    @functools.wraps(original)
    def forward(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        is_plain = torch.compiler.is_compiling() or type(self).forward is not forward
        techniques = [] if is_plain else applying(self)
        if not techniques:
            return original(self, *args, **kwargs)
        inside = local.__dict__.setdefault("inside", set())
        inside.add(id(self))
        try:
            following = functools.partial(original, self)
            for technique in reversed(techniques):
                following = functools.partial(call, technique, self, following)
            return following(*args, **kwargs)
        finally:
            inside.discard(id(self))

    kind.forward = forward


def call(technique: Any, module: torch.nn.Module, following: Any, *args: Any, **kwargs: Any) -> Any:
    """Calls a technique with its arguments in an order that `functools.partial` can bind."""
    return technique.around(module, following, args, kwargs)


def applying(module: torch.nn.Module) -> list[Any]:
    """The techniques of a module that apply to this call to the module."""
    if torch._C._current_graph_task_id() != -1:
        return []  # inside a backward pass: a recomputation
    if id(module) in local.__dict__.get("inside", ()):
        return []
    own, is_recorded = attached.get(module, []), torch.is_grad_enabled()
    if module.training and is_recorded:
        return own
    return [] if is_recorded else [it for it in own if getattr(it, "serves", False)]
