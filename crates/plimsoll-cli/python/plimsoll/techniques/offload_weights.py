"""Keeps the weights of the model's repeated blocks in pinned host memory. While a block runs, the next block's weights
are copied to the GPU on a separate stream, so the weights of at most two blocks are on the GPU. The numbers are
identical.

An autograd graph would keep the copies alive, so the program must not read gradients, and no graph is built.
Weights that other modules share stay on the GPU, and so do buffers.
"""

from __future__ import annotations

import functools
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from . import blocks, context, each, lane, observers, roots
from .inference import Inference


class Home:
    """A parameter whose values are on the host, and the device on which blocks use it."""

    def __init__(self, parameter: Any, device: Any) -> None:
        self.parameter, self.device = parameter, device
        self.host = parameter.data
        self.copy: Any = None

    def fetch(self) -> None:
        """Queues the copy to the device."""
        self.copy = torch.empty_like(self.host, device=self.device)
        if self.device.type != "cuda":
            self.copy.copy_(self.host)
            return
        with torch.cuda.stream(lane.beside(self.device, "weights")):
            self.copy.copy_(self.host, non_blocking=True)

    def use(self) -> None:
        """Puts the parameter on the device."""
        self.parameter.data, self.copy = self.copy, None

    def leave(self) -> None:
        """Puts the parameter back on the host without a copy, because its values did not change."""
        self.parameter.data = self.host


class OffloadWeights(Inference):
    """Keeps the weights of repeated blocks on the host."""

    name = "offload-weights"
    idle = "no model with repeated blocks was called on a GPU"

    def __init__(self, value: int | None) -> None:
        super().__init__(value)
        self.homes: weakref.WeakKeyDictionary[Any, list[Home]] = weakref.WeakKeyDictionary()  # by block
        self.after: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()  # the next block
        self.kinds: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()  # the class of each model
        self.arrived: weakref.WeakKeyDictionary[Any, Any] = (
            weakref.WeakKeyDictionary()
        )  # event after the copies, by block

    def begin(self) -> None:
        super().begin()
        self.patch()
        observers.listeners["moving"].append(self.find)
        for module in observers.moving:
            self.find(module)

    def patch(self) -> None:
        """Makes blocks that are moved to a GPU stay on the host."""
        kind = torch.nn.Module
        apply, technique = kind._apply, self

        @functools.wraps(apply)
        def _apply(self: Any, fn: Any, *args: Any, **kwargs: Any) -> Any:
            if self in technique.homes:
                return technique.stay(self, fn, lambda fn: apply(self, fn, *args, **kwargs))
            return apply(self, fn, *args, **kwargs)

        kind._apply = _apply

    def find(self, root: Any) -> None:
        """Finds the blocks of a model."""
        if any(it in self.homes for it in root.modules()):
            return
        found = [block for _, block in blocks.find(root)]
        if len(found) < 2:
            return
        self.kinds[root] = type(root).__name__
        for block, following in zip(found, [*found[1:], None]):
            self.homes[block] = []
            self.after[block] = following and weakref.ref(following)
            block.register_forward_pre_hook(self.enter)
            block.register_forward_hook(self.leave, always_call=True)

    def stay(self, block: Any, fn: Callable[..., Any], apply: Callable[..., Any]) -> Any:
        """Called instead of moving or converting a block: its parameters get the new type, but stay on the host."""
        places = {id(home.parameter): home.device for home in self.homes[block]}
        probe: Callable[..., Any] = lambda it: fn(torch.empty(0, dtype=it.dtype, device=places.get(id(it), it.device)))
        self.homes[block] = []
        inside = {id(it) for it in block.parameters()}
        used = Counter(id(it) for model in self.kinds for _, it in model.named_parameters(remove_duplicate=False))
        own = Counter(id(it) for _, it in block.named_parameters(remove_duplicate=False))
        mine = {key for key in inside if used[key] <= own[key]}
        device = next((probe(it).device for it in block.parameters()), None)
        if device is None or device.type != "cuda":
            return apply(fn)
        for it in block.parameters():
            if id(it) in mine:
                it.data = self.pinned(it.data, probe(it).dtype)
                self.homes[block].append(Home(it, device))
        hosts = {home.host.data_ptr() for home in self.homes[block]}
        return apply(lambda it: it if it.is_cpu and it.data_ptr() in hosts else fn(it))

    def pinned(self, values: Any, dtype: Any) -> Any:
        """A copy of these values in pinned memory."""
        pinned = torch.empty(values.shape, dtype=dtype, pin_memory=True)
        if not getattr(context.host, "has_no_values", False):
            pinned.copy_(values)
        return pinned

    def first(self, root: Any) -> None:
        if any(not homes and any(it.is_cuda for it in block.parameters()) for block, homes in self.of(root)):
            root._apply(lambda it: it)

    def of(self, root: Any) -> list[tuple[Any, list[Home]]]:
        """The blocks of a model, and their parameters on the host."""
        self.find(root)
        return [(it, self.homes[it]) for it in root.modules() if it in self.homes]

    def around(self, root: Any, following: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with torch.no_grad():
            return following(*args, **kwargs)

    def fetch(self, block: Any) -> None:
        """Queues the copies of a block's weights, unless they are already queued."""
        if block in self.arrived:
            return
        for home in self.homes[block]:
            home.fetch()
        devices = {home.device for home in self.homes[block] if home.device.type == "cuda"}
        self.arrived[block] = [lane.streams[device, "weights"].record_event() for device in devices]

    def enter(self, block: Any, args: Any) -> None:
        """Called before a block's call: waits for the block's weights, and starts to copy those of the next block."""
        if not self.homes.get(block):
            return
        if torch.is_grad_enabled():
            context.refuse(self.name, "the model is called with gradients, outside of torch.no_grad()")
        self.calls += 1
        self.fetch(block)
        for event in self.arrived.pop(block):
            torch.cuda.current_stream(self.homes[block][0].device).wait_event(event)
        for home in self.homes[block]:
            home.use()
        following = self.after[block] and self.after[block]()
        if following is not None:
            self.fetch(following)

    def leave(self, block: Any, args: Any, result: Any) -> None:
        """Called after a block's call."""
        for home in self.homes.get(block, ()):
            home.leave()

    def lines(self) -> list[str]:
        kinds = list(self.kinds.values())
        calls = each.model("plimsoll.offload_weights(model)", kinds, roots.kinds)
        return [context.IMPORT, *calls, "# before the model moves to the GPU; call the model in torch.no_grad()"]

    def detail(self) -> str:
        return f"{len(self.homes)} blocks"

    def report(self) -> dict[str, Any]:
        return dict(super().report(), bytes=sum(home.host.nbytes for homes in self.homes.values() for home in homes))
